"""Finished runs, read from their directories: for tables, figures and reports, here or anywhere."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from osiris.console import notice, warn
from osiris.errors import UserError
from osiris.evaluation.metrics_file import Baselines, Fingerprint, RunMetrics, mean_present, read_metrics, read_record
from osiris.files import read_json

if TYPE_CHECKING:
    from torch import Tensor, nn


@dataclass(frozen=True)
class Run:
    """A run directory with its metrics.json."""

    path: Path
    metrics: RunMetrics

    @property
    def method(self) -> str:
        return self.metrics.method

    @property
    def benchmark(self) -> str:
        return self.metrics.benchmark

    @property
    def seed(self) -> int:
        return self.metrics.seed

    @property
    def fingerprint(self) -> Fingerprint:
        return self.metrics.fingerprint

    @property
    def continual(self) -> bool:
        return self.metrics.continual

    @property
    def complete(self) -> bool:
        return self.metrics.complete

    @property
    def protocols(self) -> list[str]:
        return list(self.metrics.protocols)

    @cached_property
    def config(self) -> dict[str, Any]:
        """config.json, flat (`learning.epochs`); empty if the file was not copied along."""
        path = self.path / "config.json"
        if not path.exists():
            return {}
        record = read_json(path)
        return _flat(record.get("config", record))

    def baseline_accuracies(self, protocol: str) -> dict[str, float]:
        """A of features that were not learned, under one protocol: the untrained encoder, and what
        `osiris evaluate RUN --baseline NAME` measured."""
        path = self.path / "baselines.json"
        measured = read_record(path, Baselines).baselines if path.exists() else {}
        accuracies = {name: mean_present(one.protocols.get(protocol, [])) for name, one in measured.items()}
        accuracies["untrained encoder"] = self.metrics[protocol].untrained
        return {name: accuracy for name, accuracy in accuracies.items() if accuracy is not None}

    def checkpoint(self, task: int = -1) -> Path:
        """The weights after a task, counted from 0; -1 is the last."""
        paths = sorted((self.path / "checkpoints").glob("task-*.safetensors"), key=lambda path: (len(path.name), path))
        if not -len(paths) <= task < len(paths):
            raise UserError(f"{self.path} has the weights of {len(paths)} tasks, so there is no task {task}.")
        return paths[task]

    def encoder(self, task: int = -1) -> nn.Module:
        """The encoder after a task (counted from 0; -1 is the last), in evaluation mode: normalised images
        [B, 3, H, W] to features [B, D]. Use `embed` for images that are not normalised."""
        from osiris.evaluation.encoder_files import load_checkpoint

        return load_checkpoint(self.checkpoint(task)).module.eval()

    def embed(self, images: Any, task: int = -1) -> Tensor:
        """float32 [N, D]: the features of images by the encoder after a task.

        `images`: whatever `benchmark_from` takes, such as a uint8 array [N, H, W, 3], a list of image files or a
        folder; or one image file. They are brought to the size and normalisation that the encoder was trained on.
        """
        from osiris.evaluation.embedding import Embedder

        return Embedder(self.checkpoint(task))(images).features

    def values(self, protocol: str) -> dict[str, float | None]:
        """A F K C T under one protocol."""
        if protocol not in self.protocols:
            available = ", ".join(self.protocols) or "none, because its images have no labels"
            raise UserError(f"{self.path} has no numbers under the protocol {protocol!r}; it has {available}.")
        return self.metrics[protocol].values()

    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays of the last evaluation at the end of a task; empty if the files were not copied along.

        They lie in `evaluation` of a run, and beside metrics.json where `osiris evaluate` put both.
        """
        from safetensors.numpy import load_file

        files = [*(self.path / "evaluation").glob("task-*.safetensors"), *self.path.glob("task-*.safetensors")]
        numbered = {int(file.stem[5:]): file for file in files if file.stem[5:].isdigit()}
        return load_file(numbered[max(numbered)]) if numbered else {}

    def hits(self, protocol: str) -> tuple[np.ndarray, np.ndarray] | None:
        """(bool [test images]: whether the final model was right, int [test images]: their tasks), or None."""
        arrays = self.arrays()
        predicted = arrays.get(f"prediction.{protocol}")
        return None if predicted is None else (predicted == arrays["label"], arrays["task"])


def load_runs(paths: Iterable[Path | str]) -> list[Run]:
    """Runs from run directories, or from folders that hold run directories (at any depth), in a stable order.

    Damaged runs are named and left out; if nothing is left, that is an error.
    """
    runs: dict[Path, Run] = {}
    damaged: list[str] = []
    for path in map(Path, paths):
        if not path.exists():
            raise UserError(f"{path} does not exist.")
        files = _find(path)
        if not files:
            raise UserError(f"{path} holds no finished run: there is no metrics.json in it or below it.")
        for file in files:
            try:
                runs.setdefault(file.parent.resolve(), Run(file.parent, read_metrics(file)))
            except UserError as error:
                damaged.append(str(error))
    if not runs and damaged:
        raise UserError(" ".join(damaged))
    for message in damaged:
        warn(f"{message} The run is left out.")
    return list(runs.values())


def _find(folder: Path) -> list[Path]:
    """metrics.json of the runs in a folder. What lies inside a run (other evaluations of it) is not a run of its own;
    a run without metrics has not finished and is left out, with a notice."""
    if (folder / "metrics.json").exists():
        return [folder / "metrics.json"]
    if (folder / "config.json").exists():
        notice(f"{folder} is left out: it has no metrics.json yet.")
        return []
    if not folder.is_dir():
        return []
    return [file for inner in sorted(folder.iterdir()) if inner.is_dir() for file in _find(inner)]


def _flat(record: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in record.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat
