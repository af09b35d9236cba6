"""runs/NAME: the files of one run. One process at a time writes them, and never through a link to somewhere else."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import platform
import re
import shutil
import socket
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy
import torch

import osiris
from osiris.config import Config, from_dict, to_dict
from osiris.console import warn
from osiris.errors import UserError
from osiris.files import flat, read_json, write_json
from osiris.framework.config import MethodConfig
from osiris.invocation import invocation

MAY_CHANGE = {
    *("save_every", "log_every", "tensorboard", "wandb", "skip_bad_steps", "track_overfitting"),
    *("device", "micro_batch", "images_on_device", "data_dir"),
}
"""Settings that may differ when a run is continued. `device` and `micro_batch` change how a step is computed, not what:
the continued run agrees with an uninterrupted one up to rounding."""


START = "start"
"""The name of what belongs to a pretrained encoder before it learned anything here."""
CURVE = "curve-"
"""Names of evaluations between steps begin with it."""
LOCK = ".lock"
NO_LOCK = "OSIRIS_NO_LOCK"
"""The environment variable that every command obeys."""


class RunDirectory:
    """The paths of a run, locked and checked while it is open."""

    def __init__(self, path: Path, owner: bool = True) -> None:
        """`owner`: this process locks and writes; other processes of the same run only read."""
        self.path, self.owner = path, owner
        self._lock: int | None = None
        self._created = False

    @property
    def config(self) -> Path:
        return self.path / "config.json"

    @property
    def environment(self) -> Path:
        """Versions, hardware, and the command or call, one entry per start."""
        return self.path / "environment.json"

    @property
    def log(self) -> Path:
        return self.path / "log.jsonl"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.json"

    @property
    def baselines(self) -> Path:
        """What `osiris evaluate RUN --baseline NAME` measured."""
        return self.path / "baselines.json"

    @property
    def observations(self) -> Path:
        """What each episode of a learner's state did to the features."""
        return self.path / "observations.json"

    @property
    def lock_file(self) -> Path:
        """Which process uses the run."""
        return self.path / LOCK

    @property
    def index(self) -> Path:
        """The vectors of `osiris index`, a folder with a lock of its own."""
        return self.path / "index"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def before(self) -> Path:
        """The state before the last episode, with which it can be taken back."""
        return self.checkpoints / "before"

    @property
    def taken_back(self) -> Path:
        """Exists from the time when an episode was taken back until the next one begins."""
        return self.checkpoints / "taken-back"

    @property
    def evaluation(self) -> Path:
        return self.path / "evaluation"

    @property
    def evaluations(self) -> Path:
        """What `osiris evaluate RUN` measured: a folder for each data and protocol."""
        return self.path / "evaluations"

    @property
    def start_weights(self) -> Path:
        """The pretrained encoder that the run started from."""
        return self.checkpoints / f"{START}.safetensors"

    @property
    def start_scores(self) -> Path:
        """The numbers of its evaluation."""
        return self.evaluation / f"{START}.json"

    @property
    def compatibility(self) -> Path:
        """What `osiris evaluate RUN --compatibility` measured."""
        return self.evaluation / "compatibility.json"

    def weights(self, task: int) -> Path:
        """f, g and h after a task, counted from 0."""
        return self.checkpoints / f"{task_name(task)}.safetensors"

    def scores(self, task: int) -> Path:
        """The numbers of a task's evaluation."""
        return self.evaluation / f"{task_name(task)}.json"

    def curve_scores(self) -> list[Path]:
        """The numbers of the evaluations between steps, in order."""
        return sorted(self.evaluation.glob(f"{CURVE}*.json"), key=lambda path: (len(path.name), path.name))

    def all_weights(self) -> dict[int, Path]:
        """Task (from 0) -> its weights, of those that are still there."""
        return files_by_task(self.checkpoints)

    def __enter__(self) -> RunDirectory:
        if not self.owner:
            return self
        self._created = not self.path.exists()
        self._lock = lock_directory(self.path)
        return self

    def __exit__(self, *_: object) -> None:
        if self._lock is None:
            return
        os.truncate(self._lock, 0)
        if not self.config.exists():  # the run never started: leave nothing behind
            with contextlib.suppress(OSError):
                self.lock_file.unlink()
                if self._created:
                    self.path.rmdir()
        os.close(self._lock)

    def claim(self, config: Config) -> Config:
        """Make sure that the directory is empty or holds this very run; returns the config, completed.

        Without --threads, a continued run keeps its number of threads, because another machine may have more cores.
        """
        if not self.config.exists():
            ours = (LOCK, ".config.json.")  # the second: a kill while the config was being written
            others = [item.name for item in self.path.iterdir() if not item.name.startswith(ours)]
            if others:
                raise UserError(
                    f"{self.path} contains other files ({others[0]}, ...); choose an empty or new directory."
                )
            return config.complete()
        existing = read_config(self.path)
        if config.engine.threads is None:
            config = replace(config, engine=replace(config.engine, threads=existing.engine.threads))
        differing = differences(settings(existing), settings(config))
        if differing:
            raise UserError(f"{self.path} already contains a different run: {differing}. Choose another directory.")
        return config

    def record(self, config: Config, composition: dict[str, Any], device: str, world: int) -> None:
        """Write config.json once, after all checks, and one entry per start to environment.json, because a run may
        move to another machine."""
        self.remove_leftovers()
        if not self.config.exists():
            write_json(self.config, {"config": to_dict(config), "composition": composition})
        try:
            starts = msgspec.convert(read_json(self.environment), list[dict]) if self.environment.exists() else []
        except ValueError:
            warn(f"{self.environment} is damaged; it is started again without the entries of earlier starts.")
            starts = []
        write_json(self.environment, [*starts, environment(device, world)])

    def remove_leftovers(self) -> None:
        """What a kill in the middle of writing has left behind."""
        for folder in (self.path, self.checkpoints, self.evaluation):
            for leftover in folder.glob(".*.tmp") if folder.is_dir() else ():
                whole = leftover.is_dir() and not leftover.is_symlink()
                shutil.rmtree(leftover) if whole else leftover.unlink(missing_ok=True)

    def clear(self) -> None:
        """Remove every file of the run; what others have put into the directory stays. The config goes last, before it
        the checkpoint: after a kill, the same call completes it."""
        for file in (self.metrics, self.observations, self.baselines, *self.all_weights().values()):
            file.unlink(missing_ok=True)
        for name in (self.evaluation.name, self.index.name, "evaluations", "tensorboard", "wandb"):
            shutil.rmtree(self.path / name, ignore_errors=True)
        self.remove_leftovers()
        shutil.rmtree(self.checkpoints, ignore_errors=True)
        for file in (self.log, self.environment, self.config):
            file.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self.lock_file.unlink()
            self.path.rmdir()

    def require_present(self) -> None:
        """Refuse to save into a directory that was removed or renamed: saving would create a part of it again."""
        if not self.config.exists():
            raise UserError(f"{self.path} was removed or renamed while the run was using it; nothing more is saved.")


