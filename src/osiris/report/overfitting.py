"""Overfitting to the memory: tracked in training, or measured afterwards on the checkpoints."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from osiris.console import progress
from osiris.evaluation.fingerprint import digest
from osiris.files import read_json, write_json
from osiris.report.images import Source
from osiris.report.studies import Study, StudyRun

Measured = dict[int, list[tuple[float, dict[str, float]]]]
"""Run number -> (where in training, relative loss difference by space)."""
PATIENCE = 45.0
"""Seconds that a report spends on checkpoints unasked."""
DRAWS = 4
REPLAY = ("er", "lump", "osiris-r", "osiris-d")


def overfitting_points(study: Study, source: Source, cache: Path, slow: bool) -> tuple[Measured, str]:
    """(what was tracked in training, or else measured on the checkpoints; a line on what is missing)."""
    measured: Measured = {}
    wanted = []
    for item in study.main:
        tracked = item.events("overfitting")
        if tracked:
            measured[item.number] = [
                (item.place(record["task"] - 1, record["step"]), _relative(record["spaces"])) for record in tracked
            ]
        elif item.run.continual and item.uses_memory:
            wanted.append(item)
    # Where time is short, the methods of the paper's figure come first, a seed of each before the next seed.
    wanted.sort(key=lambda item: (item.seed, item.label not in REPLAY, item.number))
    missing = _from_checkpoints(wanted, source, cache, slow, measured) if wanted else ""
    return measured, missing


def _from_checkpoints(wanted: list[StudyRun], source: Source, cache: Path, slow: bool, measured: Measured) -> str:
    advice = "train with --track-overfitting N to have it drawn through training"
    if source.benchmark is None:
        return f"overfitting to the memory needs the images, or runs that tracked it; {advice}"
    started = time.monotonic()
    left_out = 0
    with progress("overfitting to the memory, from checkpoints", len(wanted)) as ticker:
        for item in wanted:
            kept = cache / f"overfitting-{digest([str(item.path.resolve()), item.run.fingerprint.plain()])}.json"
            if kept.exists():
                points = [(float(x), values) for x, values in read_json(kept)]
            elif not slow and time.monotonic() - started > PATIENCE:
                points, left_out = [], left_out + 1
            else:
                limit = None if slow else started + PATIENCE
                points, whole = _measure(item, source, limit)
                if whole and points:
                    write_json(kept, points)
                left_out += not whole
            if points:
                measured[item.number] = points
            ticker.advance()
    return f"overfitting to the memory of {left_out} run(s) takes long: use --slow, or {advice}" if left_out else ""


def _measure(item: StudyRun, source: Source, limit: float | None) -> tuple[list[tuple[float, dict[str, float]]], bool]:
    """(points, whether all checkpoints were looked at before the time was up)."""
    from osiris.evaluation.overfitting import checkpoint_overfitting
    from osiris.training.checkpoint import load_tensors

    assert source.benchmark is not None
    points = []
    for path in sorted((item.path / "checkpoints").glob("task-*.safetensors"))[1:]:
        if limit is not None and time.monotonic() > limit:
            return [], False
        tensors, metadata = load_tensors(path)
        found = checkpoint_overfitting(tensors, metadata, source.benchmark, item.seed, draws=DRAWS)
        if found is not None:
            points.append((float(int(metadata["task"]) + 1), _relative(found)))
    return points, True


def _relative(spaces: dict[str, Any]) -> dict[str, float]:
    return {space: float(values["relative"]) for space, values in spaces.items()}
