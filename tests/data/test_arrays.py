from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from osiris.data.arrays import from_arrays
from osiris.data.base import Benchmark
from osiris.data.benchmarks import load_benchmark
from osiris.data.config import BenchmarkConfig
from osiris.data.torchset import from_dataset
from osiris.errors import UserError
from pictures import picture

COUNT = 20
IMAGES = np.stack([np.asarray(picture(number)) for number in range(COUNT)])
LABELS = np.arange(COUNT) % 2
EPISODES = np.arange(COUNT) // 10


def everything(split) -> np.ndarray:
    return split.images.take(torch.arange(len(split))).numpy()


def test_unlabelled_arrays_are_one_episode() -> None:
    benchmark = from_arrays(IMAGES)
    assert (everything(benchmark.train) == IMAGES.transpose(0, 3, 1, 2)).all()
    assert benchmark.task_names == ("all",) and benchmark.test is None and not benchmark.labelled


@pytest.mark.parametrize("images", [IMAGES.transpose(0, 3, 1, 2), torch.from_numpy(IMAGES)], ids=["NCHW", "tensor"])
def test_axes_are_recognised(images) -> None:
    assert (everything(from_arrays(images).train) == IMAGES.transpose(0, 3, 1, 2)).all()


@pytest.mark.parametrize(
    "grey", [IMAGES[..., 0], IMAGES[..., :1], IMAGES[:, None, :, :, 0]], ids=["NHW", "NHW1", "N1HW"]
)
def test_grey_becomes_rgb(grey: np.ndarray) -> None:
    assert (everything(from_arrays(grey).train) == IMAGES[:, None, :, :, 0]).all()


def test_labels_episodes_and_held_out_test() -> None:
    benchmark = from_arrays(IMAGES, LABELS, EPISODES)
    assert benchmark.class_names == ("0", "1") and benchmark.task_names == ("0", "1")
    assert len(benchmark.train) == 16 and benchmark.test is not None and len(benchmark.test) == 4
    assert benchmark.tasks == ((0, 1), (0, 1)) and benchmark.labelled


def test_strings_and_dates_and_class_names() -> None:
    benchmark = from_arrays(IMAGES, np.where(LABELS == 0, "cat", "ant"), np.where(EPISODES == 0, "day10", "day2"))
    assert benchmark.class_names == ("ant", "cat") and benchmark.task_names == ("day2", "day10")
    days = np.where(EPISODES == 0, np.datetime64("2024-05-01"), np.datetime64("2023-12-24"))
    assert from_arrays(IMAGES, episodes=days).task_names == ("2023-12-24", "2024-05-01")
    named = from_arrays(IMAGES, LABELS, class_names=["fish", "bird"])
    assert named.class_names == ("fish", "bird")


