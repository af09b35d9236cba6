"""Forgetting class by class: how far the accuracy on a class lies below its best."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def per_class(history: Sequence[Sequence[float | None]]) -> np.ndarray:
    """[C]: best accuracy at the end of any task minus the final one. `history`: one row per task, percent per class;
    NaN for a class without test images."""
    values = np.array(history, dtype=np.float64)
    assert values.ndim == 2, "one row of class accuracies per checkpoint"
    return (values - values[-1]).max(axis=0)


def since_learned(history: Sequence[Sequence[float | None]], task_of_class: Sequence[int]) -> np.ndarray:
    """[C]: accuracy right after the class's own task minus the final one; negative where later tasks helped."""
    values = np.array(history, dtype=np.float64)
    rows = np.minimum(np.array(task_of_class), len(values) - 1)
    return values[rows, np.arange(values.shape[1])] - values[-1]


def most(values: np.ndarray, count: int) -> list[int]:
    """The classes with the largest values, largest first; NaN never among them."""
    order = np.argsort(-np.where(np.isnan(values), -np.inf, values), kind="stable")
    return [int(index) for index in order[:count] if not np.isnan(values[index])]
