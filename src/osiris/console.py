"""What the user sees in the terminal: notices, warnings, and one progress display for everything."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

console = Console()
"""Results go here (standard output)."""
messages = Console(stderr=True)
"""Notices, warnings and progress go here (standard error)."""


def printable(text: str) -> str:
    """`text` with control characters (such as ESC in a file name) written as escapes: they cannot move the cursor."""
    return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)


def say(text: str) -> None:
    """Print a result as it is: no markup, no control characters, no line breaks added."""
    console.print(printable(text), markup=False, highlight=False, soft_wrap=True)


def notice(*texts: str) -> None:
    for text in texts:
        tell(f"[dim]note:[/dim] {escape(printable(text))}")


def warn(text: str) -> None:
    tell(f"[yellow]warning:[/yellow] {escape(printable(text))}")


def tell(text: str) -> None:
    """Print a message with markup. No line breaks are added: a log has whole sentences, and commands can be copied."""
    messages.print(text, highlight=False, soft_wrap=True)


def duration(seconds: float) -> str:
    seconds = int(seconds)
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60:02d} s"
    return f"{seconds // 3600} h {seconds % 3600 // 60:02d} min"


class Display:
    """Named rows with a bar and a text each: live in a terminal, and in Jupyter with ipywidgets; otherwise one plain
    line every `every` seconds."""

    def __init__(self, every: float = 10.0, transient: bool = False) -> None:
        self.every, self.live = every, None
        self.rows: dict[str, object] = {}
        self.last = time.monotonic()
        if messages.is_terminal or (messages.is_jupyter and find_spec("ipywidgets") is not None):
            columns = (
                TextColumn("[bold]{task.description}"),
                BarColumn(bar_width=28),
                TaskProgressColumn(),
                TextColumn("{task.fields[text]}", markup=False),
            )
            self.live = Progress(*columns, console=messages, transient=transient)
            self.live.start()

    def show(self, row: str, fraction: float | None = None, text: str = "", line: bool = False) -> None:
        """Update a row; it appears with its first update. `line`: without a terminal, print it now in any case."""
        if self.live is not None:
            if row not in self.rows:
                self.rows[row] = self.live.add_task(escape(printable(row)), total=1.0, text="")
            self.live.update(self.rows[row], completed=fraction, text=printable(text))  # pyright: ignore
        elif line or (text and time.monotonic() - self.last >= self.every):
            self.last = time.monotonic()
            print(printable(f"{row}: {text}"), file=sys.stderr, flush=True)

    def close(self) -> None:
        if self.live is not None:
            self.live.stop()


class Ticker:
    """Counts finished pieces of work on a display; `advance(n)` is all that a worker needs to call."""

    def __init__(self, display: Display, description: str, total: int) -> None:
        self.display, self.description, self.total = display, description, total
        self.done, self.started = 0, time.monotonic()

    def advance(self, amount: int = 1) -> None:
        self.done += amount
        elapsed = time.monotonic() - self.started
        left = elapsed / self.done * (self.total - self.done) if elapsed > 2 and self.done else None
        text = f"{self.done}/{self.total}" + ("" if left is None else f", {duration(left)} left")
        self.display.show(self.description, self.done / max(1, self.total), text)


@contextmanager
def progress(description: str, total: int) -> Iterator[Ticker]:
    """`with progress("decoding", n) as ticker: ... ticker.advance()`"""
    display = Display(transient=True)
    try:
        yield Ticker(display, description, total)
    finally:
        display.close()
