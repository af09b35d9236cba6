"""The source of classes that are not osiris's own, so that a run notices when their bodies change."""

from __future__ import annotations

import hashlib
import inspect
import types
from collections.abc import Iterator, Mapping
from typing import Any

SOURCE = "source"
"""The key of the digest in config.json."""


def source_of(kind: type) -> str | None:
    """A digest of the source of a class of the user's own: of its bases too, and of the functions and classes of the
    same modules that they use. None for a class of osiris. A class without source, as one that was typed into Python,
    is known by its compiled methods."""
    parts = [part for base in kind.__mro__ if not _is_given(base) for part in _with_used(base, {})]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16] if parts else None


def _is_given(thing: Any) -> bool:
    """Whether it belongs to osiris, or to a package that osiris stands on."""
    return str(thing.__module__).partition(".")[0] in ("osiris", "torch", "abc", "builtins", "typing")


def _with_used(thing: Any, seen: dict[str, None]) -> Iterator[str]:
    """The source of a class or function, then that of what it names in its module."""
    if f"{thing.__module__}.{thing.__qualname__}" in seen:
        return
    seen[f"{thing.__module__}.{thing.__qualname__}"] = None
    codes = list(_codes(thing))
    try:
        yield inspect.getsource(thing)
    except (OSError, TypeError):
        yield repr([(code.co_name, code.co_code, _plain(code.co_consts)) for code in codes])
    names = sorted({name for code in codes for name in code.co_names})
    for function in [one for one in _functions(thing)][:1]:
        for name in names:
            used = function.__globals__.get(name)
            if isinstance(used, type | types.FunctionType) and used.__module__ == thing.__module__:
                yield from _with_used(used, seen)
            elif isinstance(used, int | float | str | bool | tuple):
                yield f"{name} = {used!r}"


def _functions(thing: Any) -> Iterator[types.FunctionType]:
    for one in vars(thing).values() if isinstance(thing, type) else (thing,):
        function = inspect.unwrap(getattr(one, "__func__", one)) if callable(getattr(one, "__func__", one)) else None
        if isinstance(function, types.FunctionType) and function.__module__ == thing.__module__:
            yield function


def _codes(thing: Any) -> Iterator[types.CodeType]:
    waiting = [function.__code__ for function in _functions(thing)]
    while waiting:
        code = waiting.pop()
        yield code
        waiting += [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]


def _plain(constants: tuple[Any, ...]) -> list[str]:
    return [repr(one) for one in constants if not isinstance(one, types.CodeType)]


def sources(composition: Mapping[str, Any]) -> dict[str, str]:
    """Kind -> digest, of a composition as config.json records it."""
    terms = [term for role in ("current", "cross", "past") for term in composition.get(role) or ()]
    parts = [
        part
        for part in (*terms, composition.get("objective"), *(composition.get("parts") or ()))
        if isinstance(part, Mapping)
    ]
    return {str(part.get("kind")): str(part[SOURCE]) for part in parts if SOURCE in part}
