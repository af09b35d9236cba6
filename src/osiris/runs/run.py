"""Finished runs, read from their directories: for tables, figures and reports, on any machine."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from osiris.console import notice, warn
from osiris.errors import UserError
from osiris.evaluation.embedder import Embedder
from osiris.evaluation.encoder_files import load_checkpoint
from osiris.evaluation.scores import Compatibility, read_record
from osiris.evaluation.statistics import mean
from osiris.files import Missing, flat, load_tensors, open_regular
from osiris.framework.composition import method_from_dict
from osiris.framework.methods import Method
from osiris.framework.source import sources
from osiris.runs.afterwards import with_others
from osiris.runs.directory import EpisodeFolder, RunDirectory
from osiris.runs.progress import Progress, consistent, episode_folder, read_progress
from osiris.runs.records import (
    Baselines,
    Line,
    Observations,
    OverfittingLine,
    RunMetrics,
    StepLine,
    read_line,
)
from osiris.runs.state import MemoryContent, load_state
from osiris.runs.untrusted import harmless, read_received, shortened
from osiris.runs.views import current_metrics, observations_of

LABEL = 44
"""Longest label, in characters."""


@dataclass(frozen=True)
class Run:
    """A run directory with its metrics.json. Files that were not copied along count as empty."""

    path: Path
    metrics: RunMetrics
    number: int = 0
    """In a report: its position in the list of commands, from 1."""
    variant: str = ""
    """In a report: the settings in which it differs from other runs of its method, such as `epochs=48`."""
    afterwards: Mapping[str, Path] = field(default_factory=dict)
    """Protocol -> the folder of `osiris evaluate RUN` in which it was measured, if the run itself did not."""

    def _repr_html_(self) -> str:
        """In a notebook: the table and the curve."""
        from osiris.reporting.notebook import run_html  # imports matplotlib, and this module

        return run_html(self)

    @cached_property
    def files(self) -> RunDirectory:
        return RunDirectory(self.path)

    @cached_property
    def progress(self) -> Progress | None:
        """progress.json; None if it was not copied along, or if nothing was saved."""
        return read_progress(self.files)

    def folder(self, task: int) -> EpisodeFolder | None:
        """The files of a task that is learned, counted from 0; None if it is not."""
        progress = self.progress
        if progress is None or not 0 <= task < progress.finished:
            return None
        return episode_folder(self.files, progress, task)

    @property
    def method(self) -> str:
        return self.metrics.method

    @property
    def full_label(self) -> str:
        return f"{self.method} ({self.variant})" if self.variant else self.method

    @property
    def label(self) -> str:
        """The method with its variant: `osiris-d (epochs=48)`. Labels that are cut differ in their last four digits."""
        text = self.full_label
        if len(text) <= LABEL:
            return text
        return f"{shortened(text, LABEL - 5)} {hashlib.sha256(text.encode(errors='replace')).hexdigest()[:4]}"

    @property
    def seed(self) -> int:
        return self.metrics.seed

    @property
    def continual(self) -> bool:
        return self.metrics.continual

    @property
    def task_count(self) -> int:
        return len(self.metrics.task_names)

    @property
    def norm(self) -> str:
        """Normalisation of the encoder: gn or bn."""
        return self.metrics.fingerprint.encoder.get("norm", "gn")

    @cached_property
    def config(self) -> dict[str, Any]:
        """config.json, flat: `learning.epochs`; `method.source`: digests of the user's own terms."""
        record = read_received(self.files.config, dict)
        settings = record.get("config", record)
        if not isinstance(settings, dict):
            raise UserError(f"{self.files.config} is not the config.json of a run: its `config` is not an object.")
        own = sources(record["composition"]) if isinstance(record.get("composition"), dict) else {}
        return flat(settings) | ({"method.source": ", ".join(f"{k} {v[:6]}" for k, v in own.items())} if own else {})

    @cached_property
    def composition(self) -> Method | None:
        """The method in config.json; None if that is missing or names terms of a module that is not installed here."""
        record = read_received(self.files.config, dict).get("composition")
        try:
            return method_from_dict(record) if record else None
        except UserError:
            return None

    @property
    def uses_memory(self) -> bool:
        """Whether any term reads the memory; an unknown composition is assumed to."""
        if self.composition is None:
            return self.method not in ("ft", "offline", "d1-only")
        return self.composition.reads_memory

    @cached_property
    def environment(self) -> list[dict[str, Any]]:
        """environment.json: one entry per start of the run."""
        return read_received(self.files.environment, list)

    @property
    def command(self) -> str:
        """The command line of the first start, or the call in Python and its script."""
        if not self.environment:
            return "(environment.json was not copied along)"
        first = self.environment[0]
        if self.repeatable:
            return str(first["command"])
        script, call = first.get("script"), first.get("call") or "a call in Python"
        if not isinstance(script, dict):
            return f"{call} (in Python)"
        typed = " ".join(map(str, (script.get("path"), *(script.get("arguments") or ()))))
        return f"{call} in python {typed} (sha256 {str(script.get('sha256'))[:12]})"

    @property
    def repeatable(self) -> bool:
        """Whether a command line made the run."""
        return bool(self.environment) and isinstance(self.environment[0].get("command"), str)

    @cached_property
    def log(self) -> list[Line]:
        """log.jsonl, without lines that a crash cut short."""
        try:
            with open_regular(self.files.log) as file:
                lines = map(read_line, file)
                return [line for line in lines if line is not None]
        except FileNotFoundError:
            return []
        except msgspec.ValidationError as error:
            raise UserError(f"{self.files.log} has a line that no run writes: {error}.") from None

    @cached_property
    def steps_logged(self) -> list[StepLine]:
        """The logged steps of finished tasks: an episode that was interrupted has no place on the axis yet."""
        return [line for line in self.log if isinstance(line, StepLine) and line.task <= self.task_count]

    @cached_property
    def overfitting_logged(self) -> list[OverfittingLine]:
        return [line for line in self.log if isinstance(line, OverfittingLine)]

    @cached_property
    def steps(self) -> dict[int, int]:
        """Task (from 1) -> its number of steps."""
        counts: dict[int, int] = {}
        for record in self.steps_logged:
            counts[record.task] = max(counts.get(record.task, 0), record.step)
        return counts

    def place(self, task: int, step: int) -> float:
        """Where a step of a task (from 0) lies on an axis that counts tasks."""
        part = step / max(1, self.steps.get(task + 1, 0))
        return task + part if self.continual else self.task_count * part

    def baseline_accuracies(self, protocol: str) -> dict[str, float]:
        """A of features that were not learned, under one protocol: from `osiris evaluate RUN --baseline NAME`."""
        path, measured = self.files.baselines, {}
        if path.exists():
            try:
                measured = read_record(path, Baselines).baselines
            except UserError as error:
                warn(f"{error} Its baselines are left out: measure them again with osiris evaluate --baseline.")
        accuracies = {harmless(name): mean(one.protocols.get(protocol, [])) for name, one in measured.items()}
        return {name: accuracy for name, accuracy in accuracies.items() if accuracy is not None}

    @cached_property
    def observations(self) -> Observations:
        """What each episode of a learner did to the features; empty for other runs."""
        return observations_of(self.files, self.progress)

    @cached_property
    def compatibility(self) -> Compatibility | None:
        """What `osiris.compatibility` measured; None if it did not, or if the run had fewer tasks then."""
        path = self.files.compatibility
        if not path.exists():
            return None
        record = read_record(path, Compatibility)
        matrices = [matrix for one in (record.raw, record.mapped) for matrix in (one.recall, one.same_class)]
        if any([*map(len, matrix)] != [*range(len(record.same_class))] for matrix in matrices):
            raise UserError(f"{path} is damaged: row t of a matrix needs a number for each s < t. Measure it again.")
        return record if len(record.same_class) == self.task_count else None

    @cached_property
    def weights(self) -> dict[int, Path]:
        """Task (from 0) -> its weights, of those that are still there."""
        tasks = range(0 if self.progress is None else self.progress.finished)
        files = {task: folder.weights for task in tasks if (folder := self.folder(task)) is not None}
        return {task: file for task, file in files.items() if file.exists()}

    @property
    def checkpoints(self) -> list[Path]:
        """The files with the weights after each task."""
        return list(self.weights.values())

    def checkpoint(self, task: int = -1) -> Path:
        """The weights after a task, counted from 0; -1 is the last."""
        paths = self.checkpoints
        if not -len(paths) <= task < len(paths):
            raise UserError(f"{self.path} has the weights of {len(paths)} tasks, so there is no task {task}.")
        return paths[task]

    def encoder(self, task: int = -1) -> nn.Module:
        """The encoder after a task (counted from 0; -1 is the last), in evaluation mode: normalised images
        [B, 3, H, W] to features [B, D]. Use `embed` for images that are not normalised."""
        return load_checkpoint(self.checkpoint(task)).module.eval()

    def embed(self, images: Any, task: int = -1) -> Tensor:
        """float32 [N, D]: the features of images by the encoder after a task.

        `images`: whatever `benchmark_from` takes, such as a uint8 array [N, H, W, 3], a list of image files or a
        folder; or one image file. They are resized and normalised as in the training of the encoder.
        """
        return Embedder(self.checkpoint(task))(images).features

    def arrays(self, task: int | None = None) -> dict[str, np.ndarray]:
        """The arrays of the evaluation after a task (from 0; default: the last); empty if there is no file.

        They are in the folders of the episodes, and beside metrics.json in the output of `osiris evaluate`.
        """
        path = self._evaluation(task)
        try:
            tensors = {} if path is None else load_tensors(path)[0]
        except Missing:
            return {}
        except UserError as error:
            raise UserError(f"{error} Was the copy interrupted?") from None
        return {name: tensor.numpy() for name, tensor in tensors.items()}

    def _evaluation(self, task: int | None) -> Path | None:
        if self.progress is not None:
            folder = self.folder(self.progress.finished - 1 if task is None else task)
            return None if folder is None else folder.evaluation
        found = files_by_task(self.path)
        return found.get(max(found, default=0) if task is None else task)

    def hits(self, protocol: str) -> tuple[np.ndarray, np.ndarray] | None:
        """(bool [test images]: whether the final model was right, int [test images]: their tasks), or None."""
        folder = self.afterwards.get(protocol)
        arrays = self.arrays() if folder is None else Run(folder, self.metrics).arrays()
        predicted = arrays.get(f"prediction.{protocol}")
        return None if predicted is None else (predicted == arrays["label"], arrays["task"])

    def memory(self, task: int | None = None) -> tuple[np.ndarray, np.ndarray] | None:
        """(positions in their tasks, tasks) of the images in the memory after a task (from 0; default: the last), or
        None."""
        path = self.weights.get(max(self.weights, default=0) if task is None else task)
        if path is None:
            return None
        try:
            with open_regular(path), safe_open(path, framework="numpy") as file:
                if "memory.source" not in file.keys():  # noqa: SIM118 (not a mapping)
                    return None
                return file.get_tensor("memory.source"), file.get_tensor("memory.task")
        except SafetensorError as error:
            raise UserError(f"{path} is damaged ({error}). Was the copy interrupted?") from None

    def memory_content(self) -> MemoryContent | None:
        """The images of the memory as they are now; None if the state was not copied along."""
        state = load_state(self.files)
        return None if state is None else state.memory


