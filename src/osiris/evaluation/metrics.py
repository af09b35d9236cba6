"""Percentages of correct predictions, and A F K C T as pure functions of the accuracy matrix (Sec. 4.1).

`accuracy[t, i]` is the accuracy in percent on the test images of task i after training on task t (both from 0 here,
from 1 in the paper). An unfinished run gives n < T rows: the last row then counts as the final model, and means over
tasks stop at the tasks trained so far. NaN marks a task without test images; means leave it out.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from osiris.evaluation.statistics import mean


def percent(hit: Tensor) -> float | None:
    """100 * hits / images; None without images."""
    return 100 * int(hit.sum()) / len(hit) if len(hit) else None


def percent_by(hit: Tensor, group: Tensor, count: int) -> list[float | None]:
    """Percent of hits in each group 0 to count - 1; members of group -1 are left out."""
    return [percent(hit[group == number]) for number in range(count)]


def as_matrix(rows: Sequence[Sequence[float | None]] | np.ndarray) -> np.ndarray:
    """float64 [n, T]; None (JSON has no NaN) becomes NaN."""
    matrix = np.array(rows, dtype=np.float64)
    assert matrix.ndim == 2 and 1 <= matrix.shape[0] <= matrix.shape[1], f"rows are checkpoints: {matrix.shape}"
    return matrix


def overall_accuracy(accuracy: np.ndarray) -> float | None:
    """A = 1/T sum_i A[T, i]."""
    return mean(accuracy[-1])


def forgetting(accuracy: np.ndarray) -> float | None:
    """F = 1/(T-1) sum_{i<T} max_t (A[t, i] - A[T, i]), the maximum over all t in 1..T (so never negative)."""
    last = len(accuracy) - 1
    return mean((accuracy - accuracy[-1]).max(axis=0)[:last])


def knowledge_gain(accuracy: np.ndarray) -> float | None:
    """K = 1/(T-1) sum_{i>=2} (A[i, i] - A[i-1, i])."""
    return mean(accuracy.diagonal()[1:] - accuracy.diagonal(1)[: len(accuracy) - 1])


def forward_transfer(accuracy: np.ndarray, random_accuracy: np.ndarray) -> float | None:
    """T = 1/(T-1) sum_{i>=2} (A[i-1, i] - R_i), R_i the accuracy of untrained encoders on task i."""
    assert random_accuracy.shape == (accuracy.shape[1],), (random_accuracy.shape, accuracy.shape)
    count = len(accuracy) - 1
    return mean(accuracy.diagonal(1)[:count] - random_accuracy[1 : count + 1])


def stream_metrics(accuracy: np.ndarray) -> dict[str, float | None]:
    """Of a stream, whose rows are points in time. F = mean over tasks of the best accuracy minus that at the end;
    `average` is the mean of A over the points, `drop` the deepest fall of A below its best so far."""
    course = np.nanmean(accuracy, axis=1)
    return {
        "A": mean(accuracy[-1]),
        "F": mean((accuracy - accuracy[-1]).max(axis=0)),
        "average": float(course.mean()),
        "drop": float((np.maximum.accumulate(course) - course).max()),
    }


def all_metrics(
    accuracy: np.ndarray, task_level: float | None, random_accuracy: np.ndarray | None = None
) -> dict[str, float | None]:
    """The five numbers by letter; None where one is not defined.

    `task_level` is the task-level KNN accuracy of the final model, which is C. A run that is not continual (offline)
    has a single row and only A and C; so has a benchmark of one task.
    """
    return {
        "A": overall_accuracy(accuracy),
        "F": forgetting(accuracy),
        "K": knowledge_gain(accuracy),
        "C": task_level,
        "T": None if random_accuracy is None else forward_transfer(accuracy, random_accuracy),
    }
