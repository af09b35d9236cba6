"""Methods from text and from JSON.

On the command line a role is a `+`-joined list of terms, each `NAME`, `NAME:SPACE` or `NAME(option=value,...)`. Options
after the name of a method apply to all its terms that have them:

    osiris train --method osiris-d --past replay+distil --cross-weight 0.3
    osiris train --method ft --cross cross:g --past "predict(symmetric=true)"
    osiris train --method "pocon(interval=2000)" --objective "barlow(scale=0.025)"
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from osiris.errors import UserError, unknown
from osiris.framework import past
from osiris.framework.config import MethodConfig
from osiris.framework.methods import OWN, ROLES, Method, find_method
from osiris.framework.objectives import Objective
from osiris.framework.options import convert, from_dict, split
from osiris.framework.terms import StoringTerm, Term
from osiris.memory import memory_class

ALIASES: dict[str, tuple[str, dict[str, Any]]] = {
    "replay": ("contrast", {"batch": "Y"}),
    "union": ("contrast", {"batch": "X+Y"}),
}


def resolve(config: MethodConfig) -> Method:
    """The method that a config describes; its name lists the changes."""
    name, _, options = (config.method, None, {}) if config.method in OWN else split(config.method, "method")
    method, changes = find_method(name), []
    for role in ROLES:
        text = getattr(config, role)
        if text is not None:
            if method.learns != "continual":
                raise UserError(f"--{role} changes nothing in {method.name!r}, which has no second task.")
            if role == "past" and not method.past:
                method = replace(method, past_weight=None)  # the default weight of each term
            method = replace(method, **{role: parse_terms(text, _default_space(method, role))})
            changes.append(f"{role}={text}")
    if config.pocon_interval is not None and all(term.options.get("interval") is None for term in method.terms):
        method = method.with_option("interval", config.pocon_interval)
    if config.usual_replay is not None and method.replay < 1 and config.replay_fraction is None:
        method = replace(method, replay_count=config.usual_replay)
    for option, value in options.items():
        method = _with_option(method, option, value)
        changes.append(f"{option}={value}")
    if config.objective is not None:
        kind, _, options = split(config.objective, "objective")
        method = replace(method, objective=from_dict(Objective, {"kind": kind, **options}))
        changes += [f"objective={config.objective}"] if config.objective != "ntxent" else []
    default = replace(method, replay_count=None)
    for flag, field, used in (
        ("cross_weight", "cross_weight", bool(method.cross)),
        ("past_weight", "past_weight", bool(method.past)),
        ("second_space", "second_space", any("h" in term.spaces for term in method.terms)),
        ("memory_policy", "memory", method.reads_memory),
        ("replay_fraction", "replay", method.reads_memory),
        ("replay", "replay_count", method.reads_memory),
        ("boundaries", "boundaries", method.uses_past),
        ("past_model", "past_model", method.uses_past),
    ):
        value = getattr(config, flag)
        if value is not None and not used:
            raise UserError(f"--{flag.replace('_', '-')} changes nothing in {method.name!r}: no term uses it.")
        if value is not None and value != getattr(default, field):
            method = replace(method, **{field: value})
            shown = "replay" if flag == "replay" else field
            changes.append(f"{shown.replace('_', '-')}={value:g}" if isinstance(value, float) else f"{shown}={value}")
    memory_class(method.memory)  # refuses an unknown one
    if config.second_space == "copy" and not method.copies_g:
        raise UserError(f"--second-space copy: g of {method.objective.kind} differs in shape from h; leave it out.")
    if config.replay is not None and config.replay_fraction is not None:
        raise UserError("--replay is a number of images, --replay-fraction a share of the batch: give one of them.")
    if config.past_model is not None:
        past.parse(config.past_model)
        if config.boundaries in ("known", "detect"):
            raise UserError(f"--boundaries {config.boundaries} says what f* is: leave out --past-model.")
    check(method)
    return replace(method, name=method.name + (f"[{','.join(changes)}]" if changes else ""))


def _with_option(method: Method, option: str, text: str) -> Method:
    """The method with an option set, from text, in every term that has it."""
    values = [convert(term, option, text) for term in method.terms if option in term.options]
    if not values:
        known = dict.fromkeys(name for term in method.terms for name in term.options)
        raise unknown(f"option of {method.name}", option, known)
    return method.with_option(option, values[0])


def parse_terms(text: str, space: str) -> tuple[Term, ...]:
    """The terms of `replay:h+distil`. Terms that have a space and name none get `space`."""
    if text == "none":
        return ()
    return tuple(_parse_term(part, space) for part in re.split(r"\+(?![^(]*\))", text))


def _parse_term(text: str, default_space: str) -> Term:
    name, space, options = split(text, "term")
    known = Term.kinds()
    if name == "none":
        raise UserError("`none` means no terms at all; leave it out of a sum of terms.")
    if name not in known and name not in ALIASES:
        raise unknown("term", name, [*known, *ALIASES, "none"])
    kind, implied = ALIASES.get(name, (name, {}))
    has_space = "space" in {field.name for field in fields(known[kind])}
    if space and not has_space:
        raise UserError(f"the term {name!r} has no option `space`; leave out ':{space}'.")
    return from_dict(
        Term, {"kind": kind, **implied, **({"space": space or default_space} if has_space else {}), **options}
    )


def method_to_dict(method: Method) -> dict[str, Any]:
    """The whole composition, as `config.json` records it."""
    terms = {role: [term.to_dict() for term in getattr(method, role)] for role in ROLES}
    return vars(method) | terms | {"objective": method.objective.to_dict()}


def method_from_dict(record: Mapping[str, Any]) -> Method:
    """The inverse of `method_to_dict`."""
    terms = {role: tuple(from_dict(Term, term) for term in record[role]) for role in ROLES}
    objective = from_dict(Objective, record.get("objective", {"kind": "ntxent"}))
    others = {name: value for name, value in record.items() if name != "parts"}
    return Method(**{**others, **terms, "objective": objective})


def _default_space(method: Method, role: str) -> str:
    """A new term acts in the space of the terms it replaces; in an empty role in h, or in g for L_current."""
    spaces = [term.options["space"] for term in getattr(method, role) if "space" in term.options]
    return spaces[0] if spaces else ("g" if role == "current" else "h")


def check(method: Method) -> None:
    """Refuse a method that cannot be trained, with the reason."""
    if method.sums is not None:
        if method.terms:
            raise UserError(f"{method.name} learns by sums, not by terms: leave out --current, --cross and --past.")
        return
    if not method.current:
        raise UserError("a method needs at least one current term; --current none is not possible.")
    if not any(term.reads for term in method.current):
        raise UserError("no current term reads images: there is nothing to learn from after the first task.")
    for name, value in (("cross-weight", method.cross_weight), ("past-weight", method.past_weight)):
        if value is not None and not 0 <= value < float("inf"):
            raise UserError(f"--{name} must be a finite number, 0 or more, not {value}.")
    if not 0 < method.replay <= 1:
        raise UserError(f"--replay-fraction must be above 0 and at most 1, not {method.replay}.")
    fields = {name for term in method.terms if isinstance(term, StoringTerm) for name in term.memory_fields}
    if method.memory == "minred" and "feature" not in fields:
        raise UserError("the memory minred compares features that the term revisit writes; use --method minred.")
    if method.memory in ("quota", "equal") and fields:
        raise UserError(f"the memory {method.memory} takes images at the end of a task and stores no embeddings.")
    for term in method.terms:
        term.check(method)


def check_stream(method: Method) -> None:
    """Refuse a method that cannot learn from a stream, with the reason."""
    instead = {"joint": "a stream of all tasks is --method ft --stream shuffled", "first-task": "a stream has no tasks"}
    if method.learns in instead:
        raise UserError(f"{method.name} has no order: {instead[method.learns]}. Leave out --stream, or use that.")
    if method.memory in ("quota", "equal"):
        raise UserError(
            f"the memory {method.memory} chooses its images at the end of a task, which a stream does not have."
        )
    if method.second_space == "fresh":
        raise UserError("h is always fresh in a stream: leave out --second-space.")
    for term in method.terms:
        term.check_stream(method)
