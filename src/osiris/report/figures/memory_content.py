"""What the memory holds: how many of its images come from each task, through training."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def shares(held: Sequence[np.ndarray], task_count: int) -> np.ndarray:
    """[checkpoints, T]: the part of the memory that each task has, given the tasks of the held images after each task.

    A reservoir over presentations keeps tasks in proportion to how often their images were shown, so that after task t
    each of t equally long tasks has about 1/t of it.
    """
    rows = []
    for tasks in held:
        counts = np.bincount(tasks[tasks >= 0], minlength=task_count).astype(np.float64)
        rows.append(counts / max(1.0, counts.sum()))
    return np.array(rows)


def largest_gap(share: np.ndarray) -> float:
    """How far the final shares are from equal ones, as half the sum of absolute differences (0: equal, near 1: one task
    has everything)."""
    return float(np.abs(share[-1] - 1 / share.shape[1]).sum() / 2)
