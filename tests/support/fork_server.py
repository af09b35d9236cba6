"""Jobs in processes that start at once: the fork server of multiprocessing has imported everything when it forks.

Importing torch takes seconds, and these tests start hundreds of runs. A child is a process of its own: it can be
killed, stopped and waited for like any other.
"""

import multiprocessing
import os
import pickle
import signal
import sys
from collections.abc import Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NoReturn

import pytest

CONTEXT = multiprocessing.get_context("forkserver")
PATIENCE = 240
"""Seconds until a silent pool counts as hanging."""


def start(job: str, output: Path, **arguments: Any) -> BaseProcess:
    """A function of jobs.py in a new process. What it prints goes to the file `output`."""
    CONTEXT.set_forkserver_preload(["jobs"])
    process = CONTEXT.Process(target=_child, args=(job, output, os.environ["OSIRIS_CACHE"], arguments), daemon=True)
    with pytest.MonkeyPatch.context() as patch:  # the server is started with the first process, and must find jobs.py
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
        process.start()
    return process


def wait(process: BaseProcess) -> int | None:
    """The exit code (negative: the signal that killed it)."""
    process.join()
    return process.exitcode


def run(job: str, output: Path, **arguments: Any) -> int | None:
    return wait(start(job, output, **arguments))


def no_fsync() -> None:
    """What a process has written survives its death without it, and no test cuts the power: 40 times 8 ms a run."""
    os.fsync = lambda _: None


def default_signals() -> None:
    """As in a terminal: a process inherits that a signal is ignored."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def _child(job: str, output: Path, cache: str, arguments: dict[str, Any]) -> NoReturn:
    import jobs

    default_signals()
    no_fsync()
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.environ["OSIRIS_CACHE"] = cache
    sys.exit(getattr(jobs, job)(**arguments))


class Failed(Exception):
    """Processes of the pool raised; `errors` has (type, message, traceback) or None for each of them."""

    def __init__(self, errors: Sequence[tuple[str, str, str] | None]) -> None:
        super().__init__("\n".join(error[2] for error in errors if error))
        self.errors = errors


class Pool:
    """Two processes joined by gloo. `pool.run("gradients", ...)` computes a function of process_jobs.py in both."""

    def __init__(self, folder: Path) -> None:
        self.output, pipes = folder / "output", [CONTEXT.Pipe() for _ in range(2)]
        for rank, (_, theirs) in enumerate(pipes):
            start("worker", self.output, rank=rank, store=str(folder / "store"), connection=theirs)
        self.connections = [ours for ours, _ in pipes]

    def run(self, job: str, each: Sequence[dict[str, Any]] = ({}, {}), **arguments: Any) -> list[Any]:
        """The results by rank; `each`: further arguments that differ between the processes."""
        for connection, own in zip(self.connections, each, strict=True):
            connection.send_bytes(pickle.dumps((job, {**arguments, **own})))
        answers = []
        for connection in self.connections:
            assert connection.poll(PATIENCE), f"{job} hangs:\n{self.output.read_text()}"
            answers.append(pickle.loads(connection.recv_bytes()))
        if any(error for _, error in answers):
            raise Failed([error for _, error in answers])
        return [result for result, _ in answers]
