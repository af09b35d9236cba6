"""Methods, terms and objectives of the user's own: `module:name`, as the user typed it.

A run records their names and the digests of their source. Nothing that a file names is ever imported: who continues
such a run names them again.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from osiris.errors import UserError
from osiris.framework.composition import ALIASES, method_to_dict
from osiris.framework.methods import OWN, ROLES, ZOO, Method
from osiris.framework.objectives import Objective
from osiris.framework.options import Configurable
from osiris.framework.terms import Term
from osiris.models.external import import_entry, typed_encoder

ENTRY = re.compile(r"(?<![\w.:=])(?P<module>[A-Za-z_][\w.]*):(?P<name>[A-Za-z_]\w*)")
MAY_BE_OWN = ("method", "encoder", "objective", *ROLES)
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
    return changed


def entries(options: Mapping[str, Any]) -> dict[str, str]:
    """Those of the options that name something of the user's own."""
    texts = {name: str(options[name]) for name in MAY_BE_OWN if options.get(name) is not None}
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
        return _kind_of(thing, found[0], Objective if option == "objective" else Term)

    return ENTRY.sub(name_of, text)


def _method_of(thing: Any, entry: str) -> Method:
    made = thing() if callable(thing) else thing
    if not isinstance(made, Method):
        raise UserError(f"{entry} is {type(made).__name__}; give an osiris.Method, or a function that returns one.")
    return made if made.name else replace(made, name=entry.rpartition(":")[2])


def _kind_of(thing: Any, entry: str, base: type[Configurable]) -> str:
    what = base.__name__.lower()
    if not (isinstance(thing, type) and issubclass(thing, base)):
        raise UserError(f"{entry} is not a class derived from osiris's {base.__name__}.")
    if not vars(thing).get("kind"):
        raise UserError(f'{entry} has no name of its own: give the class a line such as `kind = "my-{what}"`.')
    base.kinds()  # refuses a name that another class has
    return thing.kind
