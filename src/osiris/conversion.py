"""From JSON, or from text, to the types of a dataclass. Its annotations say which values are possible."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from osiris.errors import UserError, unknown

T = TypeVar("T")
KINDS = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "text", "array": "a list"}
BOUNDS = {">=": "of at least", "<=": "of at most", ">": "above", "<": "below"}


def converted(record: Any, kind: type[T], strict: bool = True) -> T:
    """The dataclass with these values. Wrong types, unknown choices and numbers out of range are errors that name the
    option; `strict=False` converts text to the type of its field, and `None` to no value."""
    try:
        return msgspec.convert(record, kind, strict=strict, dec_hook=lambda wanted, value: wanted(value))
    except msgspec.ValidationError as error:
        raise _explained(str(error), record, kind) from None


def options_of(kind: type) -> dict[str, Any]:
    """Option -> its type, of a dataclass and of the dataclasses in it."""
    hints: dict[str, Any] = {}
    for name, hint in get_type_hints(kind, include_extras=True).items():
        hints |= options_of(hint) if dataclasses.is_dataclass(hint) and isinstance(hint, type) else {name: hint}
    return hints


def choices_of(hint: Any) -> tuple[Any, ...]:
    """The values of the Literals in a type, at any depth."""
    if get_origin(hint) is Literal:
        return get_args(hint)
    return tuple(choice for part in get_args(hint) for choice in choices_of(part))


def _explained(message: str, record: Any, kind: type) -> UserError:
    """One sentence that names the option and its value, from the message of the parser."""
    problem, _, place = message.partition(" - at `$")
    path = re.findall(r"\w+", place)
    if not path:
        return UserError(f"the config: {problem.rstrip('.')}.")
    value = record
    for step in path:
        if isinstance(value, Mapping):
            value = value.get(step)
        elif isinstance(value, list | tuple) and step.isdecimal():
            value = value[int(step)]
    option = next(step for step in reversed(path) if not step.isdecimal())
    flag = f"--{option.replace('_', '-')}"
    choices = choices_of(options_of(kind).get(option))
    if choices and isinstance(value, str | int):
        return unknown(flag, str(value), map(str, choices))
    found = re.match(r"Expected `(\w+)(?: \| null)?`(?: (\S+) (\S+))?", problem)
    if found is None or found[1] not in KINDS:
        return UserError(f"{flag} {value}: {problem.rstrip('.')}.")
    bound = f" {BOUNDS[found[2]]} {found[3].removesuffix('.0')}" if found[2] in BOUNDS else ""
    return UserError(f"{flag} {value}: give {KINDS[found[1]]}{bound}.")
