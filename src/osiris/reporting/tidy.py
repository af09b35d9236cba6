"""All numbers of runs in one long table: one row for each run, protocol and metric."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from osiris.errors import UserError
from osiris.evaluation.config import METRICS
from osiris.files import require_writable, write_atomically, write_csv
from osiris.reporting.studies import with_variants
from osiris.runs.run import Run

COLUMNS = ("benchmark", "fingerprint", "method", "settings", "preset", "seed", "protocol", "metric", "value", "run")
ENDINGS = (".csv", ".parquet")


def tidy(runs: Sequence[Run]) -> list[tuple[Any, ...]]:
    """Rows of `COLUMNS`. A F K C T and G under every protocol, the accuracy after each task on each (`A[3,1]`), and
    numbers without a protocol: metrics of the user's own, recall of an index."""
    rows = []
    for run in with_variants(runs):
        metrics = run.metrics
        about = (metrics.benchmark, metrics.fingerprint.hash, run.method, run.variant, metrics.preset or "", run.seed)

        def add(protocol: str, metric: str, value: float | None, about: tuple = about, run: Run = run) -> None:
            if value is not None:
                rows.append((*about, protocol, metric, float(value), str(run.path)))

        for protocol, numbers in metrics.protocols.items():
            for metric in (*METRICS, "G"):
                add(protocol, metric, numbers.values()[metric])
            for after, row in enumerate(numbers.accuracy_matrix, 1):
                for task, value in enumerate(row, 1):
                    add(protocol, f"A[{after},{task}]", value)
        for name, own in metrics.evaluations[-1].own.items():
            add("", name, own.value)
        for name, value in ({} if run.compatibility is None else run.compatibility.values()).items():
            add("", name, value)
    return rows


def write_tidy(runs: Sequence[Run], path: Path) -> None:
    """As CSV or Parquet, by the ending of the name."""
    if path.suffix not in ENDINGS:
        raise UserError(f"--out {path}: give a name that ends in {' or '.join(ENDINGS)}.")
    require_writable(path.parent)
    rows = tidy(runs)
    if path.suffix == ".csv":
        write_csv(path, [COLUMNS, *rows])
        return
    columns = {name: [row[at] for row in rows] for at, name in enumerate(COLUMNS)}
    table = pyarrow.table(columns)
    write_atomically(path, lambda temporary: pyarrow.parquet.write_table(table, temporary))
