"""How this process came to do what it does: the command that was typed, or the call in Python and its script."""

from __future__ import annotations

import functools
import hashlib
import inspect
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
_command: ContextVar[str | None] = ContextVar("command", default=None)
_call: ContextVar[str | None] = ContextVar("call", default=None)


@contextmanager
def typed(argv: Sequence[str]) -> Iterator[None]:
    """`osiris ARGV` runs inside."""
    token = _command.set(shlex.join(["osiris", *argv]))
    try:
        yield
    finally:
        _command.reset(token)


def recorded(name: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """A function of the Python interface, whose outermost call is recorded."""

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        signature = inspect.signature(function)

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            if _call.get() is not None:
                return function(*args, **kwargs)
            given = signature.bind(*args, **kwargs).arguments
            token = _call.set(f"{name}({', '.join(_written(signature, given))})")
            try:
                return function(*args, **kwargs)
            finally:
                _call.reset(token)

        return call

    return decorate


def _written(signature: inspect.Signature, given: dict[str, Any]) -> Iterator[str]:
    for name, value in given.items():
        if signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD:
            yield from (f"{key}={_text(each)}" for key, each in value.items())
        elif name != "self":
            yield f"{name}={_text(value)}"


def _text(value: Any) -> str:
    """A value as Python writes it; `<Module>` of what cannot be written."""
    if value is None or isinstance(value, str | int | float):
        return repr(value)
    if isinstance(value, Path):
        return repr(str(value))
    if isinstance(value, tuple | list) and len(value) <= 20:
        return f"[{', '.join(map(_text, value))}]"
    return f"<{type(value).__name__}>"


def invocation() -> dict[str, Any]:
    """JSON-ready: `command`; None for a run that was made in Python, with its `call` and `script`."""
    command = _command.get()
    if command is not None:
        return {"command": command}
    path = getattr(sys.modules.get("__main__"), "__file__", None)
    script = None
    if path is not None and Path(path).is_file():
        digest = hashlib.sha256(Path(path).read_bytes()).hexdigest()
        script = {"path": str(Path(path).resolve()), "sha256": digest, "arguments": sys.argv[1:]}
    return {"command": None, "call": _call.get(), "script": script}