def task_name(task: int) -> str:
    """`task-03` for task 2: the name of an encoder in the output of `osiris evaluate`."""
    return f"task-{task + 1:02d}"


def files_by_task(folder: Path) -> dict[int, Path]:
    """Task (from 0) -> its file in the output of `osiris evaluate`, in order."""
    numbered = {int(file.stem[5:]) - 1: file for file in folder.glob("task-*.safetensors") if file.stem[5:].isdecimal()}
    return dict(sorted(numbered.items()))


def open_run(path: Path) -> Run:
    """A run with its metrics, and progress.json that belongs to them."""

    def read(progress: Progress | None) -> Run:
        own = msgspec.convert(harmless(current_metrics(files, progress).plain()), RunMetrics)
        metrics, afterwards = with_others(own, files)
        run = Run(path, metrics, afterwards=afterwards)
        run.__dict__["progress"] = progress  # read once: a frozen dataclass has no other way to know it before it asks
        return run

    files = RunDirectory(path)
    return consistent(files, read)


def load_runs(paths: Iterable[Path | str]) -> list[Run]:
    """Runs from run directories, or from folders that hold run directories (at any depth), in a stable order.

    Damaged runs are named in a warning and left out; it is an error if none is left.
    """
    runs: dict[Path, Run] = {}
    damaged: list[str] = []
    for path in map(Path, paths):
        if not path.exists():
            raise UserError(f"{path} does not exist.")
        files = _find(path)
        if not files and not RunDirectory(path).config.exists():  # a run that has not finished has got a notice
            raise UserError(f"{path} holds no finished run: there is no metrics.json in it or below it.")
        for file in files:
            try:
                runs.setdefault(file.parent.resolve(), open_run(file.parent))
            except UserError as error:
                damaged.append(str(error))
    if not runs:
        raise UserError(" ".join(damaged) or "none of these runs has finished.")
    for message in damaged:
        warn(f"{message} The run is left out.")
    return list(runs.values())


def _find(folder: Path) -> list[Path]:
    """metrics.json of the runs in a folder. Other evaluations inside a run are not runs; a run without metrics has not
    finished and is left out with a notice."""
    files = RunDirectory(folder)
    if files.metrics.exists():
        return [files.metrics]
    if files.config.exists():
        notice(f"{folder} is left out: it has no metrics.json yet.")
        return []
    if not folder.is_dir():
        return []
    return [file for inner in sorted(folder.iterdir()) if inner.is_dir() for file in _find(inner)]