def lock_directory(path: Path) -> int:
    """Create the directory and its file .lock, and keep other processes out until the descriptor is closed (with
    OSIRIS_NO_LOCK=1, for file systems without locks, nobody is kept out)."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        refuse_links_to_elsewhere(path)
        lock = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
    except OSError as error:
        raise UserError(f"cannot write to {path}: {error.strerror}. Choose another directory.") from None
    try:
        if os.environ.get(NO_LOCK) != "1":
            _acquire(lock, path)
    except UserError:
        os.close(lock)
        raise
    os.truncate(lock, 0)
    with contextlib.suppress(OSError):  # on a full disk the lock has no name, but it is one
        os.write(lock, f"process {os.getpid()} on {socket.gethostname()}".encode())
    return lock


def _acquire(lock: int, path: Path) -> None:
    """The kernel releases this lock with its process, so a stale lock file never blocks. After an elastic restart, the
    process before us may need a moment to end."""
    patience = 10.0 if int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) else 0.0
    deadline = time.monotonic() + patience
    while True:
        try:
            return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise UserError(
                    f"the file system of {path} does not support locks ({error.strerror}), so osiris cannot keep other "
                    f"processes out. Choose another directory, or set {NO_LOCK}=1 if you are sure that no other "
                    "process uses this directory: two would overwrite each other's files."
                ) from None
            if time.monotonic() >= deadline:
                holder = os.read(lock, 200).decode(errors="replace").strip() or "another process"
                raise UserError(
                    f"{path} is in use by {holder}. Wait until it ends, or choose another directory."
                ) from None
            time.sleep(0.2)


def task_name(task: int) -> str:
    """`task-03` for task 2: in names of files, tasks count from 1."""
    return f"task-{task + 1:02d}"


def curve_name(task: int, step: int) -> str:
    """`curve-03-0000200`: the evaluation in task 2 after 200 steps."""
    return f"{curve_prefix(task)}{step:07d}"


def curve_prefix(task: int) -> str:
    return f"{CURVE}{task + 1:02d}-"


def files_by_task(folder: Path) -> dict[int, Path]:
    """Task (from 0) -> its safetensors file, of those that a folder still has, in order."""
    numbered = {int(file.stem[5:]) - 1: file for file in folder.glob("task-*.safetensors") if file.stem[5:].isdecimal()}
    return dict(sorted(numbered.items()))


def refuse_links_to_elsewhere(path: Path) -> None:
    """A received run or grid may hold links to files of the user: writing through them would overwrite those."""
    root = path.resolve()
    for folder, folders, files in os.walk(path):
        for name in (*folders, *files):
            item = Path(folder) / name
            if item.is_symlink() and not item.resolve().is_relative_to(root):
                raise UserError(f"{item} is a link to {item.resolve()}, outside {path}. Remove the link.")


def settings(config: Config) -> dict[str, Any]:
    """The config, flat, without what may change when a run is continued."""
    entries = flat(to_dict(config)).items()
    return {name: value for name, value in entries if name.rpartition(".")[2] not in MAY_CHANGE}


def differences(there: dict[str, Any], here: dict[str, Any]) -> str:
    """`seed is 1 there and 0 here, ...`; empty if there is no difference."""
    names = sorted(name for name in there | here if there.get(name) != here.get(name))
    return ", ".join(f"{name} is {there.get(name)!r} there and {here.get(name)!r} here" for name in names[:4])


def read_config(path: Path) -> Config:
    """The config of a run directory, or of a config.json."""
    file = path if path.is_file() or (path.suffix == ".json" and not path.is_dir()) else RunDirectory(path).config
    try:
        record = read_json(file)
    except (FileNotFoundError, NotADirectoryError):
        reason = "" if file == path else f"{path} is not a run directory: "
        raise UserError(f"{reason}{file} does not exist.") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{file} cannot be read: {error}.") from None
    if not isinstance(record, dict) or "config" not in record:
        raise UserError(f"{file} is not the config.json of a run: it has no entry `config`.")
    try:
        return from_dict(record["config"])
    except UserError as error:
        raise UserError(f"{file}: {error}") from None


def default_out(config: Config) -> Path:
    """runs/BENCHMARK-METHOD-seedN with the changes to the method, in characters that every file system allows."""
    plain = MethodConfig(method=config.method.method, pocon_interval=config.method.pocon_interval)
    changed = [f"{name}-{value}" for name, value in vars(config.method).items() if value != getattr(plain, name)]
    parts = "-".join([config.data.benchmark, config.method.method, *changed])
    return Path("runs") / re.sub(r"[^A-Za-z0-9.+-]+", "-", f"{parts}-seed{config.seed}").strip("-")


def environment(device: str, world: int) -> dict[str, Any]:
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        **invocation(),
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
