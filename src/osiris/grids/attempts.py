"""Starting the runs of a grid, and where each of them stands: what `osiris sweep status` and results.csv show."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from rich import box
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from osiris.console import duration, messages
from osiris.evaluation.config import METRICS
from osiris.files import write_csv
from osiris.grids.grid import GridDirectory, GridRun
from osiris.grids.journal import JournalEntry, in_progress, journal_path, last_entry, last_step, record
from osiris.runs.untrusted import LONGEST

STOPPED = 75
"""Exit code of a run that was asked to stop and saved its state."""
REFUSED = 2
"""Exit code of a run that reported a mistake of the user: trying again would not help."""


@dataclass(frozen=True)
class RunStatus:
    """Where a run stands."""

    run: GridRun
    state: Literal["waiting", "running", "done", "failed", "dropped"]
    detail: str = ""
    """The error of a failed run, the task of a running one, the last task of one that a search dropped."""
    metrics: Mapping[str, Mapping[str, float | None]] = field(default_factory=dict)
    """Of a finished run: protocol -> A F K C T."""
    seconds_left: float | None = None
    progress: float = 0.0


@dataclass
class Attempt:
    """A run in progress, started by this process."""

    directory: GridDirectory
    run: GridRun
    process: subprocess.Popen[bytes]

    @staticmethod
    def start(directory: GridDirectory, run: GridRun, command: list[str], cores: set[int] | None = None) -> Attempt:
        """Start the process of a run. `cores`: those that it may use."""

        def settle() -> None:
            # In the new process. SLURM announces the end of a job by SIGUSR2 to every process of it; only the one that
            # started the training acts on it.
            signal.signal(signal.SIGUSR2, signal.SIG_IGN)
            if cores and hasattr(os, "sched_setaffinity"):
                os.sched_setaffinity(0, cores)

        record(directory, run, JournalEntry("start", host=socket.gethostname()))
        environment = os.environ | ({"OMP_NUM_THREADS": str(len(cores))} if cores else {})
        with journal_path(directory, run).with_suffix(".err").open("wb") as errors:
            process = subprocess.Popen(
                command, stdout=subprocess.DEVNULL, stderr=errors, env=environment, preexec_fn=settle
            )
        return Attempt(directory, run, process)

    def end(self, asked: bool = False) -> int:
        """Wait for the process and record its exit code and its error; returns the code. `asked`: it was told to stop,
        so its code says nothing (that of torchrun is 1)."""
        code = self.process.wait()
        if asked and code != 0:
            code = STOPPED
        error = "" if code in (0, STOPPED) else _error(journal_path(self.directory, self.run).with_suffix(".err"), code)
        record(self.directory, self.run, JournalEntry("end", code=code, error=error))
        return code


def training_command(
    directory: GridDirectory,
    run: GridRun,
    processes: int = 1,
    rendezvous: Sequence[str] = ("--standalone",),
) -> list[str]:
    """`processes`: on each node; `rendezvous`: options of torchrun that say where several nodes meet."""
    train = ["-m", "osiris", "train", "--config", str(directory.config(run)), "--out", str(directory.folder(run))]
    train += ["--quiet", *run.own]
    train += [] if directory.stop_after is None else ["--stop-after-task", str(directory.stop_after)]
    if processes == 1 and "--standalone" in rendezvous:
        return [sys.executable, *train]
    return [sys.executable, "-m", "torch.distributed.run", *rendezvous, f"--nproc-per-node={processes}", *train]


def status_of(directory: GridDirectory, run: GridRun) -> RunStatus:
    """From the files of the run alone, so that any machine that sees them can tell."""
    files, metrics = directory.files(run), directory.metrics(run)
    if metrics is not None:
        numbers = {protocol: each.values() for protocol, each in metrics.protocols.items()}
        return RunStatus(run, "done", metrics=numbers, progress=1.0)
    step = last_step(files.log)
    task = f"task {step.task} of {step.tasks}" if step.task else "starting"
    if in_progress(files):
        return RunStatus(run, "running", task, seconds_left=step.seconds_left, progress=step.progress)
    last = last_entry(directory, run)
    if last is not None and last.error:
        return RunStatus(run, "failed", last.error, progress=step.progress)
    if last is not None and last.event == "drop":
        return RunStatus(run, "dropped", f"by the search, after {last.tasks} tasks", progress=step.progress)
    if last is not None and last.event == "submit":
        return RunStatus(run, "waiting", f"job {last.job} is submitted", progress=step.progress)
    return RunStatus(run, "waiting", f"stopped in {task}" if step.task else "", progress=step.progress)


def _error(path: Path, code: int) -> str:
    """The last message of a failed run."""
    if code < 0:
        return f"killed by signal {-code}"
    lines = [line.strip() for line in path.read_text(errors="replace").splitlines() if line.strip()]
    own = [line.removeprefix("osiris: ") for line in lines if line.startswith("osiris: ")]
    return (own or lines or [f"exit code {code} without a message"])[-1][:LONGEST]


def statuses(directory: GridDirectory) -> list[RunStatus]:
    return [status_of(directory, run) for run in directory.runs]


def summary(states: list[RunStatus]) -> str:
    """The number of runs in each state: `12 runs: 2 running, 9 waiting, 1 done`."""
    counts = Counter(one.state for one in states)
    order = [state for state in ("running", "failed", "waiting", "done", "dropped") if counts[state]]
    return f"{len(states)} runs: " + ", ".join(f"{counts[state]} {state}" for state in order)


def status_table(states: list[RunStatus]) -> Table:
    table = Table(title=summary(states), box=box.SIMPLE_HEAD, title_justify="left")
    for column in ("run", "seed", "state", "", ""):
        table.add_column(column)
    styles = {"running": "cyan", "failed": "red", "done": "green", "waiting": "dim", "dropped": "dim"}
    for one in states:
        state, bar = Text(one.state, styles[one.state]), ProgressBar(total=1.0, completed=one.progress, width=20)
        table.add_row(Text(one.run.title), str(one.run.seed), state, bar, Text(describe_status(one)))
    return table


def describe_status(status: RunStatus) -> str:
    if status.state == "done":
        accuracy = status.metrics.get("class-agnostic", {}).get("A")
        return "" if accuracy is None else f"A {accuracy:.1f}"
    left = "" if status.seconds_left is None else f", {duration(status.seconds_left)} left"
    return f"{status.detail}{left}" if status.state == "running" else status.detail


def write_results(directory: GridDirectory) -> list[RunStatus]:
    """GRID/results.csv: one row for each run and protocol, with its numbers or its error."""
    states = statuses(directory)
    about = ["benchmark", "method", "settings", "preset", "seed", "state"]
    rows: list[list[object]] = [[*about, "protocol", *METRICS, "error"]]
    for one in states:
        run, error = one.run, one.detail if one.state == "failed" else ""
        about = [run.benchmark, run.method, run.settings_text, run.preset, run.seed, one.state]
        for protocol, numbers in (one.metrics or {"": {}}).items():
            rows.append([*about, protocol, *(numbers.get(name) for name in METRICS), error])
    write_csv(directory.path / "results.csv", rows)
    return states


class Watch:
    """Shows a grid while it runs: the table in a terminal, otherwise a line for each run that starts or ends."""

    def __init__(self, directory: GridDirectory, every: float = 1.0) -> None:
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
                text = f"{one.run.title} seed {one.run.seed}: {one.state} {describe_status(one)}".rstrip()
                messages.print(text, highlight=False, markup=False, soft_wrap=True)
