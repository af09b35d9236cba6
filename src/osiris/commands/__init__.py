"""Commands are functions `NAME_command`: their parameters are the options, their docstring is the help. Commands with
whole configs as options have a module of their own, with a dataclass `Args` and `run(args)`. Imports that take long are
inside the functions. Here is what several commands share.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import io
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import tyro
from rich.markup import escape
from rich.table import Table

if TYPE_CHECKING:
    from osiris.evaluation.metrics_file import RunMetrics

Args = TypeVar("Args")


def bind_arguments(function: Callable[..., int | None], argv: list[str], command: str) -> Callable[[], int | None]:
    """The function of a command with its parameters from the command line, ready to be called."""

    @functools.wraps(function)
    def bind(*args: Any, **kwargs: Any) -> Callable[[], int | None]:
        return functools.partial(function, *args, **kwargs)

    return parse_arguments(bind, argv, command)  # pyright: ignore[reportArgumentType]


def parse_arguments(kind: type[Args], argv: list[str], command: str, default: Args | None = None) -> Args:
    """The fields of a dataclass, or the parameters of a function, are the options; the docstring is the description in
    `--help`."""
    output = io.StringIO()
    try:
        with contextlib.redirect_stdout(output):
            return tyro.cli(
                kind,
                args=argv,
                prog=f"osiris {command}",
                description=(inspect.getdoc(kind) or "").partition("\n\nArgs:")[0],
                default=tyro.MISSING_NONPROP if default is None else default,
                config=(tyro.conf.OmitArgPrefixes, tyro.conf.PositionalMetavarFromFieldName),
            )
    finally:
        print(tidy_help(output.getvalue()), end="")


def tidy_help(text: str) -> str:
    """The help of tyro without what says nothing: defaults None, False and empty, `{None}|` before a type, and
    `--no-flag` of flags that are off. The columns stay in place."""
    default = r"\(default:\s+(?:None|False)\)|\(default: \)"
    pairs = rf"(--([\w-]+))(, --no-\2)(?=(?:(?!, --no-).)*?(?:{default}))"
    text = re.sub(pairs, lambda found: found[1] + " " * len(found[3]), text, flags=re.DOTALL)
    text = re.sub(r"\{None\}\|([^\s\]]+)( *)", lambda found: found[1] + found[2] + " " * 7, text)
    text = re.sub(default, lambda found: re.sub(r"\S", "\0", found[0]), text)
    lines = (line for line in text.split("\n") if line.strip(" \0") or "\0" not in line)
    return "\n".join(line.replace("\0", " ").rstrip() for line in lines)


def number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def metrics_table(runs: list[RunMetrics]) -> Table:
    """A F K C T of each run under each protocol, in percent; A of the untrained encoder as a reference."""

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
