"""CIFAR-100 and Tiny-ImageNet from local parquet files: a miniature of the former, and every way it can be broken."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from osiris.data import cache, huggingface
from osiris.data.catalogue import DATASETS
from osiris.data.config import BenchmarkConfig
from osiris.data.load import describe_benchmarks, episode_from, load_benchmark
from osiris.errors import UserError
from pictures import picture, png, write_parquet, write_pictures

NAMES = list(DATASETS["cifar100"].class_ids)


@pytest.fixture(scope="session")
def miniature(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two training images and one test image per class; one grey, one of another size, one broken."""
    root = tmp_path_factory.mktemp("miniature")
    images = [png(label) for label in range(100)] + [png(100 + label) for label in range(100)]
    images[0], images[1] = png(0, mode="L"), png(1, size=40)
    images[105] = images[105][:60]
    tests = [png(500 + label) for label in range(100)]
    write_parquet(root / "cifar100" / "train-00000-of-00001.parquet", images, [*range(100), *range(100)], NAMES)
    write_parquet(root / "cifar100" / "test-00000-of-00001.parquet", tests, [*range(100)], NAMES)
    return root


@pytest.fixture
def copy(miniature: Path, tmp_path: Path) -> Path:
    """One that a test may damage."""
    return Path(shutil.copytree(miniature, tmp_path / "copy"))


def load(data_dir: Path | None, **options) -> object:
    return load_benchmark(BenchmarkConfig("split-cifar100-5", data_dir=data_dir, **options))


def test_the_parent_or_the_folder_itself_and_osiris_data(miniature: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    by_parent, by_folder = load(miniature), load(miniature / "cifar100")
    monkeypatch.setenv("OSIRIS_DATA", str(miniature))
    by_variable = load(None)
    assert by_parent.checksum == by_folder.checksum == by_variable.checksum  # type: ignore[attr-defined]
    assert by_parent.location == by_folder.location == by_variable.location  # type: ignore[attr-defined]


def test_pixels_labels_and_notices(miniature: Path) -> None:
    benchmark = load_benchmark(BenchmarkConfig("split-cifar100-5", data_dir=miniature))
    assert len(benchmark.train) == 199 and benchmark.test is not None and len(benchmark.test) == 100
    row = benchmark.train.images.take(torch.tensor([2]))[0]
    assert (row.numpy() == np.asarray(picture(2, (32, 32))).transpose(2, 0, 1)).all()
    grey = benchmark.train.images.take(torch.tensor([0]))[0]
    assert (grey[0] == grey[1]).all() and (grey[1] == grey[2]).all()
    assert benchmark.train.label is not None and benchmark.train.label[:3].tolist() == [0, 1, 2]
    told = " ".join(benchmark.notices)
    assert "partial: 1 to 2 of 500 train images per class and 1 of 100 test images per class" in told
    assert "1 image(s) could not be decoded and were skipped" in told
    assert benchmark.location is not None
    assert (benchmark.location / "skipped.txt").read_text().startswith("train row 105\t")


def test_too_large_to_cache_is_scaled_on_the_fly(miniature: Path) -> None:
    cached = load_benchmark(BenchmarkConfig("split-cifar100-5", miniature, image_size=48))
    lazy = load_benchmark(BenchmarkConfig("split-cifar100-5", miniature, image_size=48, decode_limit_mb=1))
    assert type(lazy.train.images.source).__name__ == "LazyImages"  # type: ignore[attr-defined]
    some = torch.tensor([5, 2, 150])
    assert (lazy.train.images.take(some) == cached.train.images.take(some)).all()


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1000])


def as_pointer(path: Path) -> None:
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n")


@pytest.mark.parametrize(
    ("split", "damage", "message"),
    [
        ("train", cut_short, r"train-00000-of-00001.parquet is not a complete parquet file"),
        ("train", lambda path: path.rename(path.with_name("train-00000-of-00002.parquet")), "has only 1 of the train"),
        ("test", Path.unlink, "has no test files of cifar100: is the download complete"),
        ("train", as_pointer, "Git LFS pointer"),
    ],
)
def test_incomplete_downloads(copy: Path, split: str, damage: Callable[[Path], object], message: str) -> None:
    damage(copy / "cifar100" / f"{split}-00000-of-00001.parquet")
    with pytest.raises(UserError, match=message):
        load(copy)


