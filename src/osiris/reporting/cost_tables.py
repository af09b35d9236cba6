"""The table of what methods cost: speed, encoder passes, hours, memory and extra storage."""

from __future__ import annotations

from osiris.config import from_dict
from osiris.evaluation.config import instrument
from osiris.evaluation.statistics import deviation, mean
from osiris.framework import cost
from osiris.framework.cost import Storage, measure_storage
from osiris.models.config import EncoderConfig, ProjectorConfig
from osiris.reporting.studies import Study
from osiris.reporting.tables import Cell, Column, Number, Table
from osiris.runs.untrusted import read_received


def storage_sizes(study: Study) -> dict[str, Storage]:
    """What each continual method stores, from its config. Left out: runs without a config or with one of another
    version, and encoders of other libraries or of the user, which a report does not build."""
    sizes = {}
    height, width = study.metrics.fingerprint.image_size
    for label, runs in study.continual.items():
        record = read_received(runs[0].files.config, dict).get("config", {})
        try:
            encoder: EncoderConfig = from_dict(record["encoder"], EncoderConfig)
            projector: ProjectorConfig = from_dict(record["projector"], ProjectorConfig)
        except (KeyError, TypeError, ValueError):
            continue
        method, memory = runs[0].composition, runs[0].config.get("learning.memory_size")
        if method and encoder.encoder is None and isinstance(memory, int):
            sizes[label] = measure_storage(method, encoder, projector, memory, (3, height, width))
    return sizes


def run_cost_table(study: Study, sizes: dict[str, Storage], protocol: str) -> Table | None:
    """Speed, encoder passes, hours, memory and extra storage beside accuracy."""
    rows: list[tuple[Cell, ...]] = []
    for label, items in study.by_label.items():
        logs = [item.steps_logged for item in items]
        if not all(logs):
            continue
        method, size = items[0].composition, sizes.get(label)
        later = cost.later_cost(method) if method else None
        speed = [cost.throughput([record.images_per_second or 0.0 for record in log]) for log in logs]
        minutes = [(log[-1].seconds or 0.0) / 60 for log in logs]
        peaks = [max(record.peak_memory_mb or 0.0 for record in log) for log in logs]
        accuracy = [value for item in items if (value := item.metrics[protocol].A) is not None]
        rows.append(
            (
                label,
                _number(speed, 0),
                Number(later and later.backward, decimals=1),
                Number(later and later.frozen, decimals=1),
                Number(later and later.work / cost.TWO_VIEWS.work, decimals=2),
                _number(minutes, 1),
                _number(peaks, 0) if all(peaks) else Number(None),
                Number(size and size.paper / 1e6, decimals=2),
                Number(size and size.stored / 1e6, decimals=2),
                _number(accuracy, 1),
            )
        )
    if not rows:
        return None
    names = ("method", "images/s", "trained views", "frozen views", "encoder work", "minutes", "peak MB")
    return Table.of(
        f"Cost on {study.benchmark}",
        (*names, "extra MB, paper", "extra MB, stored", Column("A", "higher")),
        rows,
        f"A: {instrument(protocol)}; images/s: median over logged steps, on the machine named below",
        "views through a trained or frozen encoder for each training image from the second task on; work relative to "
        "ft, a backward pass counted as two forward passes",
        "extra: stored beyond f and g; as the paper counts, 64 bits for each parameter and each pixel channel in the "
        "memory; as stored, bytes for pixels, 32 bits for parameters and embeddings, 24 bytes per slot for its origin",
    )


def _number(values: list[float], decimals: int) -> Number:
    return Number(mean(values), deviation(values), decimals=decimals)
