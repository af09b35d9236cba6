"""Tables that several commands print."""

from __future__ import annotations

from rich.markup import escape
from rich.table import Table

from osiris.evaluation.metrics_file import RunMetrics

ARROWS = {"A": "A ↑", "F": "F ↓", "K": "K ↑", "C": "C ↑", "T": "T ↑"}


def number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def metrics_table(runs: list[RunMetrics]) -> Table:
    """A F K C T of each run under each protocol, percent; the untrained encoder's A as a reference."""
    first = runs[0]
    table = Table(title=f"{first.benchmark}, percent, seed {first.seed}")
    table.add_column("method")
    if not first.labelled:
        table.add_column("result")
        for metrics in runs:
            table.add_row(escape(metrics.method), metrics.missing)
        return table
    table.add_column("protocol")
    for name in ARROWS.values():
        table.add_column(name, justify="right")
    for protocol in first.protocols:
        untrained = first[protocol].untrained
        if untrained is not None:
            table.add_row("untrained encoder", protocol, number(untrained), "-", "-", "-", "-")
        for metrics in runs:
            table.add_row(escape(metrics.method), protocol, *map(number, metrics[protocol].values().values()))
        table.add_section()
    return table