@pytest.mark.parametrize(
    ("start", "message"),
    [
        (4, r"cannot read .*cifar100.*Download the files again"),
        (2000, r"no usable training images in class .*\d+ cannot be decoded"),
    ],
    ids=["structure", "pixels"],
)
def test_bytes_damaged_inside(copy: Path, cache_directory: Path, start: int, message: str) -> None:
    path = copy / "cifar100" / "train-00000-of-00001.parquet"
    content = bytearray(path.read_bytes())
    content[start : len(content) // 2] = bytes(len(content) // 2 - start)
    path.write_bytes(content)
    with pytest.raises(UserError, match=message):
        load(copy)
    assert [child for child in cache_directory.iterdir() if child.is_dir()] == []


def test_wrong_files(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(UserError, match=r"does not hold cifar100: it has notes.txt. Expected train-00000-of-"):
        load(tmp_path)
    with pytest.raises(UserError, match="is not a directory"):
        load(tmp_path / "nowhere")


def test_wrong_columns_and_classes(copy: Path, tmp_path: Path) -> None:
    import datasets

    path = copy / "cifar100" / "train-00000-of-00001.parquet"
    datasets.Dataset.from_dict({"picture": [1], "kind": [2]}).to_parquet(path)
    with pytest.raises(UserError, match=r"'img': there is no such column. cifar100 has only the columns picture, kind"):
        load(copy)
    write_parquet(path, [png(0)], [0], names=["zebra", *NAMES[1:]])
    with pytest.raises(UserError, match="are not the published ones: zebra"):
        load(copy)


def test_no_network_says_how_to_get_the_data_by_hand(monkeypatch: pytest.MonkeyPatch, cache_directory: Path) -> None:
    monkeypatch.setattr(huggingface, "hub_reachable", lambda: False)
    with pytest.raises(
        UserError, match=r"could not download uoft-cs/cifar100 .*hf download uoft-cs/cifar100.*--data-dir"
    ):
        load(None)
    assert [child for child in cache_directory.iterdir() if child.is_dir()] == []


def test_listing_says_what_is_there(miniature: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def present() -> str:
        return next(row for row in describe_benchmarks() if row.name == "split-cifar100-5").present

    assert present() == "no: fetched from the hub when needed"
    monkeypatch.setenv("OSIRIS_DATA", str(miniature))
    assert present() == "local files, not yet cached"
    load(None)
    assert present() == "cached, a part only"
    monkeypatch.setenv("OSIRIS_DATA", str(miniature / "nowhere"))
    assert present().startswith("damaged: OSIRIS_DATA:")


def test_a_complete_entry_serves_without_the_files(miniature: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`osiris data NAME --data-dir D` on the login node, `osiris train --benchmark NAME` on a node without network."""
    filled = load_benchmark(BenchmarkConfig("split-cifar100-5", data_dir=miniature))
    assert filled.location is not None
    monkeypatch.setattr(huggingface, "hub_reachable", lambda: False)
    with pytest.raises(UserError, match="could not download"):
        load(None)
    monkeypatch.setattr(cache, "missing_images", lambda *_: [])
    assert load_benchmark(BenchmarkConfig("split-cifar100-5")).location == filled.location


@pytest.mark.parametrize("name", ["cifar100", "cifar100-photos"])
def test_own_images_of_a_known_name_are_not_the_known_data(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed, label in enumerate(("cat", "dog")):
        write_pictures(tmp_path / name / label, 3, seed)
    own = load_benchmark(BenchmarkConfig(f"split-folder:{tmp_path / name}-2", image_size=32))
    assert own.location is not None and own.location.name.startswith("cifar100-")
    episode_from(tmp_path / name, name, 32)
    assert len(describe_benchmarks()) > 4
    monkeypatch.setattr(cache, "missing_images", lambda *_: [])
    rows = [row for row in describe_benchmarks() if "cifar100" in row.name]
    assert {row.present for row in rows} == {"no: fetched from the hub when needed"}
