"""Benchmarks from what a user has in Python: arrays, torch and Hugging Face data sets, folders, lists of paths."""

import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from osiris.data.benchmark import Benchmark
from osiris.data.config import BenchmarkConfig
from osiris.data.load import benchmark_from, episode_from, load_benchmark
from osiris.errors import UserError
from pictures import picture, write_pictures

COUNT = 20
IMAGES = np.stack([np.asarray(picture(number)) for number in range(COUNT)])
PLANES = IMAGES.transpose(0, 3, 1, 2)
LABELS = np.arange(COUNT) % 2
EPISODES = np.arange(COUNT) // 10


def everything(split) -> np.ndarray:
    return split.images.take(torch.arange(len(split))).numpy()


class Pictures(Dataset):
    """Items as a torch data set returns them."""

    def __init__(self, make, labelled: bool = True, count: int = COUNT) -> None:
        self.make, self.labelled, self.count = make, labelled, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int):
        image = self.make(index)
        return (image, int(LABELS[index])) if self.labelled else image


def as_float(number: int) -> torch.Tensor:
    return torch.from_numpy(IMAGES[number]).permute(2, 0, 1) / 255


def huggingface(count: int = COUNT, **columns):
    import datasets

    rows = {"picture": [picture(number) for number in range(count)], **columns}
    return datasets.Dataset.from_dict(rows).cast_column("picture", datasets.Image())


@pytest.mark.parametrize(
    "images",
    [IMAGES, PLANES, torch.from_numpy(IMAGES), list(IMAGES), Pictures(picture, labelled=False), "paths", "huggingface"],
    ids=["NHWC", "NCHW", "tensor", "list", "torch", "paths", "huggingface"],
)
def test_every_kind_gives_the_same_benchmark(images, tmp_path: Path) -> None:
    if isinstance(images, str):
        images = write_pictures(tmp_path, COUNT, 0) if images == "paths" else huggingface()
    benchmark = benchmark_from(images)
    assert (everything(benchmark.train) == PLANES).all()
    assert benchmark.task_names == ("all",) and benchmark.test is None and not benchmark.labelled
    assert benchmark.checksum == benchmark_from(IMAGES).checksum
    by_day = benchmark_from(images, episodes=[f"day{10 - number // 10}" for number in range(COUNT)])
    assert by_day.task_names == ("day9", "day10") and by_day.train.task.tolist() == [1] * 10 + [0] * 10


def test_a_folder(tmp_path: Path) -> None:
    for seed, episode in enumerate(("a", "b")):
        write_pictures(tmp_path / "train" / episode / "cat", 4, seed)
        write_pictures(tmp_path / "held-out" / episode / "cat", 2, seed + 5)
    assert benchmark_from(tmp_path / "train" / "a").task_names == ("cat",)
    with_test = benchmark_from(tmp_path / "train", test=tmp_path / "held-out")
    assert with_test.test is not None and len(with_test.test) == 4 and len(with_test.train) == 8
    with pytest.raises(UserError, match="leave out episodes and labels"):
        benchmark_from(tmp_path / "train", labels=[0] * 8)
    one = episode_from(tmp_path, "everything")
    assert one.task_names == ("everything",) and len(one.train) == 12 and one.train.label is None


def test_one_episode_of_anything(tmp_path: Path) -> None:
    path = write_pictures(tmp_path, 1, 0)[0]
    for images, count in ((IMAGES, COUNT), (path, 1), ([path, path], 2), (Pictures(picture), COUNT)):
        episode = episode_from(images, "monday", image_size=16)
        assert episode.task_names == ("monday",) and len(episode.train) == count
        assert episode.train.images.shape == (3, 16, 16) and episode.test is None and episode.train.label is None
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="has no images"):
        episode_from(tmp_path / "empty", "x")


@pytest.mark.parametrize(
    "grey", [IMAGES[..., 0], IMAGES[..., :1], IMAGES[:, None, :, :, 0]], ids=["NHW", "NHW1", "N1HW"]
)
def test_grey_becomes_rgb(grey: np.ndarray) -> None:
    assert (everything(benchmark_from(grey).train) == IMAGES[:, None, :, :, 0]).all()


