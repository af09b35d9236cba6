from dataclasses import replace

import numpy as np
import pytest
import torch

from osiris.config import Config, with_options
from osiris.data.benchmark import by_class, by_episode, content_differences, first_of_each
from osiris.data.config import BenchmarkConfig
from osiris.data.dataset import Dataset
from osiris.data.images import ArrayImages
from osiris.errors import UserError

LABELS = [2, 0, 1, 0, 2, 1, 2, 0]
TWO_EPISODES = [0, 0, 0, 0, 1, 1, 1, 1]


def dataset(episode: list[int] | None = None, label: list[int] | None = None) -> Dataset:
    """Eight training and three test images; image i has the value i everywhere."""
    count = len(LABELS) + 3
    rows = {
        "test": np.arange(count) >= len(LABELS),
        "label": np.asarray([*(label or LABELS), 0, 1, 2]),
        "check": np.arange(count, dtype=np.uint32),
    }
    rows |= {} if episode is None else {"episode": np.asarray([*episode, 0, 0, 1])}
    images = ArrayImages(np.repeat(np.arange(count, dtype=np.uint8), 3 * 2 * 2).reshape(count, 3, 2, 2))
    return Dataset("numbers", images, rows, ("a", "b", "c"), ("one", "two"), "content")


def changed(base: Dataset, **columns) -> Dataset:
    """Other columns of its rows; None removes one."""
    rows = {name: column for name, column in (base.rows | columns).items() if column is not None}
    return replace(base, rows=rows)


def values(split) -> list[int]:
    return split.images.take(torch.arange(len(split)))[:, 0, 0, 0].tolist()


def test_first_of_each() -> None:
    group = np.asarray([5, 1, 5, 5, 1, 2])
    assert first_of_each(group, 2).tolist() == [True, True, True, False, True, True]
    assert first_of_each(group, 1).tolist() == [True, True, False, False, False, True]
    assert first_of_each(group, None).all()


def test_tasks_by_class() -> None:
    benchmark = by_class("x", dataset(), ((2,), (0, 1)), BenchmarkConfig())
    assert benchmark.train.task.tolist() == [0, 1, 1, 1, 0, 1, 0, 1]
    assert benchmark.training_indices(0).tolist() == [0, 4, 6]
    assert benchmark.test is not None and benchmark.test.task.tolist() == [1, 1, 0]
    assert values(benchmark.test) == [8, 9, 10]
    assert benchmark.labelled and benchmark.class_count == 3 and benchmark.task_count == 2


def test_limits_take_the_first_of_each_class() -> None:
    config = BenchmarkConfig(train_per_class=1, bank_per_class=2)
    benchmark = by_class("x", dataset(), ((2,), (0, 1)), config)
    assert values(benchmark.train) == [0, 1, 2]
    assert benchmark.train.label is not None and benchmark.train.label.tolist() == [2, 0, 1]
    assert values(benchmark.bank) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("option", ["train_per_class", "bank_per_class", "test_per_class"])
def test_limits_must_be_positive(option: str) -> None:
    with pytest.raises(UserError, match=f"--{option.replace('_', '-')} 0"):
        with_options(Config(), {option: 0})


def test_shuffled_tasks_keep_their_environments() -> None:
    tasks = ((0,), (1,), (2,))
    environments = [("inside", (0, 1)), ("outside", (2,))]
    shuffled = by_class("x", dataset(), tasks, BenchmarkConfig(shuffle_tasks=3), environments)
    assert sorted(shuffled.tasks) == sorted(tasks)
    assert {shuffled.tasks[task] for task in dict(shuffled.environments)["inside"]} == {(0,), (1,)}
    orders = {by_class("x", dataset(), tasks, BenchmarkConfig(shuffle_tasks=seed)).tasks for seed in range(20)}
    assert len(orders) == 6


