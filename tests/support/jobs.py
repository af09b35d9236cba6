"""What the fork server's children do: the command line as a user types it, perhaps with a death on the way."""

import os
import resource
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from osiris import cli
from osiris.commands import train as _preloaded  # noqa: F401
from osiris.evaluation import evaluate
from osiris.framework.representations import Frozen
from osiris.framework.trainable import TrainableMethod
from osiris.training import checkpoint, loop, run_files
from osiris.training.engine import Engine
from osiris.training.loggers import JsonLines
from process_jobs import worker

torch.optim.SGD(
    [torch.zeros(1, requires_grad=True)]
).step()  # makes torch import its compiler, here and not in children


__all__ = ["command", "cramped", "doomed", "worker"]


def command(arguments: list[str]) -> int:
    """`osiris ARGUMENTS`"""
    return cli.main(arguments)


def doomed(arguments: list[str], death: int | None, counted: str | None = None) -> int:
    """`osiris ARGUMENTS`, killed by SIGKILL at its `death`-th moment; `counted`: a file for the number of moments.

    Moments lie before and after everything that changes the state of a run, in memory or on the disk: steps, updates,
    ends of tasks, snapshots, embeddings, every line of the log and every file that moves into its place.
    """
    moments = _Moments(death)
    for owner, name in (
        (Engine, "step"),
        (Engine, "_update"),
        (Engine, "_offer"),
        (TrainableMethod, "begin_task"),
        (TrainableMethod, "after_step"),
        (TrainableMethod, "end_task"),
        (Frozen, "update"),
        (JsonLines, "log"),
        (Path, "replace"),
        (torch, "save"),
        (checkpoint, "save_tensors"),
        (evaluate, "evaluate_features"),
        (loop, "embed_benchmark"),
        (run_files, "evaluate_features"),
    ):
        moments.surround(owner, name)
    code = cli.main(arguments)
    if counted is not None:
        Path(counted).write_text(str(moments.passed))
    return code


class _Moments:
    def __init__(self, death: int | None) -> None:
        self.death, self.passed = death, 0

    def surround(self, owner: Any, name: str) -> None:
        function: Callable[..., Any] = getattr(owner, name)

        def surrounded(*arguments: Any, **named: Any) -> Any:
            self.arrive()
            result = function(*arguments, **named)
            self.arrive()
            return result

        setattr(owner, name, surrounded)

    def arrive(self) -> None:
        self.passed += 1
        if self.passed == self.death:
            os.kill(os.getpid(), signal.SIGKILL)


def cramped(arguments: list[str], saves: int) -> int:
    """`osiris ARGUMENTS` on a disk that is full from the `saves`-th checkpoint on: no file grows beyond a few bytes."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    save, done = torch.save, [0]

    def counted(*given: Any, **named: Any) -> None:
        done[0] += 1
        if done[0] > saves:
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
        save(*given, **named)

    torch.save = counted
    return cli.main(arguments)
