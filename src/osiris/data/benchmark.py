"""What every data source ends in: images divided into tasks, with labels for evaluation if there are any."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import TypedDict

import torch
from torch import Tensor

from osiris.data.images import Images
from osiris.data.names import Channels


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
class Benchmark:
    """A sequence of tasks. The learner sees `train`; the KNN searches `bank` for neighbours of the images of `test`."""

    name: str
    train: Split
    bank: Split
    test: Split | None
    class_names: tuple[str, ...]
    """By label; empty without labels."""
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
    """By task; see `content_differences`."""

    @property
    def task_count(self) -> int:
        return len(self.tasks)

    @property
    def class_count(self) -> int:
        return len(self.class_names)

    @property
    def labelled(self) -> bool:
        return self.test is not None and self.test.label is not None and self.bank.label is not None

    def training_indices(self, task: int) -> Tensor:
        """Indices into `train` of one task's images."""
        return torch.nonzero(self.train.task == task).squeeze(1)


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