def test_a_class_may_come_in_two_episodes_and_limits_count_in_each() -> None:
    benchmark = by_episode("x", dataset(episode=TWO_EPISODES), BenchmarkConfig(train_per_class=1))
    assert benchmark.tasks == ((0, 1, 2), (0, 1, 2))
    assert benchmark.task_names == ("one", "two")
    assert values(benchmark.train) == [0, 1, 2, 4, 5, 7]


def test_shuffled_episodes() -> None:
    three = replace(dataset(episode=[0, 0, 0, 1, 1, 1, 2, 2]), episode_names=("one", "two", "three"))
    shuffled = [by_episode("x", three, BenchmarkConfig(shuffle_tasks=seed)) for seed in range(30)]
    assert len({benchmark.task_names for benchmark in shuffled}) == 6
    for benchmark in shuffled:
        names = [benchmark.task_names[task] for task in benchmark.train.task.tolist()]
        assert names == ["one"] * 3 + ["two"] * 3 + ["three"] * 2


def test_a_task_without_test_images_is_reported() -> None:
    episode = np.asarray([*TWO_EPISODES, 0, 0, 0])
    benchmark = by_episode("x", changed(dataset(), episode=episode), BenchmarkConfig())
    assert "task(s) 'two' have no test images" in benchmark.notices[0]


def test_without_labels_all_images_are_used() -> None:
    bare = changed(dataset(episode=TWO_EPISODES), label=None, test=np.zeros(11, dtype=bool))
    benchmark = by_episode("x", bare, BenchmarkConfig(train_per_class=2))
    assert values(benchmark.train) == list(range(11))
    assert benchmark.tasks == ((), ()) and not benchmark.labelled
    assert any("do not apply, all images are used" in text for text in benchmark.notices)
    with pytest.raises(UserError, match="needs labels"):
        by_class("x", bare, ((0,), (1, 2)), BenchmarkConfig())


def test_checksum_covers_images_split_and_limits() -> None:
    tasks = ((2,), (0, 1))
    checksum = by_class("x", dataset(), tasks, BenchmarkConfig()).checksum
    assert by_class("y", dataset(), tasks, BenchmarkConfig()).checksum == checksum
    others = [
        by_class("x", dataset(), ((0, 1), (2,)), BenchmarkConfig()),
        by_class("x", dataset(), tasks, BenchmarkConfig(test_per_class=1, bank_per_class=1)),
        by_class("x", dataset(label=[2, 0, 1, 0, 2, 1, 2, 1]), tasks, BenchmarkConfig()),
        by_class("x", replace(dataset(), checksum="other pixels"), tasks, BenchmarkConfig()),
        by_class("x", replace(dataset(), class_names=("a", "b", "z")), tasks, BenchmarkConfig()),
    ]
    assert len({checksum, *(other.checksum for other in others)}) == 6


def test_what_changed_in_each_task() -> None:
    whole = dataset(episode=TWO_EPISODES)

    def contents(other: Dataset):
        return by_episode("x", other, BenchmarkConfig()).contents

    before = contents(whole)
    assert content_differences(before, contents(whole)) == []
    one, two = "one with 4 training and 2 test images", "two with 4 training and 1 test images"
    assert content_differences(before, before[:1]) == [f"task 2 was {two} before and is missing now"]
    assert content_differences(before[:1], before) == [f"task 2 was missing before and is {two} now"]
    check, label = whole.rows["check"].copy(), whole.rows["label"].copy()
    check[:2], label[:2] = check[1::-1], label[1::-1]
    for other in (changed(whole, check=whole.rows["check"] + 50), changed(whole, check=check, label=label)):
        assert content_differences(before, contents(other))[0] == (
            f"some images or labels of task 1 ({one}) or their order have changed"
        )
    moved = changed(whole, episode=np.asarray([0, 0, 0, 1, 1, 1, 1, 1, 0, 0, 1]))
    moved = replace(moved, episode_names=("one", "2"))
    assert content_differences(before, contents(moved)) == [
        f"task 1 was {one} before and is one with 3 training and 2 test images now",
        f"task 2 was {two} before and is 2 with 5 training and 1 test images now",
    ]
