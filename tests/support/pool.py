"""A pool of two processes joined by gloo: started once, used by every test."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from contextlib import ExitStack
from multiprocessing.connection import Listener
from pathlib import Path
from typing import Any

from fork_server import ForkServer

PATIENCE = 120
"""Seconds until a silent pool counts as hanging."""


class Failed(Exception):
    """Processes of the pool raised; `errors` has (type, message, traceback) or None for each of them."""

    def __init__(self, errors: Sequence[tuple[str, str, str] | None]) -> None:
        super().__init__("\n".join(error[2] for error in errors if error))
        self.errors = errors


class Pool:
    """`pool.run("gradients", ...)` computes that function of process_jobs.py in every process."""

    def __init__(self, server: ForkServer, folder: Path, world: int = 2) -> None:
        self.output = folder / "output"
        with ExitStack() as stack:
            listeners = [stack.enter_context(Listener(str(folder / f"socket-{rank}"))) for rank in range(world)]
            for rank, listener in enumerate(listeners):
                where = {"rank": rank, "world": world, "store": str(folder / "store"), "address": listener.address}
                server.start("worker", self.output, **where)
            self.connections = [listener.accept() for listener in listeners]

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
