"""What forgetting looks like: the nearest neighbours of a test image right after its task, and at the end."""

from __future__ import annotations

import numpy as np


def hits(found: np.ndarray, bank_label: np.ndarray, query_label: np.ndarray) -> np.ndarray:
    """bool [n, k]: whether each neighbour (an index into the bank) is of its query's class."""
    return bank_label[found] == query_label[:, None]


def choose(before: np.ndarray, after: np.ndarray, task: np.ndarray, last_task: int, count: int) -> list[int]:
    """Queries whose neighbours changed most for the worse, at most two per task and none of the last task (which has
    had no time to be forgotten); ties go to earlier tasks.

    `before`, `after`: bool [n, k] hits right after the query's own task and at the end.
    """
    loss = before.sum(axis=1) - after.sum(axis=1)
    order = sorted(range(len(loss)), key=lambda index: (-int(loss[index]), int(task[index]), index))
    taken: dict[int, int] = {}
    chosen = []
    for index in order:
        number = int(task[index])
        if number >= last_task or taken.get(number, 0) >= 2 or before[index].sum() == 0:
            continue
        taken[number] = taken.get(number, 0) + 1
        chosen.append(index)
    return chosen[:count]
