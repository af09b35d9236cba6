"""Parse the arguments of a command."""

from __future__ import annotations

import inspect
from typing import TypeVar

import tyro

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
