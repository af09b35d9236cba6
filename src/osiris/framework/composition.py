"""Free composition: terms from text and from JSON, and a method's options applied to it.

On the command line a role is a `+`-joined list of terms, each `NAME`, `NAME:SPACE` or `NAME(option=value,...)`:

    osiris train --method osiris-d --past replay+distil --cross-weight 0.3
    osiris train --method ft --cross cross:g --past "predict(symmetric=true)"
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, Literal, get_args, get_origin, get_type_hints

from osiris.errors import UserError, unknown
from osiris.framework.config import MethodConfig
from osiris.framework.methods import Method, find_method
from osiris.framework.terms import Mixed, Term

ALIASES: dict[str, tuple[str, dict[str, Any]]] = {
    "replay": ("contrast", {"batch": "Y"}),
    "union": ("contrast", {"batch": "X+Y"}),
}
_TERM = re.compile(r"(?P<name>[a-z][a-z0-9_-]*)(:(?P<space>[a-z]+))?(\((?P<options>[^)]*)\))?")


def kinds(base: type[Term] = Term) -> dict[str, type[Term]]:
    """Every term there is by name, those of a user's own modules too: a new one needs no entry here."""
    found = {base.kind: base} if vars(base).get("kind") else {}
    for term in base.__subclasses__():
        inner = kinds(term)
        twins = sorted(found.keys() & inner.keys())
        assert not twins, f"two terms are called {twins[0]!r}: {found[twins[0]].__name__}, {inner[twins[0]].__name__}"
        found |= inner
    return found


def resolve(config: MethodConfig) -> Method:
    """The method that a config means, under a readable name."""
    method = find_method(config.method)
    changes: list[str] = []
    for role in ("current", "cross", "past"):
        text = getattr(config, role)
        if text is not None:
            if method.stream != "continual":
                raise UserError(f"--{role} changes nothing in {method.name!r}: it has no second task to act in.")
            if role == "past" and not method.past:
                method = replace(method, past_weight=None)  # each term's own
            method = replace(method, **{role: parse_terms(text, _default_space(method, role))})
            changes.append(f"{role}={text}")
    for option, used in (
        ("cross_weight", bool(method.cross)),
        ("past_weight", bool(method.past)),
        ("second_space", any("h" in term.spaces for term in method.terms)),
    ):
        value = getattr(config, option)
        if value is not None:
            _refuse_unused(method, option, used)
            method = replace(method, **{option: value})
            changes.append(f"{option.replace('_', '-')}={value:g}" if isinstance(value, float) else f"{option}={value}")
    if config.replay_fraction is not None:
        _refuse_unused(method, "replay_fraction", method.reads_memory)
        method = replace(method, replay=config.replay_fraction)
        changes.append(f"replay={config.replay_fraction:g}")
    for field, option in (
        ("positive", "positive"),
        ("fisher_normaliser", "normaliser"),
        ("mixup_alpha", "alpha"),
    ):
        value = getattr(config, field)
        if value is not None:
            method = _with_option(method, field, option, value)
            changes.append(f"{option}={value}")
    if config.pocon_interval is not None:  # presets set it for every method: where there is no expert it says nothing
        method = _changed(method, "interval", config.pocon_interval)
    _check(method)
    return replace(method, name=method.name + (f"[{','.join(changes)}]" if changes else ""))


def parse_terms(text: str, space: str) -> tuple[Term, ...]:
    """`replay:h+distil` to terms; terms that have a space and name none get `space`."""
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
        raise UserError("`none` empties a role and stands alone; leave it out of a sum.")
    if name not in known and name not in ALIASES:
        raise unknown("term", name, [*known, *ALIASES, "none"])
    kind, options = ALIASES.get(name, (name, {}))
    names = {field.name for field in fields(known[kind])}
    options = dict(options) | ({"space": matched["space"] or space} if "space" in names else {})
    if matched["space"] and "space" not in names:
        raise UserError(f"the term {name!r} acts on no space of its own; leave out ':{matched['space']}'.")
    for pair in filter(None, (matched["options"] or "").split(",")):
        option, _, value = pair.partition("=")
        options[option.strip()] = value.strip()
    return term_from_dict({"kind": kind, **options})


