"""Numbers worked out from the files of a run: storage, cost, and overfitting where training did not track it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from osiris.console import progress
from osiris.evaluation.fingerprint import digest
from osiris.evaluation.statistics import deviation, mean
from osiris.files import read_json, write_json
from osiris.framework import cost
from osiris.framework.storage import Storage, measure_storage
from osiris.models.config import EncoderConfig, ProjectorConfig
from osiris.report.images import Source
from osiris.report.material import Material, Study
from osiris.report.tables import Cell, Column, Number, Table

Measured = dict[int, list[tuple[float, dict[str, float]]]]
"""Run number -> (where in training, relative loss difference by space)."""
PATIENCE = 45.0
"""Seconds that a report spends on checkpoints unasked."""
DRAWS = 4
REPLAY = ("er", "lump", "osiris-r", "osiris-d")


def storage_sizes(study: Study) -> dict[str, Storage]:
    """What each continual method stores, from its config; methods whose config was not copied along are left out."""
    sizes = {}
    for label, items in study.continual.items():
        method, networks = items[0].composition, shapes(items[0])
        memory = items[0].run.config.get("learning.memory_size")
        size = study.metrics["fingerprint"].get("image_size")
        if method and networks and memory and size:
            sizes[label] = measure_storage(method, *networks, memory, (3, size[0], size[1]))
    return sizes


def shapes(item: Material) -> tuple[EncoderConfig, ProjectorConfig] | None:
    """Encoder and projector of a run."""
    config = item.run.config
    if "encoder.width" not in config:
        return None
    fields = {name.split(".")[1]: value for name, value in config.items() if name.startswith("encoder.")}
    fields["blocks"] = tuple(fields["blocks"])
    encoder = EncoderConfig(**fields)
    head = {name.split(".")[1]: value for name, value in config.items() if name.startswith("projector.")}
    return encoder, ProjectorConfig(**head)


def storage_table(study: Study, sizes: dict[str, Storage]) -> Table | None:
    if not sizes:
        return None
    rows: list[tuple[Cell, ...]] = [
        (label, Number(size.paper / 1e6, decimals=2), Number(size.stored / 1e6, decimals=2), size.described)
        for label, size in sizes.items()
    ]
    columns = (Column("method"), Column("MB, as the paper counts"), Column("MB, as stored"), Column("what"))
    notes = (
        "beyond f and g; as the paper counts: 64 bits for each extra parameter and each pixel channel in the memory",
        "as stored: bytes for pixels, 32 bits for parameters and embeddings, 24 bytes per slot for where it came from",
    )
    return Table(f"extra storage on {study.benchmark}", columns, tuple(rows), notes)


def cost_table(study: Study, protocol: str) -> Table | None:
    """Speed, encoder passes, hours and memory beside accuracy."""
    rows: list[tuple[Cell, ...]] = []
    for label, items in study.by_label.items():
        logs = [item.events("step") for item in items]
        if not all(logs):
            continue
        method = items[0].composition
        later = cost.later_cost(method) if method else None
        speed = [cost.throughput([record["images_per_second"] for record in log]) for log in logs]
        minutes = [log[-1]["seconds"] / 60 for log in logs]
        peaks = [max(record.get("peak_memory_mb") or 0.0 for record in log) for log in logs]
        accuracy = [value for item in items if (value := item.run.values(protocol)["A"]) is not None]
        rows.append(
            (
                label,
                _number(speed, 0),
                Number(later and later.backward, decimals=1),
                Number(later and later.frozen, decimals=1),
                Number(later and later.work / cost.FT.work, decimals=2),
                _number(minutes, 1),
                _number(peaks, 0) if all(peaks) else Number(None),
                _number(accuracy, 1),
            )
        )
    if not rows:
        return None
    names = ("images/s", "trained views", "frozen views", "encoder work", "minutes", "peak MB")
    columns = (Column("method"), *(Column(name) for name in names), Column("A", "higher"))
    notes = (
        f"A: {protocol} KNN; images/s: median over logged steps, on the machine named below",
        "views through a trained or frozen encoder for each training image from the second task on; work relative to "
        "ft, a backward pass counted as two forward passes",
    )
    return Table(f"cost on {study.benchmark}", columns, tuple(rows), notes)


def _number(values: list[float], decimals: int) -> Number:
    return Number(mean(values), deviation(values), decimals=decimals) if values else Number(None)


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


def _from_checkpoints(wanted: list[Material], source: Source, cache: Path, slow: bool, measured: Measured) -> str:
    advice = "train with --track-overfitting N to have it drawn through training"
    if source.benchmark is None:
        return f"overfitting to the memory needs the images, or runs that tracked it; {advice}"
    started = time.monotonic()
    left_out = 0
    with progress("overfitting to the memory, from checkpoints", len(wanted)) as ticker:
        for item in wanted:
            kept = cache / f"overfitting-{digest([str(item.path.resolve()), item.run.metrics['fingerprint']])}.json"
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


def _measure(item: Material, source: Source, limit: float | None) -> tuple[list[tuple[float, dict[str, float]]], bool]:
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
