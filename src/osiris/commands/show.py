"""Tables that several commands print."""

from __future__ import annotations

from typing import Any

from rich.markup import escape
from rich.table import Table

ARROWS = {"A": "A ↑", "F": "F ↓", "K": "K ↑", "C": "C ↑", "T": "T ↑"}


def number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def metrics_table(runs: list[dict[str, Any]], untrained: bool = True) -> Table:
    """A F K C T of each run under each protocol, percent; the untrained encoder's A as a reference."""
    first = runs[0]
    table = Table(title=f"{first['benchmark']}, percent, seed {first['seed']}")
    table.add_column("method")
    if not first["labelled"]:
        table.add_column("what can be said")
        for run in runs:
            table.add_row(escape(run["method"]), run["missing"])
        return table
    table.add_column("protocol")
    for name in ARROWS.values():
        table.add_column(name, justify="right")
    for protocol, entry in first["protocols"].items():
        baseline = entry["random_baseline"]
        if untrained and baseline is not None:
            table.add_row("untrained encoder", protocol, number(sum(baseline) / len(baseline)), "-", "-", "-", "-")
        for run in runs:
            values = run["protocols"][protocol]
            table.add_row(escape(run["method"]), protocol, *(number(values[name]) for name in ARROWS))
        table.add_section()
    return table
