"""Runs of a grid side by side on this machine: each process has its own cores, and failures do not stop the others."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence

from osiris.cores import available_cores
from osiris.errors import Stopped
from osiris.grids.attempts import REFUSED, Attempt, training_command
from osiris.grids.grid import GridDirectory, GridRun
from osiris.grids.journal import in_progress
from osiris.training.interrupt import Interrupt

POLL = 0.2
"""Seconds between looks at the running processes."""


def divide_cores(jobs: int) -> list[set[int]]:
    """The cores that this process may use, in `jobs` parts of equal size (one core each where there are too few)."""
    cores = sorted(available_cores())
    share = max(1, len(cores) // jobs)
    return [{cores[(job * share + offset) % len(cores)] for offset in range(share)} for job in range(jobs)]


class LocalLauncher:
    """Runs a grid with N processes at a time on this machine (`--launcher local --jobs N`)."""

    def __init__(self, directory: GridDirectory, jobs: int, retries: int, processes: int = 1) -> None:
        self.directory, self.jobs, self.retries, self.processes = directory, jobs, retries, processes
        self.failures: Counter[GridRun] = Counter()
        self.running: dict[int, Attempt] = {}
        """Slot -> the attempt that runs in it."""

    def run(self, runs: Sequence[GridRun], watch: Callable[[], None]) -> None:
        """Every run that is not finished, at most `jobs` at a time. Ctrl-C and SIGTERM stop all of them cleanly.

        `watch` is called several times a second, to show progress.
        """
        waiting = [run for run in runs if not self.directory.finished(run)]
        self.directory.write_configs(waiting)
        self.failures.clear()
        cores = divide_cores(self.jobs)
        # A handler that raises an exception would not do: Python drops it in some places, such as a fork.
        with Interrupt() as interrupt:
            try:
                while waiting or self.running:
                    if interrupt.asked:
                        raise Stopped(f"stopped. Give the same command again to continue {self.directory.path}.")
                    for slot in sorted(set(range(self.jobs)) - self.running.keys()):
                        # Another sweep, or a process that an earlier sweep left behind, may be at work on a run.
                        ready = next((run for run in waiting if not in_progress(self.directory.files(run))), None)
                        if ready is not None:
                            waiting.remove(ready)
                            command = training_command(self.directory, ready, self.processes)
                            self.running[slot] = Attempt.start(self.directory, ready, command, cores[slot])
                    time.sleep(POLL)
                    waiting += self._collect()
                    waiting = [run for run in waiting if not self.directory.finished(run)]
                    watch()
            finally:
                self._stop()

    def _collect(self) -> list[GridRun]:
        """Take note of the runs that ended; returns those to try again."""
        again = []
        for slot, attempt in list(self.running.items()):
            if attempt.process.poll() is None:
                continue
            del self.running[slot]
            code = attempt.end()
            self.failures[attempt.run] += code != 0
            if code not in (0, REFUSED) and self.failures[attempt.run] <= self.retries:
                again.append(attempt.run)
        return again

    def _stop(self) -> None:
        """Ask what still runs to save its state, and wait for it."""
        for attempt in self.running.values():
            attempt.process.terminate()
        for attempt in self.running.values():
            attempt.end(asked=True)
