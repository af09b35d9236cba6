"""Parts of a method that are written as NAME(option=value): terms and objectives, from text and from JSON."""

from __future__ import annotations

import math
import re
from abc import ABC
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import (
    Annotated,
    Any,
    Literal,
    TypeVar,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec
from msgspec import Meta
from torch import nn

from osiris.errors import UserError, unknown
from osiris.framework.source import SOURCE, source_of
from osiris.kinds import Named

Tau = Annotated[float, Meta(ge=1e-4, le=1e3)]
Share = Annotated[float, Meta(ge=0, le=1)]
Weight = Annotated[float, Meta(ge=0, le=1e6)]
Count = Annotated[int, Meta(ge=1, le=10_000_000)]
"""Ranges of options."""

_WRITTEN = re.compile(r"(?P<name>[^:()\s]+)(:(?P<space>[a-z]+))?(\((?P<options>[^()]*)\))?")


@dataclass_transform(eq_default=False)
@dataclass(eq=False)
class Configurable(Named, nn.Module, ABC):
    """A module whose options are dataclass fields. `kind` is its name on the command line and in config.json."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        dataclass(eq=False)(cls)

    def __post_init__(self) -> None:
        super().__init__()
        for option, value in self.options.items():
            if isinstance(value, int | float):
                convert(self, option, value)  # refuses numbers out of range

    @property
    def options(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def to_dict(self) -> dict[str, Any]:
        """With the digest of its source, if the class is the user's own."""
        source = source_of(type(self))
        return {"kind": self.kind, **self.options} | ({} if source is None else {SOURCE: source})


C = TypeVar("C", bound=Configurable)


def from_dict(base: type[C], record: Mapping[str, Any]) -> C:
    """The inverse of `to_dict`; values may also be text."""
    kind, known = record["kind"], base.kinds()
    if kind not in known:
        raise unknown(base.__name__.lower(), str(kind), known)
    names = [field.name for field in fields(known[kind])]
    options = {option: value for option, value in record.items() if option not in ("kind", SOURCE)}
    for option in options:
        if option not in names:
            raise unknown(f"option of {kind}", option, names)
    return known[kind](**{option: convert(known[kind], option, value) for option, value in options.items()})


def parse(base: type[C], text: str, others: Iterable[str] = ()) -> C:
    """NAME(option=value, ...) of a class derived from `base`. `others`: further names, for the message."""
    name, _, options = split(text, base.__name__.lower())
    if name not in base.kinds():
        what = re.sub(r"(?<!^)(?=[A-Z])", " ", base.__name__).lower()
        known = str(unknown(what, name, [*others, *base.kinds()])).rstrip(".")
        raise UserError(f"{known}, or one of your own, which is named at each start: module:name.")
    return from_dict(base, {"kind": name, **options})


def split(text: str, what: str) -> tuple[str, str | None, dict[str, str]]:
    """Split NAME:SPACE(option=value, ...) into name, space and options."""
    matched = _WRITTEN.fullmatch(text.strip())
    if matched is None:
        raise UserError(f"cannot read the {what} {text!r}; write NAME, NAME:SPACE or NAME(option=value).")
    pairs = [pair.partition("=") for pair in (matched["options"] or "").split(",") if pair.strip()]
    return matched["name"], matched["space"], {option.strip(): value.strip() for option, _, value in pairs}


def convert(part: Configurable | type[Configurable], option: str, value: Any) -> Any:
    """Convert the value of an option, text or JSON, to its declared type. Refuse numbers that are not finite."""
    hint = get_type_hints(part if isinstance(part, type) else type(part), include_extras=True)[option]
    if get_origin(hint) is Literal and value not in get_args(hint):
        raise unknown(f"value of {part.kind}.{option}", str(value), get_args(hint))
    try:
        converted = msgspec.convert(value, hint, strict=False)
    except msgspec.ValidationError as error:
        raise UserError(f"{part.kind}({option}={value}): {error}.") from None
    if isinstance(converted, float) and not math.isfinite(converted):
        raise UserError(f"{part.kind}({option}={value}): expected a finite number.")
    return converted
