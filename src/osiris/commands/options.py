"""Options of a run on the command line: `--name value` pairs become a dictionary of text, then values of the types that
the config declares. tyro prints the help of such a command, and parses nothing.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Generic, TypeVar, get_args, get_origin, get_type_hints

import tyro

from osiris.commands import parse_arguments
from osiris.config import OPTIONS, Config, to_dict, typed
from osiris.console import notice
from osiris.conversion import converted
from osiris.errors import UserError
from osiris.own import named
from osiris.presets import choose_preset, configure
from osiris.runs.directory import read_config

Own = TypeVar("Own")
HELP = ("-h", "--help")


@dataclass(frozen=True)
class Given(Generic[Own]):
    """What a command line gives."""

    own: Own
    """Options of the command itself."""
    options: dict[str, Any]
    """Options of a run."""
    names: frozenset[str]
    """The names of all options that were given."""
    help: bool


def read_options(
    kind: type[Own],
    argv: Sequence[str],
    command: str,
    positional: Sequence[str] = (),
    options: Iterable[str] = OPTIONS,
    refused: Mapping[str, str] = MappingProxyType({}),
) -> Given[Own]:
    """Options of the command are the fields of `kind`; `options` are those of a run that it takes. `refused`: others,
    and why it cannot take them."""
    own = get_type_hints(kind, include_extras=True)
    hints = {name: OPTIONS[name] for name in options} | own
    words, places, given = [word for word in argv if word not in HELP], [], {}
    while words:
        word = words.pop(0)
        if not word.startswith("--"):
            places.append(word)
            continue
        flag, equals, value = word.partition("=")
        name = flag[2:].replace("-", "_")
        switch = name if name in hints else name.removeprefix("no_")
        if switch in refused or name in refused:
            raise UserError(f"{flag} {refused.get(switch) or refused[name]}, so `osiris {command}` has no use for it.")
        if switch not in hints or switch in positional:
            near = difflib.get_close_matches(name, hints, n=1, cutoff=0.5)
            hint = f" Did you mean --{near[0].replace('_', '-')}?" if near else ""
            raise UserError(f"unknown option {flag}.{hint} See `osiris {command} --help`.")
        if hints[switch] is bool:
            given[switch] = value if equals else switch == name
        elif _is_list(hints[name]):
            given[name] = [value] if equals else _values(words)
        elif equals or (words and not words[0].startswith("--")):
            given[name] = value if equals else words.pop(0)
        else:
            raise UserError(f"{flag} needs a value. See `osiris {command} --help`.")
    given |= _placed(places, positional, command)
    wanted_help = not {*HELP}.isdisjoint(argv)
    missing = [one.name for one in dataclasses.fields(kind) if _is_required(one) and one.name not in given]  # pyright: ignore[reportArgumentType]
    if missing and wanted_help:
        given |= dict.fromkeys(missing, missing[0].upper())
    elif missing:
        raise UserError(f"{missing[0].upper()} is missing. See `osiris {command} --help`.")
    ours = {name: value for name, value in given.items() if name in own}
    others = {name: value for name, value in given.items() if name not in own}
    return Given(converted(ours, kind, strict=False), typed(others), frozenset(given), wanted_help)


def _is_required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _is_list(hint: Any) -> bool:
    return get_origin(hint) is tuple or any(_is_list(part) for part in get_args(hint))


def _values(words: list[str]) -> list[str]:
    values = []
    while words and not words[0].startswith("--"):
        values.append(words.pop(0))
    return values


def _placed(places: Sequence[str], positional: Sequence[str], command: str) -> dict[str, str]:
    """Positional arguments by name."""
    if len(places) > len(positional):
        raise UserError(f"unexpected argument {places[len(positional)]!r}. See `osiris {command} --help`.")
    return dict(zip(positional, places))


def configured(options: dict[str, Any], source: Path | None = None, in_help: bool = False) -> tuple[Config, str]:
    """The config that options make, and why it has its preset if none was given. `source`: a run, or its config.json,
    whose settings are the defaults. What is the user's own is imported here."""
    options = named(options)
    benchmark, preset, encoder = (options.pop(name, None) for name in ("benchmark", "preset", "encoder"))
    if source is None:
        reason = ""
        if preset is None:
            preset, reason = ("fast", "") if in_help else choose_preset(options.get("device") or "auto")
        return configure(benchmark, preset, encoder, options), reason
    if preset is not None:
        raise UserError("--preset cannot be combined with --resume or --config, which contain every setting.")
    base = read_config(source)
    ignored_dashboards(base, options)
    return configure(benchmark, None, encoder, options, base=base), ""


def ignored_dashboards(base: Config, options: Collection[str]) -> None:
    """A file that was received must not send anything anywhere."""
    for name in ("tensorboard", "wandb"):
        if getattr(base.engine, name) and name not in options:
            notice(f"the run was logged with --{name}; without --{name} this call is not.")


def refuse_others(names: Collection[str], taken: Collection[str], with_what: str) -> None:
    """Refuse an option that would be ignored."""
    for name in sorted(names):
        if name not in taken:
            raise UserError(f"--{name.replace('_', '-')} changes nothing {with_what}: leave it out.")


def print_help(kind: type[Own], command: str, default: Own, hidden: Collection[str] = ()) -> None:
    """Print the help, and leave. `hidden`: options that it does not show."""
    shown = without(kind, hidden) if hidden else kind
    parse_arguments(shown, ["--help"], command, converted(to_dict(default), shown) if hidden else default)


def without(kind: type[Own], hidden: Collection[str]) -> type[Own]:
    """A dataclass whose help does not show some options."""
    fields = {one.name: one for one in dataclasses.fields(kind)}  # pyright: ignore[reportArgumentType]
    changed: dict[str, Any] = {}
    for name, hint in get_type_hints(kind, include_extras=True).items():
        inner, *others = get_args(hint) if get_origin(hint) is Annotated else (hint,)
        if name in hidden:
            changed[name] = tyro.conf.Suppress[hint]
        elif dataclasses.is_dataclass(inner) and isinstance(inner, type):
            smaller = without(inner, hidden)
            changed[name] = Annotated[smaller, *others] if others else smaller
    space: dict[str, Any] = {"__doc__": kind.__doc__, "__module__": kind.__module__, "__annotations__": changed}
    for name in changed:
        one = fields[name]
        made = one.default is dataclasses.MISSING
        space[name] = dataclasses.field(default_factory=one.default_factory) if made else one.default  # pyright: ignore
    return dataclass(frozen=True)(type(kind.__name__, (kind,), space))  # pyright: ignore[reportReturnType]
