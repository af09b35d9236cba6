"""Curves through training: the accuracies of one run, and the mean over the seeds of a method.

The horizontal axis counts tasks: 0 is the untrained encoder, t the end of task t, t + 0.5 the middle of the next one.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Point:
    """One evaluation: where in training, and the accuracy on each task in percent (NaN: no test images)."""

    x: float
    accuracy: np.ndarray
    task_level: float = float("nan")

    @property
    def task(self) -> int:
        """The task that was being learned, from 0."""
        return max(0, int(np.ceil(round(self.x, 9))) - 1)


@dataclass(frozen=True)
class Curve:
    """A mean over seeds with its sample deviation (None with one seed)."""

    x: np.ndarray
    mean: np.ndarray
    deviation: np.ndarray | None
    seeds: int


def overall(points: Sequence[Point]) -> tuple[np.ndarray, np.ndarray]:
    """(x, mean accuracy over all tasks, learned or not)."""
    return _xs(points), np.array([np.nanmean(point.accuracy) for point in points])


def plasticity(points: Sequence[Point]) -> tuple[np.ndarray, np.ndarray]:
    """(x, accuracy on the task being learned): Fig. 3a, left."""
    return _xs(points), np.array([point.accuracy[min(point.task, len(point.accuracy) - 1)] for point in points])


def consolidation(points: Sequence[Point]) -> tuple[np.ndarray, np.ndarray]:
    """(x, accuracy of the KNN on task ids): Fig. 3a, middle."""
    return _xs(points), np.array([point.task_level for point in points])


def of_task(points: Sequence[Point], task: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """(x, accuracy on one task); that of the first task is stability: Fig. 3a, right, and Fig. 8 to 11."""
    return _xs(points), np.array([point.accuracy[task] for point in points])


def over_seeds(curves: Sequence[tuple[np.ndarray, np.ndarray]]) -> Curve:
    """Mean and sample deviation where all curves have a point (runs may have been evaluated at different intervals)."""
    assert curves, "a mean needs a curve"
    each = [dict(zip(np.round(x, 6).tolist(), y.tolist())) for x, y in curves]
    common = sorted(set(each[0]).intersection(*each[1:]))
    values = np.array([[curve[x] for x in common] for curve in each])
    deviation = values.std(axis=0, ddof=1) if len(values) > 1 else None
    return Curve(np.array(common), values.mean(axis=0), deviation, len(values))


def thin(x: np.ndarray, y: np.ndarray, limit: int = 240) -> tuple[np.ndarray, np.ndarray]:
    """At most `limit` points, each the mean of an equal part of the series: a long log makes a small figure."""
    if len(x) <= limit:
        return x, y
    edges = np.linspace(0, len(x), limit + 1).astype(int)
    pairs = list(itertools.pairwise(edges))
    return np.array([x[a:b].mean() for a, b in pairs]), np.array([np.nanmean(y[a:b]) for a, b in pairs])


def _xs(points: Sequence[Point]) -> np.ndarray:
    return np.array([point.x for point in points])
