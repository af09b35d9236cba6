"""What the user sees in the terminal: one console, progress for anything that takes seconds, plain lines in a pipe."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape

console = Console()
"""Results go here (standard output)."""
messages = Console(stderr=True)
"""Notices, warnings and progress go here (standard error)."""


def printable(text: str) -> str:
    """`text` with control characters (such as ESC in a file name) written as escapes: they cannot move the cursor."""
    return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)


def notice(text: str) -> None:
    messages.print(f"[dim]note:[/dim] {escape(printable(text))}", highlight=False)


def warn(text: str) -> None:
    messages.print(f"[yellow]warning:[/yellow] {escape(printable(text))}", highlight=False)


class Ticker:
    """Advances a progress display; `advance(n)` is all a worker needs to know of it."""

    def advance(self, amount: int = 1) -> None:
        raise AssertionError("use progress()")


class _Bar(Ticker):
    def __init__(self, bar, task) -> None:
        self.bar, self.task = bar, task

    def advance(self, amount: int = 1) -> None:
        self.bar.advance(self.task, amount)


class _Lines(Ticker):
    """Without a terminal: a plain line now and then, none for short work."""

    def __init__(self, description: str, total: int, every: float = 10.0) -> None:
        self.description, self.total, self.every = description, total, every
        self.done, self.last = 0, time.monotonic()

    def advance(self, amount: int = 1) -> None:
        self.done += amount
        if time.monotonic() - self.last >= self.every:
            self.last = time.monotonic()
            print(f"{self.description}: {self.done}/{self.total}", file=sys.stderr, flush=True)


@contextmanager
def progress(description: str, total: int) -> Iterator[Ticker]:
    """`with progress("decoding", n) as ticker: ... ticker.advance()`"""
    if not messages.is_terminal:
        yield _Lines(description, total)
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=messages, transient=True) as bar:
        yield _Bar(bar, bar.add_task(description, total=total))
