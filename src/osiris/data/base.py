"""The types every data source ends in: uint8 images, tasks, optional labels."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor


class Images(Protocol):
    """A sequence of RGB images of one size, read by index."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """(3, height, width)"""
        ...

    def __len__(self) -> int: ...

    def take(self, indices: Tensor) -> Tensor:
        """uint8 [len(indices), 3, height, width] on the CPU, in the order of `indices` (int64)."""
        ...

    def prefetch(self, indices: Tensor) -> None:
        """A hint: these will be taken soon. Images that must be decoded begin to be so now."""
        ...


@dataclass(frozen=True)
class ArrayImages:
    """Images that lie decoded in one uint8 array [N, 3, H, W], in memory or memory-mapped."""

    array: np.ndarray

    def __post_init__(self) -> None:
        assert self.array.dtype == np.uint8 and self.array.ndim == 4 and self.array.shape[1] == 3, self.array.shape

    @property
    def shape(self) -> tuple[int, int, int]:
        _, channels, height, width = self.array.shape
        return channels, height, width

    def __len__(self) -> int:
        return len(self.array)

    def take(self, indices: Tensor) -> Tensor:
        return torch.from_numpy(self.array[indices.numpy()])

    def prefetch(self, indices: Tensor) -> None:
        """They are decoded already."""


@dataclass(frozen=True)
class Subset:
    """Some images of another source, without copying them."""

    source: Images
    indices: Tensor

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.source.shape

    def __len__(self) -> int:
        return len(self.indices)

    def take(self, indices: Tensor) -> Tensor:
        return self.source.take(self.indices[indices])

    def prefetch(self, indices: Tensor) -> None:
        self.source.prefetch(self.indices[indices])


@dataclass(frozen=True)
class Split:
    """Images with the task each belongs to and, for evaluation alone, their labels."""

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

    def select(self, indices: Tensor) -> Split:
        label = None if self.label is None else self.label[indices]
        return Split(Subset(self.images, indices), self.task[indices], label)


@dataclass(frozen=True)
class Benchmark:
    """A sequence of tasks. `train` is what the learner sees, `bank` the clean images of the KNN, `test` its queries."""

    name: str
    train: Split
    bank: Split
    test: Split | None
    class_names: tuple[str, ...]
    """By label; empty without labels."""
    tasks: tuple[tuple[int, ...], ...]
    """The labels of each task, in order; empty tuples without labels."""
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    """Channel statistics for normalisation, images in [0, 1]."""
    environments: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """(name, indices of its tasks) where tasks are grouped, such as indoor, city, wild."""
    checksum: str = ""
    """Identifies the images and their split; part of the protocol fingerprint."""
    notices: tuple[str, ...] = ()
    """What the user should know, such as `only 50 of 500 images per class are present`."""
    task_names: tuple[str, ...] = ()
    """The episodes' names (folders, dates, places); empty where tasks are made of classes."""
    location: Path | None = None
    """The directory of the cache that holds the images (and the list of those that were skipped), if any."""

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
        return (self.train.task == task).nonzero().squeeze(1)
