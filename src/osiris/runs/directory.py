"""runs/NAME: the files of one run. One process at a time writes them, and never through a link to somewhere else."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import shutil
import subprocess
import time
from dataclasses import dataclass, replace
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
from osiris.runs.lock import LOCK, lock_directory, unlock
from osiris.runs.untrusted import safe_name

MAY_CHANGE = {
    *("save_every", "log_every", "tensorboard", "wandb", "skip_bad_steps", "track_overfitting"),
    *("device", "micro_batch", "images_on_device", "data_dir", "readout"),
}
"""Settings that may differ when a run is continued. `device` and `micro_batch` change how a step is computed, not what:
the continued run agrees with an uninterrupted one up to rounding. Every `readout` is made from the same sums."""


START = "00-start"
"""The folder of what belongs to a pretrained encoder before it learned anything here."""


@dataclass(frozen=True)
class EpisodeFolder:
    """The files of one episode: episodes/03-2026-11."""

    path: Path

    @property
    def weights(self) -> Path:
        """f, g and h after the episode, and which images the memory held."""
        return self.path / "weights.safetensors"

    @property
    def moments(self) -> Path:
        """Sums that a method learned in this episode. They go when the episode is taken back, not with old weights."""
        return self.path / "moments.safetensors"

    @property
    def evaluation(self) -> Path:
        """The evaluation after the episode: arrays, and its numbers in the metadata."""
        return self.path / "evaluation.safetensors"

    @property
    def observation(self) -> Path:
        """What the episode did to the features of a learner; in the folder of the start, its reference scores."""
        return self.path / "observation.json"

    def point(self, step: int) -> Path:
        """The numbers of an evaluation between two steps."""
        return self.path / "points" / f"{step:07d}.json"

    @property
    def points(self) -> list[Path]:
        return sorted((self.path / "points").glob("*.json"), key=lambda path: (len(path.name), path.name))


def folder_name(task: int, name: str) -> str:
    """`03-2026-11` for task 2: in names of files, tasks count from 1. The true name is in progress.json."""
    return f"{task + 1:02d}-{safe_name(name)}"


class RunDirectory:
    """The paths of a run, locked and checked while it is open."""

    def __init__(self, path: Path, owner: bool = True) -> None:
        """`owner`: this process locks and writes; other processes of the same run only read."""
        self.path, self.owner = path, owner
        self._lock: int | None = None
        self._created = False
        self._other = False
        """Whether config.json is that of another run, of which nothing was saved."""

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
    def progress(self) -> Path:
        """Which episodes there are, where the run stands, and which files belong to that; written last."""
        return self.path / "progress.json"

    @property
    def episodes(self) -> Path:
        """A folder for each episode."""
        return self.path / "episodes"

    def episode(self, folder: str) -> EpisodeFolder:
        return EpisodeFolder(self.episodes / folder)

    @property
    def start(self) -> EpisodeFolder:
        """The pretrained encoder that the run started from."""
        return self.episode(START)

    @property
    def has_learned(self) -> bool:
        """Whether there is anything that learning made, be it without progress.json."""
        weights = (path.parent.name for path in self.episodes.glob("*/weights.safetensors"))
        return self.progress.exists() or self.metrics.exists() or any(name != START for name in weights)

    @property
    def evaluations(self) -> Path:
        """What `osiris evaluate RUN` measured: a folder for each data and protocol."""
        return self.path / "evaluations"

    @property
    def compatibility(self) -> Path:
        """What `osiris evaluate RUN --compatibility` measured."""
        return self.path / "compatibility.json"

    def __enter__(self) -> RunDirectory:
        if not self.owner:
            return self
        self._created = not self.path.exists()
        self._lock = lock_directory(self.path)
        return self

    def __exit__(self, *_: object) -> None:
        if self._lock is None:
            return
        if not self.config.exists():  # the run never started: leave nothing behind
            with contextlib.suppress(OSError):
                self.lock_file.unlink()
                if self._created:
                    self.path.rmdir()
        unlock(self._lock)

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
        if differing and not self.has_learned:
            self._other = True
            return config.complete()
        if differing:
            raise UserError(f"{self.path} already contains a different run: {differing}. Choose another directory.")
        return config

    def record(self, config: Config, composition: dict[str, Any], device: str, world: int) -> None:
        """Write config.json once, after all checks, and one entry per start to environment.json, because a run may
        move to another machine."""
        if self._other or not self.config.exists() or read_config(self.path).encoder.readout != config.encoder.readout:
            write_json(self.config, {"config": to_dict(config), "composition": composition})
        try:
            starts = msgspec.convert(read_json(self.environment), list[dict]) if self.environment.exists() else []
        except ValueError:
            warn(f"{self.environment} is damaged; it is started again without the entries of earlier starts.")
            starts = []
        write_json(self.environment, [*starts, environment(device, world)])

    def clear(self) -> None:
        """Remove every file of the run; what others have put into the directory stays. The config goes last, before it
        progress.json, which says that there is nothing: after a kill, the same call completes it."""
        for file in (self.metrics, self.observations, self.baselines, self.compatibility):
            file.unlink(missing_ok=True)
        for name in ("episodes", self.index.name, "evaluations", "tensorboard", "wandb"):
            shutil.rmtree(self.path / name, ignore_errors=True)
        for leftover in self.path.glob(".*.tmp"):
            leftover.unlink(missing_ok=True)
        for file in (self.log, self.environment, self.progress, self.config):
            file.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self.lock_file.unlink()
            self.path.rmdir()

    def require_present(self) -> None:
        """Refuse to save into a directory that was removed or renamed: saving would create a part of it again."""
        if not self.config.exists():
            raise UserError(f"{self.path} was removed or renamed while the run was using it; nothing more is saved.")


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
        record = read_json(file, finite=False)  # the option is named where its range is checked
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
