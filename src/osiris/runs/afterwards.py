"""Protocols that a run was not trained with, measured by `osiris evaluate RUN` on its own data: readers add them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
from msgspec.structs import replace

from osiris.console import notice
from osiris.errors import UserError
from osiris.evaluation.scores import Scores
from osiris.runs.directory import RunDirectory
from osiris.runs.records import RunMetrics, read_metrics
from osiris.runs.untrusted import harmless

ROUNDING = 0.5
"""Points by which the same weights may differ between machines."""


def with_others(metrics: RunMetrics, directory: RunDirectory) -> tuple[RunMetrics, dict[str, Path]]:
    """(the numbers of a run with protocols that were measured afterwards, the folder of each of these)"""
    folders: dict[str, Path] = {}
    for folder, other in _same_data(metrics, directory):
        added = [name for name in other.protocols if name not in metrics.protocols]
        if not added:
            continue
        if not _same_weights(metrics, other):
            notice(f"{folder} is left out: what it says of {metrics.method} is not what the run itself says.")
            continue
        numbers = {name: other.protocols[name] for name in added}
        pairs = zip(metrics.evaluations, other.evaluations)
        evaluations = [_joined(mine, theirs, added) for mine, theirs in pairs]
        start = metrics.start and other.start and _joined(metrics.start, other.start, added)
        metrics = replace(metrics, protocols=metrics.protocols | numbers, evaluations=evaluations, start=start)
        folders |= dict.fromkeys(added, folder)
    return metrics, folders


def _same_data(metrics: RunMetrics, directory: RunDirectory) -> Iterator[tuple[Path, RunMetrics]]:
    """Evaluations of all checkpoints, of the same images, with the same fingerprint."""
    for path in sorted(directory.evaluations.glob("*/metrics.json")):
        try:
            other = msgspec.convert(harmless(read_metrics(path).plain()), RunMetrics)
        except (UserError, msgspec.ValidationError):
            continue  # of another version, or cut short: `osiris evaluate` measures it again
        whole = len(other.evaluations) == len(metrics.evaluations) and other.continual == metrics.continual
        if whole and not metrics.lost and other.fingerprint == metrics.fingerprint:
            yield path.parent, other


def _same_weights(metrics: RunMetrics, other: RunMetrics) -> bool:
    """Whether what both have measured agrees: then the weights are those of the run."""
    shared = [name for name in other.protocols if name in metrics.protocols]
    pairs = [
        (one or 0.0, two or 0.0)
        for name in shared
        for ours, theirs in zip(metrics[name].accuracy_matrix, other[name].accuracy_matrix)
        for one, two in zip(ours, theirs)
    ]
    return bool(pairs) and sum(abs(one - two) for one, two in pairs) / len(pairs) < ROUNDING


def _joined(mine: Scores, theirs: Scores, names: list[str]) -> Scores:
    added = {name: theirs.protocols[name] for name in names if name in theirs.protocols}
    return replace(mine, protocols=mine.protocols | added)
