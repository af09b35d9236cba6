"""A benchmark: the images of a data set divided into tasks by class or by episode, with labels for evaluation if there
are any."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import TypedDict

import numpy as np
import torch
from torch import Tensor

from osiris.data.catalogue import EPISODES, IMAGENET_MEAN, IMAGENET_STD, Channels, Tasks, task_order
from osiris.data.config import BenchmarkConfig
from osiris.data.dataset import Dataset, rank_in_group
from osiris.data.images import Images, Subset
from osiris.errors import UserError

Environments = Sequence[tuple[str, tuple[int, ...]]]


@dataclass(frozen=True)
class Split:
    """Images with the task of each and, for evaluation only, their labels."""

    images: Images
    task: Tensor
    """int64 [N]: the task (episode) of each image, 0 to T-1."""
    label: Tensor | None = None
    """int64 [N]: the class of each image, or None. The learner never sees it."""

    def __post_init__(self) -> None:
        assert len(self.images) == len(self.task), (len(self.images), len(self.task))
        assert self.label is None or len(self.label) == len(self.task)

    def __len__(self) -> int:
        return len(self.task)


class TaskContent(TypedDict):
    """The images of one task in short (JSON-ready), so that a resumed run can tell whether they have changed."""

    name: str
    train: int
    test: int
    order: str
    """Digest of all images and labels in their order."""


@dataclass(frozen=True)
class Order:
    """The training images as one stream."""

    name: str
    """As `--stream` writes it."""
    rows: Tensor
    """int64 [N]: indices into `train`, one for each position of the stream."""
    starts: tuple[int, ...]
    """Positions at which a task begins, without the first; empty if the order knows no tasks."""


@dataclass(frozen=True)
class Benchmark:
    """A sequence of tasks. The learner sees `train`; the KNN searches `bank` for neighbours of the images of `test`."""

    name: str
    train: Split
    bank: Split
    test: Split | None
    class_names: tuple[str, ...]
    """The name of each label; empty without labels."""
    tasks: tuple[tuple[int, ...], ...]
    """The labels of each task; empty tuples without labels."""
    mean: Channels
    std: Channels
    """Channel statistics for normalisation, images in [0, 1]."""
    environments: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """(name, indices of its tasks) where tasks are grouped, such as indoor, city, wild."""
    checksum: str = ""
    """Identifies the images and their division into tasks; part of the protocol fingerprint."""
    notices: tuple[str, ...] = ()
    """What the user should know, such as `only 50 of 500 images per class are present`."""
    task_names: tuple[str, ...] = ()
    """The names of the episodes (folders, dates, places); empty where tasks consist of classes."""
    location: Path | None = None
    """Directory of the cache entry that holds the images and the list of skipped ones, if there is one."""
    contents: tuple[TaskContent, ...] = ()
    """The images of each task in short; see `content_differences`."""
    learned: int = 0
    """How many tasks at the beginning were learned before: their images are not at hand any more."""
    order: Order | None = None
    """The order in which all tasks are learned as one stream (osiris.data.stream); None: one task after the other."""

    @property
    def task_count(self) -> int:
        return len(self.tasks)

    @property
    def class_count(self) -> int:
        return len(self.class_names)

    @property
    def train_images(self) -> int:
        """The number of training images of all tasks, those that are not at hand any more included."""
        return len(self.train) + sum(content["train"] for content in self.contents[: self.learned])

    @property
    def labelled(self) -> bool:
        return self.test is not None and self.test.label is not None and self.bank.label is not None

    def training_indices(self, task: int) -> Tensor:
        """Indices into `train` of one task's images."""
        return torch.nonzero(self.train.task == task).squeeze(1)

    def training_rows(self, task: Tensor, position: Tensor) -> Tensor:
        """Indices into `train` of images that are given by task and position in it, as the memory records them."""
        if self.order is not None:
            return self.order.rows[position]
        rows = torch.full_like(position, -1)
        for one in task.unique().tolist():
            members, chosen = self.training_indices(one), task == one
            rows[chosen] = members[position[chosen]]
        return rows


def grown(past: Sequence[TaskContent], episode: Benchmark) -> Benchmark:
    """Some tasks that were learned before, and the images of one episode as the next task.

    The images of earlier tasks are gone, so the features are evaluated on those of the new one, without labels.
    """
    contents = (*past, episode.contents[0])
    split = Split(episode.train.images, torch.full((len(episode.train),), len(past)))
    return Benchmark(
        name=EPISODES,
        train=split,
        bank=split,
        test=None,
        class_names=(),
        tasks=((),) * len(contents),
        mean=episode.mean,
        std=episode.std,
        checksum=hashlib.sha256(repr(list(contents)).encode()).hexdigest(),
        notices=episode.notices,
        task_names=tuple(content["name"] for content in contents),
        contents=contents,
        learned=len(past),
    )


def content_differences(before: Sequence[TaskContent], now: Sequence[TaskContent]) -> list[str]:
    """One sentence for each task whose images have changed; empty if nothing has changed."""

    def describe(content: TaskContent | None) -> str:
        if content is None:
            return "missing"
        return f"{content['name']} with {content['train']:,} training and {content['test']:,} test images"

    differences: list[str] = []
    for number, (old, new) in enumerate(zip_longest(before, now), start=1):
        texts = describe(old), describe(new)
        if texts[0] != texts[1]:
            differences.append(f"task {number} was {texts[0]} before and is {texts[1]} now")
        elif old != new:
            differences.append(f"some images or labels of task {number} ({texts[0]}) or their order have changed")
    return differences


