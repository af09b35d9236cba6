"""Runs of a grid as jobs of a SLURM cluster, through submitit: an array job with one element for each run.

A job that reaches its time limit saves its state, goes back to the queue and continues there. The jobs do not need the
process that submitted them: it only watches, and submits failed runs again.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from osiris.console import notice
from osiris.errors import UserError, import_extra
from osiris.grids.attempts import REFUSED, Attempt, training_command
from osiris.grids.grid import GridDirectory, GridRun
from osiris.grids.journal import JournalEntry, last_entry, read_journal, record

POLL = 10.0
"""Seconds between questions to the controller."""
TIMEOUTS = 1000
"""How often a job may reach its time limit and go back to the queue."""


@dataclass(frozen=True)
class SlurmOptions:
    """What every job asks for. Only with --launcher slurm."""

    partition: str | None = None
    """The partition; None means that of the cluster."""
    time: int = 240
    """Minutes after which a job saves, goes back to the queue and continues later."""
    gpus: int = 0
    """GPUs per node."""
    cpus: int | None = None
    """CPUs per node; None means one per process."""
    nodes: int = 1
    """Nodes of each run. With several, --processes is the number on each."""
    slurm: tuple[str, ...] = ()
    """Other options of sbatch, such as account=vision qos=low mem=16G."""
    wait: bool = True
    """Watch the jobs until they end. With --no-wait, submit them and leave."""

    def parameters(self, processes: int, jobs: int | None) -> dict[str, Any]:
        """The options under the names that submitit uses."""
        others = {}
        for text in self.slurm:
            name, equals, value = text.partition("=")
            if not equals:
                raise UserError(f"--slurm {text}: write NAME=VALUE, for example --slurm account=vision.")
            others[name.strip().lstrip("-")] = value.strip()
        optional = {"partition": self.partition, "gpus_per_node": self.gpus or None, "array_parallelism": jobs}
        return {
            "job_name": "osiris",
            "time": self.time,
            "nodes": self.nodes,
            "ntasks_per_node": 1,
            "cpus_per_task": self.cpus or processes,
            # Seconds between the announcement of the time limit and the end: enough for a step and for saving.
            "signal_delay_s": min(180, 30 * self.time),
            "additional_parameters": {"requeue": True} | others,
            **{name: value for name, value in optional.items() if value is not None},
        }


class SlurmLauncher:
    """Submits a grid to a SLURM cluster as an array job (`--launcher slurm`)."""

    def __init__(
        self, directory: GridDirectory, options: SlurmOptions, jobs: int | None, retries: int, processes: int = 1
    ) -> None:
        """`jobs`: how many of the jobs may run at a time (default: as many as the cluster allows)."""
        self.directory, self.options, self.retries, self.processes = directory, options, retries, processes
        self.executor = _executor(directory.path.resolve() / "slurm", options.parameters(processes, jobs))
        self.failures: Counter[GridRun] = Counter()

    def run(self, runs: Sequence[GridRun], watch: Callable[[], None]) -> None:
        """Submit every run that is neither finished nor in the queue, then watch until no job is left."""
        self.failures.clear()
        queue = queued_jobs()
        unfinished = [run for run in runs if not self.directory.finished(run)]
        self.directory.write_configs(unfinished)
        journals = {run: read_journal(self.directory, run) for run in unfinished}
        submitted = {run: entry.job for run in unfinished for entry in journals[run] if entry.event == "submit"}
        jobs = {run: job for run, job in submitted.items() if job in queue}
        jobs |= self._submit([run for run in unfinished if run not in jobs])
        if not self.options.wait:
            notice(f"{len(jobs)} jobs are in the queue. `osiris sweep status {self.directory.path}` shows them.")
            return
        try:
            last_poll = time.monotonic()
            while jobs:
                time.sleep(min(1.0, POLL))
                watch()
                if time.monotonic() - last_poll >= POLL:
                    jobs, last_poll = self._follow(jobs), time.monotonic()
        except KeyboardInterrupt:
            notice("the jobs keep running. The same command watches them again; scancel --name osiris stops them.")
            raise

    def _follow(self, jobs: dict[GridRun, str]) -> dict[GridRun, str]:
        """Take note of the jobs that ended, and submit those again that may succeed at another try."""
        try:
            queue = queued_jobs()
        except UserError:
            return jobs  # the controller does not answer at the moment
        ended = [run for run, job in jobs.items() if job not in queue]
        again = [run for run in ended if not self.directory.finished(run) and self._retry(run, jobs[run])]
        return {run: job for run, job in jobs.items() if run not in ended} | self._submit(again)

    def _retry(self, run: GridRun, job: str) -> bool:
        """Whether to submit a run again whose job has ended without a result."""
        last, state = last_entry(self.directory, run), job_state(job)
        if last is None or last.event != "end":  # the node failed, or the job was cancelled or killed
            last = JournalEntry("end", code=1, error=f"job {job} ended: {state}")
            record(self.directory, run, last)
        self.failures[run] += 1
        cancelled = state.startswith("CANCELLED")
        return not cancelled and last.code != REFUSED and self.failures[run] <= self.retries

    def _submit(self, runs: Sequence[GridRun]) -> dict[GridRun, str]:
        if not runs:
            return {}
        from submitit.core.utils import FailedJobError

        place = GridDirectory(self.directory.path.resolve(), stop_after=self.directory.stop_after)
        work = [Job(place, run, self.processes) for run in runs]
        try:
            jobs = self.executor.submit_array(work)
        except FailedJobError as error:
            reason = [line for line in str(error).splitlines() if "sbatch: error" in line] or [str(error)]
            raise UserError(f"SLURM refuses the jobs: {reason[-1].removeprefix('sbatch: ')}") from None
        for run, job in zip(runs, jobs):
            record(self.directory, run, JournalEntry("submit", job=job.job_id))
        return {run: job.job_id for run, job in zip(runs, jobs)}


@dataclass
class Job:
    """What a job does on each of its nodes. submitit stores it in GRID/slurm, and calls `checkpoint` shortly before the
    time limit."""

    directory: GridDirectory
    run: GridRun
    processes: int
    attempt: Attempt | None = None

    def __call__(self) -> None:
        import submitit

        place = submitit.JobEnvironment()
        if self.directory.finished(self.run):
            return
        meeting = rendezvous(place.num_nodes, place.node)
        command = training_command(self.directory, self.run, self.processes, meeting)
        if place.global_rank != 0:
            # The first node records the run. SIGUSR2: see `Attempt`.
            ignore = lambda: signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # noqa: E731
            sys.exit(subprocess.run(command, preexec_fn=ignore).returncode)
        self.attempt = Attempt.start(self.directory, self.run, command)
        _wait(self.attempt)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})  # too late: the run has ended
        code = self.attempt.end()
        if code != 0:
            sys.exit(code)

    def checkpoint(self) -> Any:
        """In the handler of SIGUSR2, while `__call__` waits: stop the run and return what the queue shall do next."""
        import submitit

        if self.attempt is not None:
            self.attempt.process.terminate()
            _wait(self.attempt)
            self.attempt.end(asked=True)
        return submitit.helpers.DelayedSubmission(Job(self.directory, self.run, self.processes))


def _wait(attempt: Attempt) -> None:
    """Until the process ends. Unlike Popen.wait, this takes no lock, so that a signal handler may wait too."""
    os.waitid(os.P_PID, attempt.process.pid, os.WEXITED | os.WNOWAIT)


def rendezvous(nodes: int, node: int) -> list[str]:
    """Options of torchrun. Several nodes meet at the first one, which starts the tasks, at a port of this job alone."""
    if nodes == 1:
        return ["--standalone"]
    port = 20000 + int(os.environ["SLURM_JOB_ID"]) % 20000
    address = f"--master-addr={os.environ['SLURM_LAUNCH_NODE_IPADDR']}"
    return [f"--nnodes={nodes}", f"--node-rank={node}", address, f"--master-port={port}"]


def _executor(folder: Path, parameters: dict[str, Any]) -> Any:
    submitit = import_extra("submitit", "--launcher slurm", "slurm")
    try:
        executor = submitit.SlurmExecutor(folder=folder, max_num_timeout=TIMEOUTS)
    except RuntimeError:
        raise UserError("--launcher slurm: this machine has no SLURM (srun is not on the PATH).") from None
    executor.update_parameters(**parameters)
    return executor


def queued_jobs() -> set[str]:
    """Jobs of this user that wait or run, as `12` or, elements of arrays, as `12_3`."""
    return set(_ask(["squeue", "--me", "--noheader", "--array", "--format=%i"]).split())


def job_state(job: str) -> str:
    """`FAILED`, `OUT_OF_MEMORY`, ...; SLURM forgets a job some minutes after its end."""
    try:
        match = re.search(r"JobState=(\S+)", _ask(["scontrol", "show", "job", "--oneliner", job]))
    except UserError:
        match = None
    return match[1] if match else "SLURM does not know the reason"


def _ask(command: list[str]) -> str:
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
    except (OSError, subprocess.SubprocessError) as error:
        reason = getattr(error, "stderr", None) or error
        raise UserError(f"SLURM did not answer `{' '.join(command)}`: {str(reason).strip()}") from None
