"""SIGTERM and SIGINT: finish the step, save, leave with an exit code that a scheduler can requeue on."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from osiris import processes
from osiris.console import messages

STOPPED = 75
"""Exit code after a clean stop by SIGTERM or SIGINT (EX_TEMPFAIL: a scheduler may requeue)."""


class Stopped(Exception):
    """The run was asked to stop; its state is on the disk."""


class Interrupt:
    """A signal sets a flag that the loop reads after each step, or stops at once where nothing would be lost.

    A second SIGINT stops at once anywhere. Threads other than the main one cannot receive signals: there it is idle.
    """

    def __init__(self) -> None:
        self.asked = False
        self._safe = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._ask)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Inside, all that is worth keeping is on the disk already: a signal needs to wait for nothing."""
        if self.asked:
            raise Stopped("stopped; state saved.")
        self._safe = True
        try:
            yield
        finally:
            self._safe = False

    def _ask(self, number: int, frame: object) -> None:
        if self.asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        first, self.asked = not self.asked, True
        if self._safe:
            self._safe = False
            raise Stopped("stopped; state saved.")
        if first and processes.rank() == 0:
            messages.print("stopping after this step; the state will be saved (Ctrl-C again stops at once)")
