"""Errors that are the user's to mend. The command line prints them as one message and exits with code 2."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """Something about the request or the files is wrong; the message says what and what to do."""


def unknown(kind: str, name: str, choices: Iterable[str]) -> UserError:
    """`unknown method 'osirs-d'. Did you mean 'osiris-d'? Choose from: ...`"""
    choices = list(choices)
    folded = {choice.lower(): choice for choice in choices}
    near = difflib.get_close_matches(name.lower(), folded, n=1, cutoff=0.5)
    hint = f" Did you mean {folded[near[0]]!r}?" if near else ""
    return UserError(f"unknown {kind} {name!r}.{hint} Choose from: {', '.join(choices)}.")
