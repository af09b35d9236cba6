"""Benchmark names, class orders, and the facts about known data sets (checked without the data)."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from osiris.data.catalogue import Tasks, choose_tasks, cut, labels_of, packaged_order, parse_name, tiny_imagenet_words
from osiris.data.config import BenchmarkConfig
from osiris.data.load import load_benchmark
from osiris.errors import UserError

NAMES = ("ant", "bee", "cat", "dog", "eel")


def choose(task_count: int, class_order: str | None, default: list[str] | None = None) -> Tasks:
    return choose_tasks("split-x", NAMES, (), task_count, default, class_order)


def test_default_is_label_order_in_consecutive_slices() -> None:
    assert choose(2, None) == ((0, 1, 2), (3, 4))


def test_packaged_orders_are_permutations() -> None:
    for dataset, classes in (("cifar100", 100), ("tiny-imagenet", 200)):
        random, structured = (packaged_order(dataset, order) for order in ("random", "structured"))
        assert len(random) == classes and len(set(random)) == classes
        assert set(random) == set(structured) and random != structured
    assert set(tiny_imagenet_words()) == set(packaged_order("tiny-imagenet", "random"))


@given(st.integers(1, 60), st.integers(1, 60))
def test_cut_keeps_every_class_once_and_is_even(classes: int, tasks: int) -> None:
    if tasks > classes:
        with pytest.raises(UserError, match="cannot be divided"):
            cut(range(classes), tasks, "x")
        return
    parts = cut(range(classes), tasks, "x")
    assert [label for task in parts for label in task] == list(range(classes))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_seed_gives_a_random_order_that_is_a_function_of_the_seed() -> None:
    assert choose(5, "seed:1") == choose(5, "seed:1")
    assert len({choose(5, f"seed:{seed}") for seed in range(20)}) > 10
    assert sorted(label for task in choose(2, "seed:7") for label in task) == [0, 1, 2, 3, 4]


def test_order_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "order.json"
    path.write_text(json.dumps(["eel", "dog", "cat", "bee", "ant"]))
    assert choose(5, str(path)) == ((4,), (3,), (2,), (1,), (0,))
    path.write_text(json.dumps([["eel"], ["dog", "cat", "bee", "ant"]]))
    assert choose(2, str(path)) == ((4,), (3, 2, 1, 0))
    with pytest.raises(UserError, match="lists 2 tasks, the benchmark has 5"):
        choose(5, str(path))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('["ant", "bee", "cat", "dog", "fox"]', "each of the 5 classes once .1 unknown: 'fox'; 1 missing: 'eel'"),
        ('["ant", "bee", "cat"]', "2 missing: 'dog', 'eel'"),
        ('["ant", "ant", "bee", "cat", "dog", "eel"]', "1 named more than once: 'ant'"),
        ('{"ant": 1}', "not a list of class names"),
        ("[1, 2]", "not a list of class names"),
        ("[]", "not a list of class names"),
        ("[", "not a list of class names"),
        ('["ant", ["bee", "cat", "dog", "eel"]]', "not a list of class names"),
        ('[[], ["ant", "bee", "cat", "dog", "eel"]]', "empty task"),
    ],
)
def test_bad_orders(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "order.json"
    path.write_text(content)
    with pytest.raises(UserError, match=message):
        choose(2, str(path))


@pytest.mark.parametrize(("order", "message"), [("seed:x", "seed:N"), ("nowhere.json", "cannot read the class order")])
def test_bad_order_arguments(order: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        choose(2, order)


def test_aliases_name_classes_too() -> None:
    assert labels_of(["n2", "ant"], ["ant", "bee"], ["n1", "n2"], "x") == [1, 0]


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
