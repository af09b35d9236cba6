"""Mean cosine similarity between pairs of classes (Fig. 4): in the order of the tasks, and by environment."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np

Tasks = Sequence[Sequence[int]]


def tasks_of(label: np.ndarray, task: np.ndarray) -> list[list[int]]:
    """The classes of each task, from the labels and tasks of the test images."""
    return [sorted({int(one) for one in label[task == number]}) for number in range(int(task.max()) + 1)]


def class_order(tasks: Tasks) -> list[int]:
    """Classes in the order in which the stream brings them; one that comes back counts where it came first."""
    order: list[int] = []
    for classes in tasks:
        order += [one for one in classes if one not in order]
    return order


def in_task_order(similarity: np.ndarray, tasks: Tasks) -> np.ndarray:
    order = class_order(tasks)
    return similarity[np.ix_(order, order)]


def switches(tasks: Tasks, environments: Sequence[tuple[str, Sequence[int]]]) -> list[int]:
    """Positions along the ordered classes where the environment changes (environments in order, each one stretch)."""
    ends = list(accumulate(len(classes) for classes in tasks))
    return [ends[max(members)] for _, members in environments[:-1] if members]


def between_classes(similarity: np.ndarray, classes: Sequence[int]) -> float:
    """Mean similarity of different classes of a group: low means that the encoder tells them apart."""
    block = similarity[np.ix_(list(classes), list(classes))]
    pairs = block[~np.eye(len(block), dtype=bool)]
    return float(np.nanmean(pairs)) if np.isfinite(pairs).any() else float("nan")


def by_environment(
    similarity: np.ndarray, tasks: Tasks, environments: Sequence[tuple[str, Sequence[int]]]
) -> dict[str, float]:
    """Environment -> mean similarity between its classes."""
    groups = {name: [one for task in members for one in tasks[task]] for name, members in environments}
    return {name: between_classes(similarity, sorted(set(classes))) for name, classes in groups.items() if classes}