def by_class(
    name: str,
    dataset: Dataset,
    tasks: Tasks,
    config: BenchmarkConfig,
    environments: Environments = (),
    task_names: tuple[str, ...] = (),
) -> Benchmark:
    """Each class belongs to one task."""
    if dataset.label is None:
        raise UserError(
            f"{name}: dividing {dataset.name} into tasks by class needs labels, and it has none. Leave out split- to "
            "use its episodes as tasks."
        )
    order = task_order(len(tasks), config.shuffle_tasks)
    tasks = tuple(tasks[old] for old in order)
    environments = tuple((place, tuple(sorted(order.index(old) for old in olds))) for place, olds in environments)
    task_of_label = np.full(len(dataset.class_names), -1, dtype=np.int64)
    for task, labels in enumerate(tasks):
        task_of_label[list(labels)] = task
    assert (task_of_label >= 0).all()
    names = tuple(task_names[old] for old in order) if task_names else ()
    return _benchmark(name, dataset, task_of_label[dataset.label], tasks, config, environments, names)


def by_episode(name: str, dataset: Dataset, config: BenchmarkConfig) -> Benchmark:
    """Each image belongs to the task of its episode; a class may occur in several."""
    order = task_order(len(dataset.episode_names), config.shuffle_tasks)
    task = np.argsort(np.asarray(order, dtype=np.int64))[dataset.rows["episode"]]
    tasks: Tasks = tuple(() for _ in order)
    if dataset.label is not None:
        train = ~dataset.test
        tasks = tuple(tuple(np.unique(dataset.label[train & (task == t)]).tolist()) for t in range(len(order)))
    names = tuple(dataset.episode_names[old] for old in order)
    return _benchmark(name, dataset, task, tasks, config, (), names)


def _benchmark(
    name: str,
    dataset: Dataset,
    task: np.ndarray,
    tasks: Tasks,
    config: BenchmarkConfig,
    environments: Environments,
    task_names: tuple[str, ...],
) -> Benchmark:
    digest = hashlib.sha256(dataset.checksum.encode())
    digest.update(repr((dataset.class_names, tasks)).encode())
    train = _split(dataset, np.flatnonzero(~dataset.test), task, config.train_per_class, digest)
    bank = _split(dataset, np.flatnonzero(~dataset.test), task, config.bank_per_class, digest)
    contents = tuple(_content(dataset, task == t, t, task_names) for t in range(len(tasks)))
    test = None
    notices = list(dataset.notices)
    if dataset.test.any():
        test = _split(dataset, np.flatnonzero(dataset.test), task, config.test_per_class, digest)
        missing = ", ".join(repr(one["name"]) if task_names else one["name"] for one in contents if not one["test"])
        notices += [f"task(s) {missing} have no test images: their accuracy cannot be computed."] if missing else []
    each = np.unique(((task << 32) + dataset.rows["check"].astype(np.int64))[~dataset.test]) >> 32
    distinct = np.bincount(each, minlength=len(tasks))
    same = ", ".join(repr(one["name"]) for one, count in zip(contents, distinct) if count == 1 < one["train"])
    notices += [f"all images in task(s) {same} are copies of one image: there is nothing to learn."] if same else []
    if dataset.label is None and (config.train_per_class or config.bank_per_class):
        notices.append("there are no labels: limits on the images per class do not apply, all images are used.")
    return Benchmark(
        name=name,
        train=train,
        bank=bank,
        test=test,
        class_names=dataset.class_names,
        tasks=tasks,
        task_names=task_names,
        mean=dataset.known.mean if dataset.known else IMAGENET_MEAN,
        std=dataset.known.std if dataset.known else IMAGENET_STD,
        environments=tuple(environments),
        checksum=digest.hexdigest(),
        notices=tuple(notices),
        location=dataset.location,
        contents=contents,
    )


def first_of_each(group: np.ndarray, limit: int | None) -> np.ndarray:
    """Whether each row is among the first `limit` of its group: the same rows for every seed."""
    return np.ones(len(group), dtype=bool) if limit is None else rank_in_group(group) < limit


def _split(dataset: Dataset, rows: np.ndarray, task: np.ndarray, limit: int | None, digest: hashlib._Hash) -> Split:
    """The first `limit` images of each class in each task, in the data set's order; all of them without labels."""
    chosen, label = np.arange(len(rows)), dataset.label
    if label is not None:
        cell = task[rows] * (label[rows].max(initial=0) + 1) + label[rows]
        chosen = np.flatnonzero(first_of_each(cell, limit))
        label = torch.from_numpy(label[rows[chosen]].astype(np.int64))
    of_task = torch.from_numpy(task[rows[chosen]].astype(np.int64))
    for column in (chosen, of_task, label):
        digest.update(b"none" if column is None else np.ascontiguousarray(column, dtype="<i8").tobytes())
    return Split(Subset(dataset.images, torch.from_numpy(rows[chosen])), of_task, label)


def _content(dataset: Dataset, member: np.ndarray, task: int, task_names: tuple[str, ...]) -> TaskContent:
    columns = [dataset.rows[name][member].astype("<i8") for name in ("check", "test", "label") if name in dataset.rows]
    rows = np.stack(columns, axis=1)
    return TaskContent(
        name=task_names[task] if task_names else str(task + 1),
        train=int((member & ~dataset.test).sum()),
        test=int((member & dataset.test).sum()),
        order=hashlib.sha256(rows.tobytes()).hexdigest()[:16],
    )
