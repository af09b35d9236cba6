import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from osiris.data import orders
from osiris.errors import UserError

NAMES = ("ant", "bee", "cat", "dog", "eel")


def choose(task_count: int, class_order: str | None, default: list[str] | None = None) -> orders.Tasks:
    return orders.choose_tasks("split-x", NAMES, (), task_count, default, class_order)


def test_default_is_label_order_in_consecutive_slices() -> None:
    assert choose(2, None) == ((0, 1, 2), (3, 4))


def test_packaged_orders_are_permutations() -> None:
    for dataset, classes in (("cifar100", 100), ("tiny-imagenet", 200)):
        random, structured = (orders.packaged_order(dataset, order) for order in ("random", "structured"))
        assert len(random) == classes and len(set(random)) == classes
        assert set(random) == set(structured) and random != structured
    assert set(orders.tiny_imagenet_words()) == set(orders.packaged_order("tiny-imagenet", "random"))


@given(st.integers(1, 60), st.integers(1, 60))
def test_cut_keeps_every_class_once_and_is_even(classes: int, tasks: int) -> None:
    if tasks > classes:
        with pytest.raises(UserError, match="cannot be divided"):
            orders.cut(range(classes), tasks, "x")
        return
    cut = orders.cut(range(classes), tasks, "x")
    assert [label for task in cut for label in task] == list(range(classes))
    assert max(map(len, cut)) - min(map(len, cut)) <= 1


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
    assert orders.resolve(["n2", "ant"], ["ant", "bee"], ["n1", "n2"], "x") == [1, 0]