def test_strings_and_dates_and_class_names() -> None:
    benchmark = benchmark_from(IMAGES, labels=np.where(LABELS == 0, "cat", "ant"))
    assert benchmark.class_names == ("ant", "cat")
    moments = np.where(EPISODES == 0, np.datetime64("2024-05-01T10:00"), np.datetime64("2023-12-24T11:30"))
    for dates in (moments, moments.tolist()):
        assert benchmark_from(IMAGES, episodes=dates).task_names == ("2023-12-24", "2024-05-01")
    assert benchmark_from(IMAGES, labels=LABELS, class_names=["fish", "bird"]).class_names == ("fish", "bird")


def test_separate_test_images() -> None:
    dark = IMAGES[:3] // 2
    given = (dark, np.asarray([0, 1, 1]), np.asarray([1, 0, 1]))
    benchmark = benchmark_from(IMAGES, labels=LABELS, episodes=EPISODES, test=given)
    assert len(benchmark.train) == COUNT and benchmark.test is not None and benchmark.test.label is not None
    assert benchmark.test.task.tolist() == [1, 0, 1] and benchmark.test.label.tolist() == [0, 1, 1]
    assert (everything(benchmark.test) == dark.transpose(0, 3, 1, 2)).all()
    by_class = benchmark_from(Pictures(picture), episodes=LABELS, test=Pictures(picture, count=5))
    assert by_class.test is not None and by_class.test.task.tolist() == [0, 1, 0, 1, 0]
    assert "the test images are not used" in benchmark_from(IMAGES, test=IMAGES).notices[0]
    columns = huggingface(label=LABELS.tolist(), day=EPISODES.tolist())
    table = benchmark_from(columns, labels="label", episodes="day", test=columns.select(range(5)))
    assert table.test is not None and table.test.task.tolist() == [0] * 5 and table.task_count == 2


