"""Errors that are shown without a traceback: the command line prints the message and exits with `exit_code`."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterable
from typing import Any


class UserError(ValueError):
    """Something about the request or the files is wrong; the message says what and what to do."""

    exit_code = 2


class Stopped(Exception):
    """A signal asked the run to stop. Its state is on disk, so the same command continues it."""

    exit_code = 75
    """EX_TEMPFAIL: a scheduler may requeue."""


class Diverged(Exception):
    """A loss became infinite or undefined."""

    exit_code = 1


def unknown(kind: str, name: str, choices: Iterable[str]) -> UserError:
    """`unknown method 'osirs-d'. Did you mean 'osiris-d'? Choose from: ...`"""
    choices = list(choices)
    folded = {choice.lower(): choice for choice in choices}
    near = difflib.get_close_matches(name.lower(), folded, n=1, cutoff=0.5)
    hint = f" Did you mean {folded[near[0]]!r}?" if near else ""
    return UserError(f"unknown {kind} {name!r}.{hint} Choose from: {', '.join(choices)}.")


def install_extra(extra: str) -> str:
    return f"pip install -c constraints.txt -e '.[{extra}]' in the folder of osiris"


def import_extra(module: str, option: str, extra: str) -> Any:
    """An optional dependency that an option needs; without it, the error says how to install it."""
    try:
        return importlib.import_module(module)
    except (ImportError, RuntimeError) as error:  # torchvision beside a CPU-only torch raises RuntimeError
        raise UserError(f"{option} needs the extra {extra}: {install_extra(extra)} ({error}).") from None
