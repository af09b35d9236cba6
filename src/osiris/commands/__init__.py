"""Each command is a function `NAME_command(argv)`. `@command` makes one of a function whose parameters are the options
and whose docstring is the help. Commands with whole configs as options have a module of their own, with a dataclass
`Args`. Here is what several commands share. No torch at import: `osiris list` answers within a second.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import io
import re
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import tyro
from rich.markup import escape
from rich.table import Table

from osiris.console import printable
from osiris.errors import UserError
from osiris.evaluation.config import METRICS

if TYPE_CHECKING:
    from osiris.runs.records import RunMetrics

Args = TypeVar("Args")
Command = Callable[[list[str]], int]
"""From the arguments to the exit code."""


def command(name: str) -> Callable[[Callable[..., int | None]], Command]:
    """`osiris NAME` from a function: its parameters come from the command line."""

    def decorate(function: Callable[..., int | None]) -> Command:
        @functools.wraps(function)
        def bind(*args: Any, **kwargs: Any) -> Callable[[], int | None]:
            return functools.partial(function, *args, **kwargs)

        def run(argv: list[str]) -> int:
            return parse_arguments(bind, argv, name)() or 0  # pyright: ignore[reportArgumentType]

        return run

    return decorate


def parse_arguments(kind: type[Args], argv: list[str], command: str, default: Args | None = None) -> Args:
    """The fields of a dataclass, or the parameters of a function, are the options; the docstring is the description in
    `--help`."""
    output, errors = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
            return tyro.cli(
                kind,
                args=argv,
                prog=f"osiris {command}",
                description=(inspect.getdoc(kind) or "").partition("\n\nArgs:")[0],
                default=tyro.MISSING_NONPROP if default is None else default,
                config=(tyro.conf.OmitArgPrefixes, tyro.conf.PositionalMetavarFromFieldName),
            )
    except SystemExit:
        if problem := _not_a_number(errors.getvalue()):
            raise UserError(f"{problem} See `osiris {command} --help`.") from None
        raise
    finally:
        print(tidy_help(output.getvalue()), end="")
        if sys.exc_info()[0] is SystemExit:
            print(errors.getvalue(), end="", file=sys.stderr)


def _not_a_number(text: str) -> str | None:
    """One sentence for an option whose number is none, from the message of the parser."""
    found = re.search(r"Error parsing (--[\w-]+):", text)
    for reason, kind in (
        (r"invalid literal for int\(\) with base 10", "whole number"),
        ("could not convert string to float", "number"),
    ):
        value = re.search(rf"{reason}:\s*'(.*?)'", re.sub(r"[\s│]+", " ", text))
        if found and value:
            return f"{found[1]} {value[1]}: give a {kind}."
    return None


def tidy_help(text: str) -> str:
    """The help of tyro without what says nothing: defaults None, False and empty, `{None}|` before a type, and
    `--no-flag` of flags that are off. The columns stay in place."""
    default = r"\(default:\s+(?:None|False)\)|\(default: \)"
    pairs = rf"(--([\w-]+))(, --no-\2)(?=(?:(?!, --no-).)*?(?:{default}))"
    text = re.sub(pairs, lambda found: found[1] + " " * len(found[3]), text, flags=re.DOTALL)
    text = re.sub(r"\{None\}\|([^\s\]]+)(?=\])", r"\1", text)  # in the usage
    text = re.sub(r"\{None\}\|([^\s\]]+)( *)", lambda found: found[1] + found[2] + " " * 7, text)
    text = re.sub(default, lambda found: re.sub(r"\S", "\0", found[0]), text)
    lines = (line for line in text.split("\n") if line.strip(" \0") or "\0" not in line)
    return "\n".join(line.replace("\0", " ").rstrip() for line in lines)


def typed_encoder(encoder: str | None) -> str | None:
    """--encoder, made known to this process if it is the user's own."""
    from osiris.models import external  # imports torch

    return None if encoder is None else external.typed_encoder(encoder)


def number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def metrics_table(runs: list[RunMetrics]) -> Table:
    """A F K C T of each run under each protocol, in percent; A of the untrained encoder, or of the pretrained start, as
    a reference. With a start, G = A - A of the start, and its paired test."""

    first = runs[0]
    title = escape(printable(f"{first.benchmark}, percent, seed {first.seed}"))
    table = Table("method", title=title, padding=(0, 0, 0, 1))  # 80 columns hold the longest name of a protocol
    if not first.labelled:
        table.add_column("result")
        for metrics in runs:
            table.add_row(escape(metrics.method), escape(metrics.missing or ""))
        return table
    table.add_column("protocol")
    gain = ["G ↑"] if first.start is not None else []
    for name in ("A ↑", "F ↓", "K ↑", "C ↑", "T ↑", *gain):
        table.add_column(name, justify="right")
    for protocol in first.protocols:
        untrained = first[protocol].untrained
        if untrained is not None:
            table.add_row(first.reference_name, protocol, number(untrained), *["-"] * (4 + len(gain)))
        for metrics in runs:
            values = metrics[protocol].values()
            change = [metrics[protocol].gain or "-"] if gain else []
            table.add_row(escape(metrics.method), protocol, *(number(values[name]) for name in METRICS), *change)
        table.add_section()
    for metrics in runs:
        for name, one in metrics.evaluations[-1].own.items():
            value = "-" if one.value is None else f"{one.value:.4g}"
            table.add_row(escape(metrics.method), escape(name), value, *["-"] * (4 + len(gain)))
    return table
