"""Whether a run gives the numbers that it claims."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np

from osiris.errors import UserError
from osiris.evaluation.config import METRICS
from osiris.evaluation.metrics import all_metrics, as_matrix
from osiris.runs.records import ProtocolMetrics, RunMetrics, read_metrics
from osiris.runs.run import Run
from osiris.runs.views import make_metrics
from osiris.training.evaluating import evaluate_saved, request_for

Checked = Literal["weights", "evaluations", "numbers"]
"""What the numbers of a run were checked against: a new evaluation of its weights, its evaluations on disk, or their
own matrix of accuracies alone."""
ROUNDING = 0.5
"""Points by which the same weights may differ between machines."""


def check_claims(run: Run, weights: bool = False) -> tuple[Checked, list[str]]:
    """(what the numbers were checked against, what does not agree). `weights`: evaluate every checkpoint again."""
    problems = list(_inconsistent(run.metrics))
    if problems or not weights:
        on_disk = _on_disk(run)
        if on_disk is not None:
            problems += _differences(run.metrics, on_disk, "in its evaluations")
        return ("numbers" if on_disk is None else "evaluations"), problems
    return "weights", [*problems, *_differences(run.metrics, _measured(run), "by its weights")]


def _on_disk(run: Run) -> RunMetrics | None:
    """What the evaluations in the folders of the episodes say; None if they were not copied along."""
    try:
        return None if run.progress is None or not run.progress.finished else make_metrics(run.files, run.progress)
    except UserError:
        return None


def _measured(run: Run) -> RunMetrics:
    """Of the weights, under the same protocols."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        evaluate_saved(request_for(run.path, {"protocols": tuple(run.metrics.protocols)}, out=out))
        return read_metrics(out / "metrics.json")


def _inconsistent(metrics: RunMetrics) -> Iterator[str]:
    """A, F, K and T that do not follow from the matrix of accuracies."""
    for protocol, claimed in metrics.protocols.items():
        random = claimed.random_baseline
        baseline = None if random is None else np.array(random, dtype=np.float64)
        try:
            expected = all_metrics(as_matrix(claimed.accuracy_matrix), claimed.C, baseline)
        except (AssertionError, ValueError, TypeError, IndexError):
            yield f"{protocol}: its matrix of accuracies is damaged"
            continue
        rows = [scores.protocols[protocol].accuracy for scores in metrics.evaluations if protocol in scores.protocols]
        if rows and rows != claimed.accuracy_matrix:
            yield f"{protocol}: its matrix of accuracies is not that of its evaluations"
        for name in METRICS:
            yield from _apart(protocol, name, claimed.values()[name], expected[name], "by its matrix")


def _differences(claimed: RunMetrics, other: RunMetrics, where: str) -> Iterator[str]:
    if claimed.fingerprint != other.fingerprint:
        yield f"the fingerprint is {claimed.fingerprint.hash} as it says, and {other.fingerprint.hash} {where}"
    for protocol, numbers in claimed.protocols.items():
        found = other.protocols.get(protocol)
        if found is None:
            continue  # measured afterwards, and kept beside the run
        for name in METRICS:
            yield from _apart(protocol, name, numbers.values()[name], found.values()[name], where)
        if not _same_matrix(numbers, found):
            yield f"{protocol}: accuracies of single tasks differ {where}"


def _apart(protocol: str, name: str, claimed: float | None, found: float | None, where: str) -> Iterator[str]:
    if (claimed is None) != (found is None) or abs((claimed or 0.0) - (found or 0.0)) > ROUNDING:
        numbers = ["none" if value is None else f"{value:.1f}" for value in (claimed, found)]
        yield f"{protocol}: {name} is {numbers[0]} as it says, and {numbers[1]} {where}"


def _same_matrix(one: ProtocolMetrics, other: ProtocolMetrics) -> bool:
    first, second = (np.array(each.accuracy_matrix, dtype=np.float64) for each in (one, other))
    if first.shape != second.shape:
        return False
    apart = np.abs(first - second)
    return bool(np.nanmean(apart) <= ROUNDING) and bool((np.isnan(first) == np.isnan(second)).all())
