"""Benchmark names, and the facts about known data sets (checked without the data)."""

from pathlib import Path

import pytest

from osiris.data.benchmarks import load_benchmark
from osiris.data.config import BenchmarkConfig
from osiris.data.names import parse_name
from osiris.errors import UserError


@pytest.mark.parametrize(
    ("name", "kind", "place", "task_count"),
    [
        ("tinyworld", "known", "tinyworld", 10),
        ("split-tinyworld-4", "known", "tinyworld", 4),
        ("split-cifar100-25", "known", "cifar100", 25),
        ("folder:photos-5", "folder", "photos-5", None),
        ("split-folder:photos-5-3", "folder", "photos-5", 3),
        ("arrays:a.npz", "arrays", "a.npz", None),
        ("dataset:someone/birds@small", "dataset", "someone/birds@small", None),
        ("split-someone/birds-3", "dataset", "someone/birds", 3),
    ],
)
def test_parts_of_a_name(name: str, kind: str, place: str, task_count: int | None) -> None:
    parsed = parse_name(name)
    assert (parsed.kind, parsed.place, parsed.task_count) == (kind, place, task_count)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("split-cifar100-0", "cannot be divided into 0 tasks"),
        ("split-cifar100-7", "of the same size. Choose one of these numbers of tasks: 1, 2, 4, 5, 10, 20, 25, 50, 100"),
        ("split-tinyworld-80", "the 40 classes of tinyworld cannot be divided into 80 tasks"),
        ("splt-cifar100-5", "Did you mean 'split-cifar100-5'"),
        ("folder:", "unknown benchmark 'folder:'"),
        ("split-nothing-3", "unknown benchmark"),
    ],
)
def test_wrong_names_are_refused_before_any_data_is_read(name: str, message: str, cache_directory: Path) -> None:
    with pytest.raises(UserError, match=message):
        load_benchmark(BenchmarkConfig(name))
    assert not cache_directory.exists()


def test_a_folder_without_its_prefix_is_recognised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "photos").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"Did you mean the folder, folder:photos\?"):
        parse_name("photos")
