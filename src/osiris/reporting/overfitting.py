"""Overfitting to the memory: tracked during training, or measured afterwards on the checkpoints."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec

from osiris.augment.views import VIEWS
from osiris.console import progress, warn
from osiris.errors import UserError
from osiris.evaluation.fingerprint import digest
from osiris.evaluation.overfitting import checkpoint_overfitting
from osiris.files import load_tensors, write_json
from osiris.paper.published import TRACKED
from osiris.reporting.benchmark_images import Source
from osiris.reporting.studies import Study
from osiris.runs.run import Run

Points = list[tuple[float, dict[str, float]]]
"""(where in training, relative loss difference by space)"""
Measured = dict[int, Points]
"""By the number of the run."""
PATIENCE = 45.0
"""Seconds that a report without --slow spends on checkpoints."""
ADVICE = "train with --track-overfitting N to have it drawn through training"


def overfitting_points(study: Study, source: Source, cache: Path, slow: bool) -> tuple[Measured, str]:
    """(the points of every run that has any; what is missing, as part of a sentence)."""
    measured: Measured = {}
    untracked = []
    for run in study.main:
        if run.overfitting_logged:
            records = run.overfitting_logged
            measured[run.number] = [(run.place(one.task - 1, one.step), _relative(one.spaces)) for one in records]
        elif run.continual and run.uses_memory:
            untracked.append(run)
    if not untracked:
        return measured, ""
    if source.benchmark is None:
        return measured, f"overfitting to the memory needs the images, or runs that tracked it; {ADVICE}"
    # Time may run out: the methods of the paper's figure come first, one seed of each before the next seed.
    untracked.sort(key=lambda run: (run.seed, run.label not in TRACKED, run.number))
    deadline = float("inf") if slow else time.monotonic() + PATIENCE
    left_out = 0
    with progress("overfitting to the memory, from checkpoints", len(untracked)) as ticker:
        for run in untracked:
            points = _measure(run, source, cache, deadline)
            if points is None:
                left_out += 1
            elif points:
                measured[run.number] = points
            ticker.advance()
    slower = f"overfitting to the memory ({left_out} of the runs) takes long: use --slow, or {ADVICE}"
    return measured, slower if left_out else ""


def _measure(run: Run, source: Source, cache: Path, deadline: float) -> Points | None:
    """The points of a run, measured once with the views, batch size and temperature of its training (the paper's where
    config.json is missing); None if the time is up."""
    assert source.benchmark is not None
    views = run.config.get("learning.views", "paper")
    views = views if views in VIEWS else "paper"
    batch, tau = int(run.config.get("learning.batch_size", 256)), float(run.config.get("learning.tau", 0.1))
    key = digest([str(run.path.resolve()), run.metrics.fingerprint.plain(), views, batch, tau])
    file = cache / f"overfitting-{key}.json"
    with contextlib.suppress(FileNotFoundError, msgspec.DecodeError):  # a damaged file is measured again
        return msgspec.json.decode(file.read_bytes(), type=Points)
    points = []
    for path in run.checkpoints[1:]:
        if time.monotonic() > deadline:
            return None
        try:
            tensors, metadata = load_tensors(path)
            spaces = checkpoint_overfitting(tensors, metadata, source.benchmark, VIEWS[views], run.seed, batch, tau)
        except (UserError, KeyError, IndexError, TypeError) as error:
            warn(f"{path} is not used: {error}")
            return []
        if spaces is not None:
            points.append((float(int(metadata["task"]) + 1), _relative(spaces)))
    if points:
        write_json(file, points)
    return points


def _relative(spaces: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    return {space: float(values["relative"]) for space, values in spaces.items()}
