"""From a data set to a benchmark: tasks by class or by episode, a number of images per class, a checksum."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from osiris.data import orders
from osiris.data.base import Benchmark, Images, Split
from osiris.data.config import BenchmarkConfig
from osiris.errors import UserError

Statistics = tuple[float, float, float]


@dataclass(frozen=True)
class Part:
    """The training or the test images of a data set."""

    images: Images
    label: np.ndarray | None
    episode: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.images)


@dataclass(frozen=True)
class Source:
    """A data set before it is cut into tasks."""

    name: str
    train: Part
    test: Part | None
    class_names: tuple[str, ...]
    mean: Statistics
    std: Statistics
    checksum: str
    class_aliases: tuple[str, ...] = ()
    """Further names of the classes, such as WordNet ids, that a class order may use."""
    episode_names: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()
    location: Path | None = None
    """Its entry in the cache."""


def rank_in_group(group: np.ndarray) -> np.ndarray:
    """For each row how many rows of the same group come before it."""
    by_group = np.argsort(group, kind="stable")
    ordered = group[by_group]
    rank = np.empty(len(group), dtype=np.int64)
    rank[by_group] = np.arange(len(group)) - np.searchsorted(ordered, ordered, side="left")
    return rank


def first_of_each(group: np.ndarray, limit: int | None) -> np.ndarray:
    """Which rows are among the first `limit` of their group: the same ones for every seed."""
    return np.ones(len(group), dtype=bool) if limit is None else rank_in_group(group) < limit


def by_class(
    name: str,
    source: Source,
    tasks: orders.Tasks,
    config: BenchmarkConfig,
    environments: Sequence[tuple[str, tuple[int, ...]]] = (),
    task_names: tuple[str, ...] = (),
) -> Benchmark:
    """Each class belongs to one task."""
    if source.train.label is None:
        raise UserError(f"{name}: cutting {source.name} into tasks by class needs labels, and it has none.")
    order = _task_order(len(tasks), config)
    tasks = tuple(tasks[old] for old in order)
    environments = tuple((place, tuple(sorted(order.index(old) for old in olds))) for place, olds in environments)
    task_of_label = np.full(len(source.class_names), -1, dtype=np.int64)
    for task, labels in enumerate(tasks):
        task_of_label[list(labels)] = task
    assert (task_of_label >= 0).all()
    train_task = task_of_label[source.train.label]
    test_task = None
    if source.test is not None:
        assert source.test.label is not None
        test_task = task_of_label[source.test.label]
    task_names = tuple(task_names[old] for old in order) if task_names else ()
    return _benchmark(name, source, train_task, test_task, tasks, config, tuple(environments), task_names)


def by_episode(name: str, source: Source, config: BenchmarkConfig) -> Benchmark:
    """Each image belongs to the task of its episode; a class may come back in several."""
    assert source.train.episode is not None
    order = _task_order(len(source.episode_names), config)
    task_of_episode = np.argsort(np.asarray(order, dtype=np.int64))
    train_task = task_of_episode[source.train.episode]
    test_task = None
    if source.test is not None:
        assert source.test.episode is not None
        test_task = task_of_episode[source.test.episode]
    tasks: orders.Tasks = tuple(() for _ in order)
    if source.train.label is not None:
        labels = source.train.label
        tasks = tuple(tuple(np.unique(labels[train_task == task]).tolist()) for task in range(len(order)))
    names = tuple(source.episode_names[old] for old in order)
    return _benchmark(name, source, train_task, test_task, tasks, config, (), names)


def _task_order(task_count: int, config: BenchmarkConfig) -> list[int]:
    if config.shuffle_tasks is None:
        return list(range(task_count))
    return orders.shuffle(task_count, config.shuffle_tasks)


def _benchmark(
    name: str,
    source: Source,
    train_task: np.ndarray,
    test_task: np.ndarray | None,
    tasks: orders.Tasks,
    config: BenchmarkConfig,
    environments: tuple[tuple[str, tuple[int, ...]], ...],
    task_names: tuple[str, ...],
) -> Benchmark:
    for option in ("train_per_class", "bank_per_class", "test_per_class"):
        limit = getattr(config, option)
        if limit is not None and limit < 1:
            raise UserError(f"--{option.replace('_', '-')} {limit}: at least one image per class is needed.")
    digest = hashlib.sha256(source.checksum.encode())
    digest.update(repr((source.class_names, tasks)).encode())
    notices = list(source.notices)
    train = _split(source.train, train_task, config.train_per_class, digest)
    bank = _split(source.train, train_task, config.bank_per_class, digest)
    test = None
    if source.test is not None and test_task is not None:
        test = _split(source.test, test_task, config.test_per_class, digest)
        notices += _without_tests(test, len(tasks), task_names)
    if source.train.label is None and (config.train_per_class or config.bank_per_class):
        notices.append("there are no labels: the limits of images per class do not apply, all images are used.")
    return Benchmark(
        name=name,
        train=train,
        bank=bank,
        test=test,
        class_names=source.class_names,
        tasks=tasks,
        task_names=task_names,
        mean=source.mean,
        std=source.std,
        environments=environments,
        checksum=digest.hexdigest(),
        notices=tuple(notices),
        location=source.location,
    )


def _split(part: Part, task: np.ndarray, limit: int | None, digest: hashlib._Hash) -> Split:
    """The first `limit` images of each class in each task, in the data set's order; all of them without labels."""
    kept = np.arange(len(task))
    if part.label is not None:
        kept = np.flatnonzero(first_of_each(task * (part.label.max(initial=0) + 1) + part.label, limit))
    for rows in (kept, task[kept], None if part.label is None else part.label[kept]):
        digest.update(b"none" if rows is None else np.ascontiguousarray(rows, dtype="<i8").tobytes())
    label = None if part.label is None else torch.from_numpy(part.label.astype(np.int64))
    whole = Split(part.images, torch.from_numpy(task.astype(np.int64)), label)
    return whole if len(kept) == len(task) else whole.select(torch.from_numpy(kept))


def _without_tests(test: Split, task_count: int, task_names: tuple[str, ...]) -> list[str]:
    missing = sorted(set(range(task_count)) - set(test.task.unique().tolist()))
    if not missing:
        return []
    names = ", ".join(repr(task_names[task]) if task_names else str(task + 1) for task in missing)
    return [f"task(s) {names} have no test images: their accuracy cannot be computed."]
