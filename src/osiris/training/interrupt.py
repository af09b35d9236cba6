"""SIGTERM, SIGINT and SIGHUP: finish the step, save, and exit with a code that a scheduler can requeue on."""

from __future__ import annotations

import os
import signal
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from osiris.errors import Stopped


class Interrupt:
    """A signal sets the flag `asked`, which the loop reads after each step; inside `at_once` it stops immediately.

    A second SIGINT stops immediately anywhere. Only the main thread receives signals: in others this does nothing.
    """

    def __init__(self, *signals: signal.Signals) -> None:
        self.signals = signals or (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        self.asked = False
        self._safe = False
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():
            for number in self.signals:
                if signal.getsignal(number) is not signal.SIG_IGN:  # nohup ignores SIGHUP, and so do we
                    self._previous[number] = signal.signal(number, self._ask)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Inside, everything worth keeping is on disk: a signal need not wait for the end of a step."""
        if self.asked:
            raise Stopped("stopped.")
        self._safe = True
        try:
            yield
        except Exception:
            if self.asked:  # raised in the middle of a library's code, `Stopped` may have become another error
                raise Stopped("stopped.") from None
            raise
        finally:
            self._safe = False

    def _ask(self, number: int, frame: object) -> None:
        if number == signal.SIGHUP:
            _leave_terminal()
        if self.asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        first, self.asked = not self.asked, True
        if self._safe:
            self._safe = False
            raise Stopped("stopped.")
        if first and os.environ.get("RANK", "0") == "0":
            from osiris.console import tell  # imports rich

            tell("stopping after this step; the state will be saved (Ctrl-C again stops at once)")


def _leave_terminal() -> None:
    """Writing to a terminal that was closed is an error, which would end the process before it has saved."""
    for descriptor in (1, 2):
        with suppress(OSError):
            if stat.S_ISCHR(os.fstat(descriptor).st_mode):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, descriptor)
                os.close(nowhere)
