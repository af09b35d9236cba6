from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from osiris.data.assemble import Part, Source, by_class, by_episode, first_of_each
from osiris.data.base import ArrayImages
from osiris.data.config import BenchmarkConfig
from osiris.errors import UserError


def numbered(count: int) -> ArrayImages:
    """Image i has the value i everywhere."""
    return ArrayImages(np.repeat(np.arange(count, dtype=np.uint8), 3 * 2 * 2).reshape(count, 3, 2, 2))


def source(episode: list[int] | None = None, label: list[int] | None = None) -> Source:
    labels = np.asarray([2, 0, 1, 0, 2, 1, 2, 0] if label is None else label)
    episodes = None if episode is None else np.asarray(episode)
    return Source(
        name="numbers",
        train=Part(numbered(len(labels)), labels, episodes),
        test=Part(numbered(3), np.asarray([0, 1, 2]), None if episode is None else np.asarray([0, 0, 1])),
        class_names=("a", "b", "c"),
        mean=(0.5, 0.5, 0.5),
        std=(0.2, 0.2, 0.2),
        checksum="content",
        episode_names=("one", "two"),
    )


def values(split) -> list[int]:
    return split.images.take(torch.arange(len(split)))[:, 0, 0, 0].tolist()


def test_first_of_each() -> None:
    group = np.asarray([5, 1, 5, 5, 1, 2])
    assert first_of_each(group, 2).tolist() == [True, True, True, False, True, True]
    assert first_of_each(group, 1).tolist() == [True, True, False, False, False, True]
    assert first_of_each(group, None).all()


def test_tasks_by_class() -> None:
    benchmark = by_class("x", source(), ((2,), (0, 1)), BenchmarkConfig())
    assert benchmark.train.task.tolist() == [0, 1, 1, 1, 0, 1, 0, 1]
    assert benchmark.training_indices(0).tolist() == [0, 4, 6]
    assert benchmark.test is not None and benchmark.test.task.tolist() == [1, 1, 0]
    assert benchmark.labelled and benchmark.class_count == 3 and benchmark.task_count == 2


def test_limits_take_the_first_of_each_class() -> None:
    config = BenchmarkConfig(train_per_class=1, bank_per_class=2)
    benchmark = by_class("x", source(), ((2,), (0, 1)), config)
    assert values(benchmark.train) == [0, 1, 2]
    assert benchmark.train.label is not None and benchmark.train.label.tolist() == [2, 0, 1]
    assert values(benchmark.bank) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("option", ["train_per_class", "bank_per_class", "test_per_class"])
def test_limits_must_be_positive(option: str) -> None:
    with pytest.raises(UserError, match=f"--{option.replace('_', '-')} 0"):
        by_class("x", source(), ((0,), (1, 2)), replace(BenchmarkConfig(), **{option: 0}))


def test_shuffled_tasks_keep_their_environments() -> None:
    config = BenchmarkConfig(shuffle_tasks=3)
    tasks = ((0,), (1,), (2,))
    shuffled = by_class("x", source(), tasks, config, [("inside", (0, 1)), ("outside", (2,))])
    assert sorted(shuffled.tasks) == sorted(tasks)
    inside = dict(shuffled.environments)["inside"]
    assert {shuffled.tasks[task] for task in inside} == {(0,), (1,)}
    orders = {by_class("x", source(), tasks, BenchmarkConfig(shuffle_tasks=seed)).tasks for seed in range(20)}
    assert len(orders) == 6


def test_a_class_may_come_in_two_episodes_and_limits_count_in_each() -> None:
    two = source(episode=[0, 0, 0, 0, 1, 1, 1, 1])
    benchmark = by_episode("x", two, BenchmarkConfig(train_per_class=1))
    assert benchmark.tasks == ((0, 1, 2), (0, 1, 2))
    assert benchmark.task_names == ("one", "two")
    assert values(benchmark.train) == [0, 1, 2, 4, 5, 7]


def test_shuffled_episodes() -> None:
    three = Source(**{**vars(source(episode=[0, 0, 0, 1, 1, 1, 2, 2])), "episode_names": ("one", "two", "three")})
    shuffled = [by_episode("x", three, BenchmarkConfig(shuffle_tasks=seed)) for seed in range(30)]
    assert len({benchmark.task_names for benchmark in shuffled}) == 6
    for benchmark in shuffled:
        names = [benchmark.task_names[task] for task in benchmark.train.task.tolist()]
        assert names == ["one"] * 3 + ["two"] * 3 + ["three"] * 2


def test_a_task_without_test_images_is_told() -> None:
    whole = source(episode=[0, 0, 0, 0, 1, 1, 1, 1])
    assert whole.test is not None
    short = Source(**{**vars(whole), "test": Part(whole.test.images, whole.test.label, np.zeros(3, dtype=np.int64))})
    assert "task(s) 'two' have no test images" in by_episode("x", short, BenchmarkConfig()).notices[0]


def test_without_labels_all_images_are_used() -> None:
    labelled = source(episode=[0, 0, 0, 0, 1, 1, 1, 1])
    bare = Source(
        **{**vars(labelled), "train": Part(labelled.train.images, None, labelled.train.episode), "test": None}
    )
    benchmark = by_episode("x", bare, BenchmarkConfig(train_per_class=2))
    assert values(benchmark.train) == [0, 1, 2, 3, 4, 5, 6, 7]
    assert benchmark.tasks == ((), ()) and not benchmark.labelled
    assert any("do not apply, all images are used" in text for text in benchmark.notices)
    with pytest.raises(UserError, match="needs labels"):
        by_class("x", bare, ((0,), (1, 2)), BenchmarkConfig())


def test_checksum_covers_images_split_and_limits() -> None:
    tasks = ((2,), (0, 1))
    checksum = by_class("x", source(), tasks, BenchmarkConfig()).checksum
    assert by_class("y", source(), tasks, BenchmarkConfig()).checksum == checksum
    others = [
        by_class("x", source(), ((0, 1), (2,)), BenchmarkConfig()),
        by_class("x", source(), tasks, BenchmarkConfig(test_per_class=1, bank_per_class=1)),
        by_class("x", source(label=[2, 0, 1, 0, 2, 1, 2, 1]), tasks, BenchmarkConfig()),
        by_class("x", Source(**{**vars(source()), "checksum": "other pixels"}), tasks, BenchmarkConfig()),
        by_class("x", Source(**{**vars(source()), "class_names": ("a", "b", "z")}), tasks, BenchmarkConfig()),
    ]
    assert len({checksum, *(other.checksum for other in others)}) == 6