def term_from_dict(record: dict[str, Any]) -> Term:
    """The inverse of `term_to_dict`; values may still be text. Says which option or value is unknown."""
    record = dict(record)
    kind, known = record.pop("kind"), kinds()
    if kind not in known:
        raise unknown("term", str(kind), known)
    hints = get_type_hints(known[kind])
    names = [field.name for field in fields(known[kind])]
    for option in record:
        if option not in names:
            raise unknown(f"option of {kind}", option, names)
    return known[kind](**{option: _convert(kind, option, value, hints[option]) for option, value in record.items()})


def _convert(kind: str, option: str, value: Any, hint: Any) -> Any:
    choices = get_args(hint)
    if get_origin(hint) is Literal:
        if value not in choices:
            raise unknown(f"value of {kind}.{option}", str(value), [str(choice) for choice in choices])
        return value
    target = next((choice for choice in choices if choice is not type(None)), hint)
    if value is None or (isinstance(value, target) and not isinstance(value, str)):
        return value
    if target is bool:
        if str(value).lower() not in ("true", "false"):
            raise UserError(f"{kind}.{option} is true or false, not {value!r}.")
        return str(value).lower() == "true"
    try:
        return target(value)
    except ValueError:
        raise UserError(f"{kind}.{option} needs a {target.__name__}, not {value!r}.") from None


def term_to_dict(term: Term) -> dict[str, Any]:
    return {"kind": term.kind, **term.options}


def method_to_dict(method: Method) -> dict[str, Any]:
    """The whole composition, as `config.json` records it."""
    return {
        "name": method.name,
        "current": [term_to_dict(term) for term in method.current],
        "cross": [term_to_dict(term) for term in method.cross],
        "past": [term_to_dict(term) for term in method.past],
        "cross_weight": method.cross_weight,
        "past_weight": method.past_weight,
        "replay": method.replay,
        "second_space": method.second_space,
        "stream": method.stream,
        "length": method.length,
    }


def method_from_dict(record: Mapping[str, Any]) -> Method:
    """The inverse of `method_to_dict`; a term whose module is not imported here is an error that names it."""
    fields = dict(record)
    for role in ("current", "cross", "past"):
        fields[role] = tuple(term_from_dict(term) for term in fields[role])
    return Method(**fields)


def _default_space(method: Method, role: str) -> str:
    """A new term joins the space its role had; new cross and past terms get the isolated space h."""
    spaces = [term.options["space"] for term in getattr(method, role) if "space" in term.options]
    return spaces[0] if spaces else ("g" if role == "current" else "h")


def _with_option(method: Method, flag: str, option: str, value: Any) -> Method:
    _refuse_unused(method, flag, any(option in term.options for term in method.terms))
    return _changed(method, option, value)


def _refuse_unused(method: Method, flag: str, used: bool) -> None:
    if not used:
        raise UserError(f"--{flag.replace('_', '-')} changes nothing in {method.name!r}: none of its terms has it.")


def _changed(method: Method, option: str, value: Any) -> Method:
    def changed(terms: tuple[Term, ...]) -> tuple[Term, ...]:
        return tuple(type(t)(**{**t.options, option: value}) if option in t.options else t for t in terms)

    return replace(method, current=changed(method.current), cross=changed(method.cross), past=changed(method.past))


def _check(method: Method) -> None:
    if not method.current:
        raise UserError("a method needs at least one current term; --current none leaves nothing to learn from.")
    if not any(term.reads for term in method.current):
        raise UserError("no current term looks at images: there is nothing to learn from after the first task.")
    for name, value in (("cross-weight", method.cross_weight), ("past-weight", method.past_weight)):
        if value is not None and not 0 <= value < float("inf"):
            raise UserError(f"--{name} is a weight from 0 up, not {value}.")
    if not 0 < method.replay <= 1:
        raise UserError(f"--replay-fraction is above 0 and at most 1, not {method.replay}.")
    for term in method.terms:
        if "h" in term.memory_fields.values() and method.second_space == "fresh":
            raise UserError("stored embeddings in h need --second-space copy: those of task 1 are g's.")
        if isinstance(term, Mixed) and method.replay != 1:
            raise UserError("mixing pairs every image of X with one of Y: it needs --replay-fraction 1.")
        if isinstance(term, Mixed) and not 0 < term.alpha < float("inf"):
            raise UserError(f"--mixup-alpha is above 0, not {term.alpha}.")
        interval = term.options.get("interval")
        if interval is not None and interval < 1:
            raise UserError(f"--pocon-interval is a number of steps from 1 up, not {interval}.")
