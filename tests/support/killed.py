"""A process that ends before one of its changes of files, without leaving this one."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

OPERATIONS = ((Path, "replace"), (Path, "unlink"), (os, "rmdir"), (os, "unlink"))


class Killed(BaseException):
    pass


@contextmanager
def killed_at(operation: int) -> Iterator[list[str]]:
    """The process ends before its n-th change of a file (from 1); without an n, they are listed."""
    with pytest.MonkeyPatch.context() as patch:
        done = list[str]()
        for owner, name in OPERATIONS:
            original = getattr(owner, name)

            def counted(*given: Any, function: Any = original, what: str = name, **named: Any) -> Any:
                done.append(f"{what} {Path(given[0]).name}")
                if len(done) == operation:
                    raise Killed
                return function(*given, **named)

            patch.setattr(owner, name, counted)
        yield done