@pytest.mark.parametrize(
    ("images", "options", "message"),
    [
        (IMAGES.astype(np.float32), {}, r"float images must lie in \[0, 1\], not .* uint8 from 0 to 255"),
        (IMAGES[0, 0], {}, r"an image of uint8 and shape \(3,\)"),
        (IMAGES[:0], {}, "is empty"),
        (7, {}, "expected a folder, a list of paths, an array"),
        (IMAGES, {"labels": LABELS[:-1]}, r"labels have the shape \(19,\)"),
        (IMAGES, {"labels": LABELS + 0.5}, "labels must be whole numbers, strings or dates"),
        (IMAGES, {"labels": [None] * COUNT}, "some images have none"),
        (IMAGES, {"labels": [1.0] * (COUNT - 1) + [float("nan")]}, "some images have none"),
        (IMAGES, {"labels": ["cat"] * (COUNT - 1) + [""]}, "some images have none"),
        (IMAGES, {"labels": [0] * (COUNT - 1) + [-1]}, "labels contain -1, which usually means that an image has none"),
        (IMAGES, {"episodes": np.zeros((COUNT, 2), dtype=int)}, "episodes have the shape"),
        (IMAGES, {"episodes": np.arange(COUNT)}, "every image has its own episode"),
        (IMAGES, {"labels": LABELS, "class_names": ["a", "a"]}, "the same name twice"),
        (IMAGES, {"labels": LABELS, "class_names": ["a"]}, "from 0 to 0"),
        (IMAGES, {"labels": LABELS, "class_names": ["a", "b", "c"]}, "no usable training images in class 'c'"),
        (IMAGES, {"labels": LABELS, "test": IMAGES[:2]}, "test labels are missing"),
        (IMAGES, {"labels": LABELS, "test": (IMAGES[:1], [7])}, "test labels contain '7', which has no training"),
        (IMAGES, {"labels": LABELS, "episodes": EPISODES, "test": (IMAGES[:1], [1])}, "occurs in several episodes"),
        (Pictures(lambda number: as_float(number) * 4 - 2), {}, r"float images must lie in \[0, 1\]"),
        (Pictures(picture, count=0), {}, "is empty"),
        (Pictures(lambda number: np.zeros(5, dtype=np.int32)), {}, "expected uint8"),
    ],
)
def test_what_is_refused(images, options: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        benchmark_from(images, **options)


def test_a_task_of_copies_of_one_image_is_named() -> None:
    images = IMAGES.copy()
    images[EPISODES == 1] = images[0]
    (text,) = benchmark_from(images, episodes=EPISODES).notices
    assert text == "all images in task(s) '1' are copies of one image: there is nothing to learn."
    assert benchmark_from(IMAGES, episodes=EPISODES).notices == ()


@pytest.mark.parametrize(
    "make",
    [lambda number: IMAGES[number], lambda number: torch.from_numpy(PLANES[number]), as_float],
    ids=["array", "uint8 tensor", "float tensor"],
)
def test_items_of_a_torch_dataset(make) -> None:
    labelled = benchmark_from(Pictures(make), episodes=EPISODES)
    assert labelled.checksum == benchmark_from(Pictures(picture), episodes=EPISODES).checksum
    assert labelled.task_count == 2 and len(labelled.train) == 16


def test_floats_are_rounded_to_the_nearest_level() -> None:
    assert (everything(benchmark_from(IMAGES / 255).train) == PLANES).all()
    benchmark = benchmark_from(Pictures(lambda number: torch.full((3, 8, 8), 0.999), labelled=False))
    assert (everything(benchmark.train) == 255).all()


def load_file(path: Path, prefix: str = "arrays:", suffix: str = "") -> Benchmark:
    return load_benchmark(BenchmarkConfig(f"{prefix}{path}{suffix}"))


def test_npz_and_npy_files(tmp_path: Path) -> None:
    fields = {"images": IMAGES, "labels": LABELS, "episodes": EPISODES, "class_names": ["x", "y"]}
    np.savez(tmp_path / "all.npz", **fields)  # type: ignore[arg-type]
    benchmark = load_file(tmp_path / "all.npz")
    assert benchmark.class_names == ("x", "y") and benchmark.task_count == 2
    assert benchmark.checksum != benchmark_from(IMAGES, labels=LABELS, episodes=1 - EPISODES).checksum
    np.save(tmp_path / "images.npy", IMAGES)
    assert (everything(load_file(tmp_path / "images.npy").train) == PLANES).all()
    assert load_file(tmp_path / "all.npz", "split-arrays:", "-2").tasks == ((0,), (1,))
    np.savez(tmp_path / "test.npz", test_images=IMAGES[:4], test_labels=[0, 1, 0, 1], images=IMAGES, labels=LABELS)
    with_test = load_file(tmp_path / "test.npz")
    assert with_test.test is not None and len(with_test.test) == 4


def test_labels_of_thousands_of_digits_are_sorted() -> None:
    labels = ["9" * 5000, "8"] * (COUNT // 2)
    assert benchmark_from(IMAGES, labels=labels).class_names == ("8", "9" * 5000)


def test_bad_files(tmp_path: Path) -> None:
    np.savez(tmp_path / "other.npz", x=IMAGES)
    np.savez(tmp_path / "pickled.npz", images=np.asarray([{"code": 1}], dtype=object), allow_pickle=True)
    (tmp_path / "half.npz").write_bytes((tmp_path / "other.npz").read_bytes()[:500])
    np.savez_compressed(tmp_path / "bomb.npz", images=np.zeros((100, 1000, 1000), dtype=np.uint8))
    np.savez(tmp_path / "number.npz", images=5)
    np.savez(tmp_path / "name.npz", images=IMAGES, labels=LABELS, class_names="x")
    np.savez_compressed(tmp_path / "stream.npz", images=IMAGES)
    with zipfile.ZipFile(tmp_path / "stream.npz") as archive:
        start = archive.infolist()[0].header_offset + 30 + len("images.npy")
    content = bytearray((tmp_path / "stream.npz").read_bytes())
    content[start + 20 : start + 40] = b"\xff" * 20
    (tmp_path / "stream.npz").write_bytes(content)
    (tmp_path / "header.npy").write_bytes(b"\x93NUMPY\x01\x00\x40\x00" + b"(" * 64)
    for name, message in (
        ("other.npz", r"other.npz has the arrays x. Give arrays:FILE.npz"),
        ("pickled.npz", r"cannot read .*pickled.npz"),
        ("half.npz", r"cannot read .*half.npz"),
        ("gone.npz", r"cannot read .*gone.npz"),
        ("number.npz", r"number.npz: images is a single value, not an array"),
        ("name.npz", r"name.npz: class_names is a single value, not an array"),
        ("stream.npz", r"cannot read .*stream.npz: Error"),
        ("header.npy", r"cannot read .*header.npy"),
        ("bomb.npz", r"would unpack to 100,000,\d+, which images do not"),
    ):
        with pytest.raises(UserError, match=message):
            load_file(tmp_path / name)