def test_a_test_part_of_its_own() -> None:
    test = (IMAGES[:3] // 2, np.asarray([0, 1, 1]), np.asarray([1, 0, 1]))
    benchmark = from_arrays(IMAGES, LABELS, EPISODES, test=test)
    assert len(benchmark.train) == COUNT and benchmark.test is not None
    assert benchmark.test.task.tolist() == [1, 0, 1]
    assert benchmark.test.label is not None and benchmark.test.label.tolist() == [0, 1, 1]
    assert (everything(benchmark.test) == (IMAGES[:3] // 2).transpose(0, 3, 1, 2)).all()


def test_sizes() -> None:
    wide = np.zeros((4, 10, 30, 3), dtype=np.uint8)
    benchmark = from_arrays(wide)
    assert benchmark.train.images.shape == (3, 10, 10) and "scaled and cropped to 10x10" in benchmark.notices[0]
    assert from_arrays(IMAGES, config=BenchmarkConfig(image_size=12)).train.images.shape == (3, 12, 12)


@pytest.mark.parametrize(
    ("images", "labels", "episodes", "message"),
    [
        (IMAGES.astype(np.float32), None, None, "images must be uint8"),
        (IMAGES[0, 0], None, None, "images of shape"),
        (IMAGES[:0], None, None, "images of shape"),
        (IMAGES, LABELS[:-1], None, r"labels have the shape \(19,\)"),
        (IMAGES, LABELS + 0.5, None, "labels must be whole numbers, strings or dates"),
        (IMAGES, None, np.zeros((COUNT, 2), dtype=int), "episodes have the shape"),
    ],
)
def test_bad_arrays(images, labels, episodes, message: str) -> None:
    with pytest.raises(UserError, match=message):
        from_arrays(images, labels, episodes)


@pytest.mark.parametrize(
    ("test", "message"),
    [
        ((IMAGES[:2], None), "test labels are missing"),
        ((IMAGES[:2], np.asarray([0, 7]), np.asarray([0, 0])), "test labels have '7', which has no training images"),
        ((IMAGES[:2], np.asarray([0, 1])), "test episodes are missing"),
    ],
)
def test_bad_test_parts(test, message: str) -> None:
    with pytest.raises(UserError, match=message):
        from_arrays(IMAGES, LABELS, EPISODES, test=test)


def test_class_names_must_fit() -> None:
    with pytest.raises(UserError, match="the same name twice"):
        from_arrays(IMAGES, LABELS, class_names=["a", "a"])
    with pytest.raises(UserError, match="from 0 to 0"):
        from_arrays(IMAGES, LABELS, class_names=["a"])
    with pytest.raises(UserError, match="the class 'c' has no usable training images"):
        from_arrays(IMAGES, LABELS, class_names=["a", "b", "c"])


def load_file(path: Path, prefix: str = "arrays:", suffix: str = "") -> Benchmark:
    return load_benchmark(BenchmarkConfig(f"{prefix}{path}{suffix}"))


def test_npz_and_npy_files(tmp_path: Path) -> None:
    np.savez(tmp_path / "all.npz", images=IMAGES, labels=LABELS, episodes=EPISODES, class_names=["x", "y"])
    benchmark = load_file(tmp_path / "all.npz")
    assert benchmark.class_names == ("x", "y") and benchmark.task_count == 2
    assert benchmark.checksum != from_arrays(IMAGES, LABELS, 1 - EPISODES).checksum
    np.save(tmp_path / "images.npy", IMAGES)
    assert (everything(load_file(tmp_path / "images.npy").train) == IMAGES.transpose(0, 3, 1, 2)).all()
    split = load_file(tmp_path / "all.npz", "split-arrays:", "-2")
    assert split.tasks == ((0,), (1,))


def test_bad_files(tmp_path: Path) -> None:
    np.savez(tmp_path / "other.npz", x=IMAGES)
    with pytest.raises(UserError, match=r"other.npz has the arrays x. Give arrays:FILE.npz"):
        load_file(tmp_path / "other.npz")
    np.savez(tmp_path / "pickled.npz", images=np.asarray([{"code": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(UserError, match=r"cannot read .*pickled.npz"):
        load_file(tmp_path / "pickled.npz")
    (tmp_path / "half.npz").write_bytes((tmp_path / "other.npz").read_bytes()[:500])
    with pytest.raises(UserError, match=r"cannot read .*half.npz"):
        load_file(tmp_path / "half.npz")
    with pytest.raises(UserError, match=r"cannot read .*gone.npz"):
        load_file(tmp_path / "gone.npz")


class Pictures(Dataset):
    """Items as a torch data set gives them."""

    def __init__(self, make, labelled: bool = True, count: int = COUNT) -> None:
        self.make, self.labelled, self.count = make, labelled, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int):
        image = self.make(index)
        return (image, int(LABELS[index])) if self.labelled else image


def as_float(number: int) -> torch.Tensor:
    return torch.from_numpy(IMAGES[number]).permute(2, 0, 1) / 255


@pytest.mark.parametrize(
    "make",
    [
        picture,
        lambda number: IMAGES[number],
        lambda number: torch.from_numpy(IMAGES[number]).permute(2, 0, 1),
        as_float,
    ],
    ids=["PIL", "array", "uint8 tensor", "float tensor"],
)
def test_a_torch_dataset(make) -> None:
    plain = from_dataset(Pictures(make, labelled=False))
    assert (everything(plain.train) == IMAGES.transpose(0, 3, 1, 2)).all() and plain.test is None
    labelled = from_dataset(Pictures(make), episodes=EPISODES)
    assert labelled.checksum == from_dataset(Pictures(picture), episodes=EPISODES).checksum
    assert labelled.task_count == 2 and len(labelled.train) == 16


def test_floats_are_rounded_to_the_nearest_level() -> None:
    benchmark = from_dataset(Pictures(lambda number: torch.full((3, 4, 4), 0.999), labelled=False))
    assert (everything(benchmark.train) == 255).all()


def test_a_torch_dataset_too_large_to_keep() -> None:
    kept = from_dataset(Pictures(picture), episodes=EPISODES)
    lazy = from_dataset(Pictures(picture), episodes=EPISODES, config=BenchmarkConfig(decode_limit_mb=0))
    assert (everything(kept.train) == everything(lazy.train)).all() and kept.checksum == lazy.checksum


def test_a_torch_dataset_with_a_test_part() -> None:
    by_class = from_dataset(Pictures(picture), episodes=LABELS, test=Pictures(picture, count=5))
    assert by_class.test is not None and by_class.test.task.tolist() == [0, 1, 0, 1, 0]
    with pytest.raises(UserError, match="class 0 comes in several episodes"):
        from_dataset(Pictures(picture), episodes=EPISODES, test=Pictures(picture, count=5))


def test_bad_torch_datasets() -> None:
    with pytest.raises(UserError, match=r"float images must lie in \[0, 1\]"):
        from_dataset(Pictures(lambda number: as_float(number) * 4 - 2))
    with pytest.raises(UserError, match="is empty"):
        from_dataset(Pictures(picture, count=0), config=BenchmarkConfig(image_size=8))
    with pytest.raises(UserError, match="expected uint8"):
        from_dataset(Pictures(lambda number: np.zeros(5, dtype=np.int32)))
