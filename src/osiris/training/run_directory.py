"""runs/NAME: what is on disk is the truth. One process at a time, never over somebody else's files."""

from __future__ import annotations

import fcntl
import os
import platform
import shlex
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from osiris.errors import UserError
from osiris.files import read_json, write_json
from osiris.training.config import Config, from_dict, to_dict

UNIMPORTANT = {
    *("save_every", "log_every", "tensorboard", "wandb", "skip_bad_steps", "track_overfitting"),
    *("device", "micro_batch"),
}
"""Engine fields that may differ when a run is continued. The last two change how a step is computed, not what: a run
may move to another device or need less memory, and then agrees with an uninterrupted one up to rounding."""


class RunDirectory:
    """Opened for one run: locked, checked against the config, with the paths of design.md."""

    def __init__(self, path: Path, owner: bool = True) -> None:
        """`owner`: the one process of a run that locks and writes; the others only read."""
        self.path, self.owner = path, owner
        self._lock: IO[str] | None = None

    config = property(lambda self: self.path / "config.json")
    environment = property(lambda self: self.path / "environment.json")
    log = property(lambda self: self.path / "log.jsonl")
    metrics = property(lambda self: self.path / "metrics.json")
    checkpoints = property(lambda self: self.path / "checkpoints")
    evaluation = property(lambda self: self.path / "evaluation")

    def __enter__(self) -> RunDirectory:
        if not self.owner:
            return self
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = (self.path / ".lock").open("a+")
        except OSError as error:
            raise UserError(f"cannot write to {self.path}: {error.strerror}. Choose another --out.") from None
        if not self._acquire():
            self._lock.seek(0)
            holder = self._lock.read().strip() or "another process"
            self._lock.close()
            self._lock = None
            raise UserError(f"{self.path} is in use by {holder}. Wait for it, or choose another --out.")
        self._lock.truncate(0)
        self._lock.write(f"process {os.getpid()} on {socket.gethostname()}")
        self._lock.flush()
        return self

    def _acquire(self) -> bool:
        """The kernel drops this lock with its process, so a stale lock file never blocks. After an elastic restart the
        process before us may need a moment to be gone."""
        assert self._lock is not None
        patience = 10.0 if int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) else 0.0
        deadline = time.monotonic() + patience
        while True:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            except OSError:
                if time.monotonic() >= deadline:
                    return False
                time.sleep(0.2)

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._lock is not None:
            self._lock.truncate(0)
            self._lock.close()

    def claim(self, config: Config) -> Config:
        """Make sure that the directory is free or holds this very run; returns the config, complete.

        Without --threads a continued run keeps its number of threads: another machine may have more cores.
        """
        if not self.config.exists():
            ours = (".lock", ".config.json.")  # the second: a kill while the config was being written
            others = [item.name for item in self.path.iterdir() if not item.name.startswith(ours)]
            if others:
                raise UserError(f"{self.path} holds other files ({others[0]}, ...); choose an empty --out.")
            return config.complete()
        existing = read_config(self.path)
        if config.engine.threads is None:
            config = replace(config, engine=replace(config.engine, threads=existing.engine.threads))
        mine, theirs = relevant(config), relevant(existing)
        differing = sorted(key for key in mine | theirs if mine.get(key) != theirs.get(key))
        if differing:
            shown = ", ".join(f"{key} is {theirs.get(key)!r} there and {mine.get(key)!r} here" for key in differing[:4])
            raise UserError(f"{self.path} already holds a different run: {shown}. Choose another --out.")
        return config

    def record(self, config: Config, composition: dict[str, Any], device: str, world: int) -> None:
        """config.json once, after all checks; in environment.json one entry per start: a run may move to another
        machine. What a kill in the middle of writing left behind is removed."""
        for folder in (self.path, self.checkpoints, self.evaluation):
            for leftover in folder.glob(".*.tmp") if folder.is_dir() else ():
                leftover.unlink(missing_ok=True)
        if not self.config.exists():
            write_json(self.config, {"config": to_dict(config), "composition": composition})
        entries = read_json(self.environment) if self.environment.exists() else []
        write_json(self.environment, [*entries, environment(device, world)])


def relevant(config: Config) -> dict[str, Any]:
    """The config, flat, without what may change between the parts of a run."""
    flat: dict[str, Any] = {}
    for name, value in to_dict(config).items():
        if isinstance(value, dict):
            flat.update({f"{name}.{key}": item for key, item in value.items() if key not in UNIMPORTANT})
        else:
            flat[name] = value
    flat.pop("data.data_dir", None)
    return flat


def read_config(path: Path) -> Config:
    try:
        record = read_json(path / "config.json")
        return from_dict(record["config"])
    except FileNotFoundError:
        raise UserError(f"{path} is no run directory: it has no config.json.") from None
    except (KeyError, ValueError, TypeError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"{path / 'config.json'} cannot be read ({error}).") from error


def environment(device: str, world: int) -> dict[str, Any]:
    import numpy
    import torch

    import osiris

    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "command": shlex.join(["osiris", *sys.argv[1:]]),
        "osiris": osiris.__version__,
        "commit": _commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "platform": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "device": torch.cuda.get_device_name(device) if device.startswith("cuda") else device,
        "processes": world,
    }


def _commit() -> str | None:
    """The commit of the source tree, when osiris runs from one."""
    root = Path(__file__).resolve().parents[3]
    if not (root / ".git").exists():
        return None
    result = subprocess.run(["git", "-C", str(root), "rev-parse", "HEAD"], capture_output=True, text=True)
    return result.stdout.strip() or None


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
