"""Methods, terms and objectives of the user's own: `module:name`, as the user typed it.

A run records their names and the digests of their source. Nothing that a file names is ever imported: who continues
such a run names them again.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, get_args

from osiris.augment.views import VIEWS
from osiris.errors import UserError
from osiris.evaluation.own_metrics import Metric
from osiris.framework.augmentation import Augmentation
from osiris.framework.composition import ALIASES, method_to_dict
from osiris.framework.methods import OWN, ROLES, ZOO, Method
from osiris.framework.objectives import Objective
from osiris.framework.options import Configurable, parse
from osiris.framework.readouts import ReadoutMap
from osiris.framework.source import SOURCE, source_of
from osiris.framework.terms import Term
from osiris.kinds import Named
from osiris.memory import Memory, memory_class
from osiris.models.config import Readout
from osiris.models.external import import_entry, typed_encoder

ENTRY = re.compile(r"(?<![\w.:=])(?P<module>[A-Za-z_][\w.]*):(?P<name>[A-Za-z_]\w*)")
CLASSES: dict[str, type[Named]] = {
    "objective": Objective,
    **dict.fromkeys(ROLES, Term),
    "memory_policy": Memory,
    "views": Augmentation,
    "readout": ReadoutMap,
    "metrics": Metric,
}
"""Option -> what a class of the user's own is derived from."""
MAY_BE_OWN = ("method", "encoder", *CLASSES)
"""Options that take `module:name`."""


def register_method(method: Method) -> str:
    """Make a composition known in this process; returns its name, the value of the option `method`."""
    if method.name in ZOO and method_to_dict(method) != method_to_dict(ZOO[method.name]):
        raise UserError(f"{method.name} is the name of a built-in method; use dataclasses.replace(method, name=...).")
    name = method.name or "own"
    if name not in ZOO:
        OWN[name] = replace(method, name=name)
    return name


def named(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options with names in the place of `module:name`, which is imported: only for what the user typed."""
    changed = dict(options)
    for option in MAY_BE_OWN:
        text = options.get(option)
        if isinstance(text, Method):
            changed[option] = register_method(text)
        elif isinstance(text, str):
            changed[option] = _named(option, text)
        elif isinstance(text, list | tuple):
            changed[option] = tuple(_named(option, one) for one in text)
    return changed


def build_parts(config: Any) -> list[Configurable | type[Memory]]:
    """The parts of a run that its config names and that are no part of its method; refuses unknown names."""
    learning, encoder, evaluation = config.learning, config.encoder, config.evaluation
    parts: list[Configurable | type[Memory]] = []
    parts += [] if learning.views in VIEWS else [parse(Augmentation, learning.views, VIEWS)]
    parts += (
        [] if encoder.readout in (None, *get_args(Readout)) else [parse(ReadoutMap, encoder.readout, get_args(Readout))]
    )
    return parts + [parse(Metric, name) for name in evaluation.metrics]


def composition_of(config: Any, method: Method) -> dict[str, Any]:
    """What config.json says of the method, and of the parts of the user's own beside it."""
    parts = [part.to_dict() for part in build_parts(config) if isinstance(part, Configurable)]
    policy = memory_class(method.memory)
    source = source_of(policy)
    parts += [] if source is None else [{"kind": policy.kind, SOURCE: source}]
    return method_to_dict(method) | ({"parts": parts} if parts else {})


def entries(options: Mapping[str, Any]) -> dict[str, str]:
    """Those of the options that name something of the user's own."""
    given = {name: options[name] for name in MAY_BE_OWN if options.get(name) is not None}
    texts = {name: " ".join(text) if isinstance(text, list | tuple) else str(text) for name, text in given.items()}
    return {name: text for name, text in texts.items() if _is_own(name, text)}


def entry_of(method: Method) -> str:
    """`module:name` of a composition, for processes that must import it."""
    for name, module in list(sys.modules.items()):
        if name != "__main__":
            found = next((key for key, value in list(vars(module).items()) if value is method), None)
            if found is not None:
                return f"{name}:{found}"
    raise UserError(
        f"the method {method.name or 'own'!r} is not a variable of a module, and the processes of a sweep must import "
        "it: put it into a file of its own, such as mymethod.py, and import it from there."
    )


def _is_own(option: str, text: str) -> bool:
    if option == "encoder":
        return typed_entry(text) is not None and not text.startswith(("hf:", "timm:", "own:"))
    return any(not _has_space(found) for found in ENTRY.finditer(text))


def typed_entry(text: str) -> re.Match[str] | None:
    return ENTRY.fullmatch(text)


def _has_space(found: re.Match[str]) -> bool:
    """Whether it is a term and its space, such as `contrast:g`."""
    return found["name"] in ("g", "h") or found["module"] in (*Term.kinds(), *ALIASES)


def _named(option: str, text: str) -> str:
    if option == "encoder":
        return typed_encoder(text)

    def name_of(found: re.Match[str]) -> str:
        if _has_space(found):
            return found[0]
        thing = import_entry(found[0])
        if option == "method":
            return register_method(_method_of(thing, found[0]))
        return _kind_of(thing, found[0], CLASSES[option])

    return ENTRY.sub(name_of, text)


def _method_of(thing: Any, entry: str) -> Method:
    made = thing() if callable(thing) else thing
    if not isinstance(made, Method):
        raise UserError(f"{entry} is {type(made).__name__}; give an osiris.Method, or a function that returns one.")
    return made if made.name else replace(made, name=entry.rpartition(":")[2])


def _kind_of(thing: Any, entry: str, base: type[Named]) -> str:
    what = base.__name__.lower()
    if not (isinstance(thing, type) and issubclass(thing, base)):
        raise UserError(f"{entry} is not a class derived from osiris's {base.__name__}.")
    if not vars(thing).get("kind"):
        raise UserError(f'{entry} has no name of its own: give the class a line such as `kind = "my-{what}"`.')
    base.kinds()  # refuses a name that another class has
    return thing.kind
