"""One module per command: a dataclass `Args` and `run(args) -> exit code`, with heavy imports inside `run`.

Here is what several commands share.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, TypeVar

import tyro

if TYPE_CHECKING:
    from rich.table import Table

    from osiris.evaluation.metrics_file import RunMetrics

Args = TypeVar("Args")


def parse_arguments(kind: type[Args], argv: list[str], command: str, default: Args | None = None) -> Args:
    """The fields of the dataclass `kind` are the options; its docstring is the description in `--help`."""
    return tyro.cli(
        kind,
        args=argv,
        prog=f"osiris {command}",
        description=inspect.getdoc(kind),
        default=tyro.MISSING_NONPROP if default is None else default,
        config=(tyro.conf.OmitArgPrefixes, tyro.conf.PositionalMetavarFromFieldName),
    )


def number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def metrics_table(runs: list[RunMetrics]) -> Table:
    """A F K C T of each run under each protocol, in percent; A of the untrained encoder as a reference."""
    from rich.markup import escape
    from rich.table import Table

    first = runs[0]
    table = Table("method", title=f"{first.benchmark}, percent, seed {first.seed}")
    if not first.labelled:
        table.add_column("result")
        for metrics in runs:
            table.add_row(escape(metrics.method), metrics.missing)
        return table
    table.add_column("protocol")
    for name in ("A ↑", "F ↓", "K ↑", "C ↑", "T ↑"):
        table.add_column(name, justify="right")
    for protocol in first.protocols:
        untrained = first[protocol].untrained
        if untrained is not None:
            table.add_row("untrained encoder", protocol, number(untrained), "-", "-", "-", "-")
        for metrics in runs:
            table.add_row(escape(metrics.method), protocol, *map(number, metrics[protocol].values().values()))
        table.add_section()
    return table
