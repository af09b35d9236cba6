"""Methods from text and from JSON.

On the command line a role is a `+`-joined list of terms, each `NAME`, `NAME:SPACE` or `NAME(option=value,...)`. Options
after the name of a method apply to all its terms that have them:

    osiris train --method osiris-d --past replay+distil --cross-weight 0.3
    osiris train --method ft --cross cross:g --past "predict(symmetric=true)"
    osiris train --method "pocon(interval=2000)"
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, Literal, get_args, get_origin, get_type_hints

from osiris.errors import UserError, unknown
from osiris.framework.config import MethodConfig
from osiris.framework.methods import ROLES, Method, find_method
from osiris.framework.terms import Term

ALIASES: dict[str, tuple[str, dict[str, Any]]] = {
    "replay": ("contrast", {"batch": "Y"}),
    "union": ("contrast", {"batch": "X+Y"}),
}
_TERM = re.compile(r"(?P<name>[a-z][a-z0-9_-]*)(:(?P<space>[a-z]+))?(\((?P<options>[^)]*)\))?")


def kinds(base: type[Term] = Term) -> dict[str, type[Term]]:
    """Every class of terms by name, including those of a user's own modules."""
    classes = {base.kind: base} if vars(base).get("kind") else {}
    for term in base.__subclasses__():
        for name, cls in kinds(term).items():
            assert name not in classes, f"two terms are called {name!r}: {classes[name].__name__}, {cls.__name__}"
            classes[name] = cls
    return classes


def resolve(config: MethodConfig) -> Method:
    """The method that a config describes, with its changes in its name."""
    name, _, options = config.method.partition("(")
    method, changes = find_method(name.strip()), []
    for role in ROLES:
        text = getattr(config, role)
        if text is not None:
            if method.stream != "continual":
                raise UserError(f"--{role} changes nothing in {method.name!r}, which has no second task.")
            if role == "past" and not method.past:
                method = replace(method, past_weight=None)  # the default weight of each term
            method = replace(method, **{role: parse_terms(text, _default_space(method, role))})
            changes.append(f"{role}={text}")
    if config.pocon_interval is not None and all(term.options.get("interval") is None for term in method.terms):
        method = method.with_option("interval", config.pocon_interval)
    for option, value in _pairs(options.removesuffix(")")):
        method = _with_option(method, option, value)
        changes.append(f"{option}={value}")
    for flag, field, used in (
        ("cross_weight", "cross_weight", bool(method.cross)),
        ("past_weight", "past_weight", bool(method.past)),
        ("second_space", "second_space", any("h" in term.spaces for term in method.terms)),
        ("replay_fraction", "replay", method.reads_memory),
    ):
        value = getattr(config, flag)
        if value is not None:
            if not used:
                raise UserError(f"--{flag.replace('_', '-')} changes nothing in {method.name!r}: no term uses it.")
            method = replace(method, **{field: value})
            changes.append(f"{field.replace('_', '-')}={value:g}" if isinstance(value, float) else f"{field}={value}")
    _check(method)
    return replace(method, name=method.name + (f"[{','.join(changes)}]" if changes else ""))


def _with_option(method: Method, option: str, text: str) -> Method:
    """`text` converted to the type of the option, in every term that has it."""
    values = [_convert(term, option, text) for term in method.terms if option in term.options]
    if not values:
        known = dict.fromkeys(name for term in method.terms for name in term.options)
        raise unknown(f"option of {method.name}", option, known)
    return method.with_option(option, values[0])


def _pairs(text: str) -> list[tuple[str, str]]:
    """`a=1, b=2` as pairs."""
    parts = (pair.partition("=") for pair in text.split(",") if pair.strip())
    return [(option.strip(), value.strip()) for option, _, value in parts]


def parse_terms(text: str, space: str) -> tuple[Term, ...]:
    """The terms of `replay:h+distil`. Terms that have a space and name none get `space`."""
    if text == "none":
        return ()
    return tuple(_parse_term(part.strip(), space) for part in re.split(r"\+(?![^(]*\))", text))


