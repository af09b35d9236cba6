"""Curves through training: the accuracies of one run, and the mean over the seeds of a method.

The horizontal axis counts tasks: 0 is the start of training, t the end of task t, t + 0.5 the middle of the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from osiris.evaluation.scores import Scores
from osiris.runs.run import Run

Points = tuple[np.ndarray, np.ndarray]
"""(x, y)"""


@dataclass(frozen=True)
class Course:
    """Every evaluation of a run under one protocol, in order. Accuracies in percent; NaN without test images."""

    x: np.ndarray
    """[n]: the position of each evaluation in training."""
    accuracy: np.ndarray
    """[n, tasks]"""
    task_level: np.ndarray
    """[n]"""

    @staticmethod
    def of(run: Run, protocol: str) -> Course:
        metrics = run.metrics
        points = ends(run)
        points += [
            (run.place(one.task, one.step), one)
            for one in metrics.curve or ()
            if run.steps and protocol in one.protocols
        ]
        points.sort(key=lambda point: point[0])
        accuracy = [scores.protocols[protocol].accuracy for _, scores in points]
        return Course(
            x=np.array([x for x, _ in points]),
            accuracy=percentages(accuracy, (len(points), run.task_count)),
            task_level=np.array([scores.task_level.accuracy for _, scores in points], dtype=np.float64),
        )

    def after(self, x: float) -> Course:
        """The evaluations later than x."""
        later = self.x > x
        return Course(self.x[later], self.accuracy[later], self.task_level[later])

    def overall(self) -> np.ndarray:
        """Mean accuracy over all tasks, learned or not."""
        return np.nanmean(self.accuracy, axis=1)

    def plasticity(self) -> np.ndarray:
        """Accuracy on the task being learned: Fig. 3a, left."""
        task = np.ceil(np.round(self.x, 9)).astype(int) - 1
        return self.accuracy[np.arange(len(task)), task.clip(0, self.accuracy.shape[1] - 1)]

    def consolidation(self) -> np.ndarray:
        """Accuracy of the KNN on task ids: Fig. 3a, middle."""
        return self.task_level

    def of_task(self, task: int = 0) -> np.ndarray:
        """Accuracy on one task; on the first it is stability: Fig. 3a, right, and Fig. 8 to 11."""
        return self.accuracy[:, task]


def overfitting_course(run: Run) -> list[tuple[float, dict[str, float]]]:
    """(where in training, relative loss difference by space) of every measurement of a run that tracked it."""
    return [
        (run.place(one.task - 1, one.step), {space: values["relative"] for space, values in one.spaces.items()})
        for one in run.overfitting_logged
    ]


def ends(run: Run) -> list[tuple[float, Scores]]:
    """The evaluations at the ends of tasks, with their positions."""
    evaluated = run.metrics.evaluated.items()
    return [(float(task + 1 if run.continual else run.task_count), scores) for task, scores in evaluated]


def at_ends(run: Run, quantity: Callable[[Scores], float | None]) -> Points:
    """A quantity at the end of every task that has it."""
    return as_points((x, value) for x, scores in ends(run) if (value := quantity(scores)) is not None)


def as_points(pairs: Iterable[tuple[float, float]]) -> Points:
    x, y = np.array(list(pairs), dtype=np.float64).reshape(-1, 2).T
    return x, y


def percentages(values: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Percentages of metrics.json as floats, with NaN for a missing number."""
    array = np.array(values, dtype=np.float64)
    if array.shape != shape:
        raise ValueError(f"metrics.json has accuracies of shape {array.shape} where {shape} is needed")
    return array


def accuracy_matrix(run: Run, protocol: str) -> np.ndarray:
    """A[t, i]: [evaluations, tasks], NaN for a task without test images."""
    return percentages(run.metrics[protocol].accuracy_matrix, (len(run.metrics.evaluations), run.task_count))


@dataclass(frozen=True)
class Curve:
    """A mean over seeds with its sample deviation (None with one seed)."""

    x: np.ndarray
    mean: np.ndarray
    deviation: np.ndarray | None


def over_seeds(curves: Sequence[Points]) -> Curve:
    """Mean and sample deviation where all curves have a point (runs may have been evaluated at different intervals)."""
    assert curves, "a mean needs a curve"
    each = [dict(zip(np.round(x, 6).tolist(), y.tolist())) for x, y in curves]
    common = sorted(set(each[0]).intersection(*each[1:]))
    values = np.array([[curve[x] for x in common] for curve in each])
    return Curve(np.array(common), values.mean(axis=0), values.std(axis=0, ddof=1) if len(values) > 1 else None)


def lines_over_seeds(series: Mapping[str, Iterable[Points]]) -> dict[str, Curve]:
    """The curve of each label over the seeds that have points; labels without points are left out."""
    known = {label: [points for points in each if len(points[0])] for label, each in series.items()}
    return {label: over_seeds(points) for label, points in known.items() if points}


def common_points(curves: Sequence[Points]) -> list[Points]:
    """The curves that have points, each with those points whose x all of them have."""
    known = [(np.round(x, 6), y) for x, y in curves if len(x)]
    shared = reduce(np.intersect1d, [x for x, _ in known]) if known else np.zeros(0)
    return [(x[np.isin(x, shared)], y[np.isin(x, shared)]) for x, y in known]


def thin(x: np.ndarray, y: np.ndarray, limit: int = 240) -> Points:
    """At most `limit` points, each the mean of an equal part of the series: a long log makes a small figure."""
    if len(x) <= limit:
        return x, y
    parts = np.linspace(0, len(x), limit + 1).astype(int)[1:-1]
    return tuple(np.array([part.mean() for part in np.split(series, parts)]) for series in (x, y))  # pyright: ignore
