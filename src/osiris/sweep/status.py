"""The state of a grid: a table for the terminal, and results.csv with every run."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING

from osiris.console import duration, messages
from osiris.evaluation.config import METRICS
from osiris.files import write_csv
from osiris.sweep.attempts import Status, status_of
from osiris.sweep.grid import GridDirectory

if TYPE_CHECKING:
    from rich.table import Table

STATES = ("running", "failed", "waiting", "done", "dropped")


def statuses(directory: GridDirectory) -> list[Status]:
    return [status_of(directory, run) for run in directory.runs]


def summary(states: list[Status]) -> str:
    """`12 runs: 2 running, 9 waiting, 1 done`"""
    counts = Counter(one.state for one in states)
    return f"{len(states)} runs: " + ", ".join(f"{counts[state]} {state}" for state in STATES if counts[state])


def status_table(states: list[Status]) -> Table:
    from rich import box
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    table = Table(title=summary(states), box=box.SIMPLE_HEAD, title_justify="left")
    for column in ("run", "seed", "state", "", ""):
        table.add_column(column)
    styles = {"running": "cyan", "failed": "red", "done": "green", "waiting": "dim", "dropped": "dim"}
    for one in states:
        state, bar = Text(one.state, styles[one.state]), ProgressBar(total=1.0, completed=one.progress, width=20)
        table.add_row(Text(one.run.title), str(one.run.seed), state, bar, Text(describe(one)))
    return table


def describe(status: Status) -> str:
    if status.state == "done":
        accuracy = (status.metrics or {}).get("A")
        return "" if accuracy is None else f"A {accuracy:.1f}"
    left = "" if status.seconds_left is None else f", {duration(status.seconds_left)} left"
    return f"{status.detail}{left}" if status.state == "running" else status.detail


def write_results(directory: GridDirectory) -> list[Status]:
    """GRID/results.csv: one row for each run, with its numbers or its error."""
    states = statuses(directory)
    rows: list[list[object]] = [["benchmark", "method", "settings", "preset", "seed", "state", *METRICS, "error"]]
    for one in states:
        run, numbers = one.run, one.metrics or {}
        values = ["" if numbers.get(name) is None else repr(numbers[name]) for name in METRICS]
        error = one.detail if one.state == "failed" else ""
        about = [run.benchmark, run.method, run.settings_text, run.preset, run.seed]
        rows.append([*about, one.state, *values, error])
    write_csv(directory.path / "results.csv", rows)
    return states


class Watch:
    """Shows a grid while it runs: the table in a terminal, otherwise a line for each run that starts or ends."""

    def __init__(self, directory: GridDirectory, every: float = 1.0) -> None:
        from rich.live import Live

        self.directory, self.every, self.last = directory, every, 0.0
        self.states: dict[str, str] = {}
        self.live = Live(console=messages, auto_refresh=False) if messages.is_terminal else None

    def __enter__(self) -> Watch:
        if self.live is not None:
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.last = 0.0
        self()
        if self.live is not None:
            self.live.stop()

    def __call__(self) -> None:
        if time.monotonic() - self.last < self.every:
            return
        self.last = time.monotonic()
        states = statuses(self.directory)
        if self.live is not None:
            self.live.update(status_table(states), refresh=True)
            return
        for one in states:
            before = self.states.setdefault(one.run.name, "waiting")
            if one.state != before:
                self.states[one.run.name] = one.state
                text = f"{one.run.title} seed {one.run.seed}: {one.state} {describe(one)}".rstrip()
                messages.print(text, highlight=False, markup=False, soft_wrap=True)