def _parse_term(text: str, space: str) -> Term:
    matched = _TERM.fullmatch(text)
    if matched is None:
        raise UserError(f"cannot read the term {text!r}; write NAME, NAME:SPACE or NAME(option=value).")
    name = matched["name"]
    known = kinds()
    if name == "none":
        raise UserError("`none` means no terms at all; leave it out of a sum of terms.")
    if name not in known and name not in ALIASES:
        raise unknown("term", name, [*known, *ALIASES, "none"])
    kind, options = ALIASES.get(name, (name, {}))
    names = {field.name for field in fields(known[kind])}
    options = dict(options) | ({"space": matched["space"] or space} if "space" in names else {})
    if matched["space"] and "space" not in names:
        raise UserError(f"the term {name!r} has no option `space`; leave out ':{matched['space']}'.")
    return term_from_dict({"kind": kind, **options, **dict(_pairs(matched["options"] or ""))})


def term_from_dict(record: dict[str, Any]) -> Term:
    """The inverse of `term_to_dict`; values may also be text."""
    record = dict(record)
    kind, known = record.pop("kind"), kinds()
    if kind not in known:
        raise unknown("term", str(kind), known)
    names = [field.name for field in fields(known[kind])]
    for option in record:
        if option not in names:
            raise unknown(f"option of {kind}", option, names)
    return known[kind](**{option: _convert(known[kind], option, value) for option, value in record.items()})


def _convert(term: Term | type[Term], option: str, value: Any) -> Any:
    """An option as its type demands, from text or from JSON."""
    hint = get_type_hints(term if isinstance(term, type) else type(term))[option]
    choices = get_args(hint)
    if get_origin(hint) is Literal:
        if value not in choices:
            raise unknown(f"value of {term.kind}.{option}", str(value), [str(choice) for choice in choices])
        return value
    target = next((choice for choice in choices if choice is not type(None)), hint)
    if value is None or (isinstance(value, target) and not isinstance(value, str)):
        return value
    if target is bool:
        if str(value).lower() not in ("true", "false"):
            raise UserError(f"{term.kind}.{option} is true or false, not {value!r}.")
        return str(value).lower() == "true"
    try:
        return target(value)
    except ValueError:
        raise UserError(f"{term.kind}.{option} needs a {target.__name__}, not {value!r}.") from None


def term_to_dict(term: Term) -> dict[str, Any]:
    return {"kind": term.kind, **term.options}


def method_to_dict(method: Method) -> dict[str, Any]:
    """The whole composition, as `config.json` records it."""
    return vars(method) | {role: [term_to_dict(term) for term in getattr(method, role)] for role in ROLES}


def method_from_dict(record: Mapping[str, Any]) -> Method:
    """The inverse of `method_to_dict`."""
    terms = {role: tuple(term_from_dict(term) for term in record[role]) for role in ROLES}
    return Method(**{**record, **terms})


def _default_space(method: Method, role: str) -> str:
    """A new term acts in the space of the terms it replaces; in an empty role in h, or in g for L_current."""
    spaces = [term.options["space"] for term in getattr(method, role) if "space" in term.options]
    return spaces[0] if spaces else ("g" if role == "current" else "h")


def _check(method: Method) -> None:
    if not method.current:
        raise UserError("a method needs at least one current term; --current none is not possible.")
    if not any(term.reads for term in method.current):
        raise UserError("no current term reads images: there is nothing to learn from after the first task.")
    for name, value in (("cross-weight", method.cross_weight), ("past-weight", method.past_weight)):
        if value is not None and not 0 <= value < float("inf"):
            raise UserError(f"--{name} must be a finite number, 0 or more, not {value}.")
    if not 0 < method.replay <= 1:
        raise UserError(f"--replay-fraction must be above 0 and at most 1, not {method.replay}.")
    for term in method.terms:
        term.check(method)
