"""What the fork server's children do: the command line as a user types it, perhaps with a death on the way."""

import inspect
import json
import os
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch

from osiris import cli, files
from osiris.commands import train as _preloaded  # noqa: F401
from osiris.evaluation import evaluate
from osiris.framework.representations import Frozen
from osiris.framework.trainable import TrainableMethod
from osiris.training import run as training_run
from osiris.training.engine import Engine
from osiris.training.log import JsonLines
from process_jobs import worker

torch.optim.SGD(
    [torch.zeros(1, requires_grad=True)]
).step()  # makes torch import its compiler, here and not in children


__all__ = ["command", "cramped", "doomed", "full", "traced", "worker"]


def command(arguments: list[str]) -> int:
    """`osiris ARGUMENTS`"""
    return cli.main(arguments)


def doomed(arguments: list[str], death: int | None, counted: str | None = None, moves: bool = False) -> int:
    """`osiris ARGUMENTS`, killed by SIGKILL at its `death`-th moment; `counted`: a file for the number of moments.

    Moments lie before and after everything that changes the state of a run, in memory or on the disk: steps, updates,
    ends of tasks, snapshots, embeddings, every line of the log and every file that moves into its place. `moves`: the
    last ones alone.
    """
    moments = _Moments(death)
    everything = (
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
        (files, "write_atomically"),
        (training_run, "save_tensors"),
        (evaluate, "embed_benchmark"),
        (evaluate, "evaluate_features"),
    )
    for owner, name in ((Path, "replace"),) if moves else everything:
        moments.surround(owner, name)
    code = cli.main(arguments)
    if counted is not None:
        Path(counted).write_text(str(moments.passed))
    return code


def traced(commands: list[list[str]], out: str) -> int:
    """`osiris COMMAND` one after the other. For each, [file, function] of every function of osiris that it enters, in
    order; what runs while a module is imported is left out."""
    root, entered, trace, known = f"{Path(cli.__file__).parent}/", list[tuple[str, str]](), [], set[CodeType]()

    def importing(frame: FrameType | None) -> bool:
        while frame is not None and frame.f_code.co_filename != __file__:
            if frame.f_code.co_name == "<module>":
                return True
            frame = frame.f_back
        return False

    def enter(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(root) or not code.co_flags & inspect.CO_OPTIMIZED:
            return  # bodies of modules and classes are not functions
        if code in known or not importing(frame):
            known.add(code)
            entered.append((code.co_filename.removeprefix(root), code.co_qualname))

    for arguments in commands:
        sys.setprofile(enter)
        code = cli.main(arguments)
        sys.setprofile(None)
        if code != 0:
            return code
        trace.append([*entered])
        entered.clear()
    Path(out).write_text(json.dumps(trace))
    return 0


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


def full(arguments: list[str], most: int) -> int:
    """`osiris ARGUMENTS` on a disk on which no file grows beyond `most` bytes."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))
    return cli.main(arguments)


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
