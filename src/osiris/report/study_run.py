"""One run of a report: what its files say, in the form that figures and tables need."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgspec
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file

from osiris.errors import UserError
from osiris.evaluation.config import PROTOCOLS
from osiris.evaluation.metrics_file import Scores
from osiris.evaluation.runs import Run
from osiris.framework.composition import method_from_dict
from osiris.framework.methods import Method
from osiris.report.curves import Point
from osiris.report.untrusted import harmless, read_received

Arrays = dict[str, np.ndarray]


class LoggedStep(msgspec.Struct):
    """A line of log.jsonl about one step of training. Tasks count from 1."""

    task: int
    step: int
    loss: float | None
    terms: dict[str, float | None]
    images_per_second: float | None = None
    seconds: float | None = None
    peak_memory_mb: float | None = None


class LoggedOverfitting(msgspec.Struct):
    """A line of log.jsonl about overfitting to the memory: space -> losses and their relative difference."""

    task: int
    step: int
    spaces: dict[str, dict[str, float]]


@dataclass(frozen=True)
class StudyRun:
    """One run of a study. Files that were not copied along are treated as empty."""

    number: int
    """From 1, as in the list of commands on the page."""
    run: Run
    """Its `method` is the label that it has in the report."""
    method: str

    @property
    def label(self) -> str:
        return self.run.method

    @property
    def seed(self) -> int:
        return self.run.seed

    @property
    def continual(self) -> bool:
        return self.run.continual

    @property
    def task_count(self) -> int:
        return len(self.run.metrics.task_names)

    @property
    def norm(self) -> str:
        return self.run.fingerprint.encoder.get("norm", "gn")

    @cached_property
    def config(self) -> dict[str, Any]:
        """config.json, flat: `learning.epochs`."""
        return harmless(self.run.config)

    @cached_property
    def environment(self) -> list[dict[str, Any]]:
        """environment.json: an entry per start of the run."""
        path = self.run.path / "environment.json"
        return read_received(path, list) if path.exists() else []

    @property
    def command(self) -> str:
        """The command line of its first start."""
        return str(self.environment[0]["command"]) if self.environment else "(environment.json was not copied along)"

    @cached_property
    def log(self) -> list[dict[str, Any]]:
        """log.jsonl, without lines that a crash cut short."""
        path = self.run.path / "log.jsonl"
        records = []
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []:
            try:
                record = harmless(json.loads(line))
            except (ValueError, RecursionError):
                continue
            if isinstance(record, dict):
                records.append(record)
        return records

    @cached_property
    def steps_logged(self) -> list[LoggedStep]:
        return [msgspec.convert(record, LoggedStep) for record in self.log if record.get("event") == "step"]

    @cached_property
    def overfitting_logged(self) -> list[LoggedOverfitting]:
        records = [record for record in self.log if record.get("event") == "overfitting"]
        return [msgspec.convert(record, LoggedOverfitting) for record in records]

    @cached_property
    def composition(self) -> Method | None:
        """From config.json; None where that is missing or names terms of a module that is not installed here."""
        path = self.run.path / "config.json"
        record = read_received(path, dict).get("composition") if path.exists() else None
        try:
            return method_from_dict(record) if record else None
        except UserError:
            return None

    @property
    def uses_memory(self) -> bool:
        """Whether any term reads the memory; unknown compositions count as reading it."""
        if self.composition is None:
            return self.method not in ("ft", "offline", "d1-only")
        return self.composition.reads_memory

    @cached_property
    def steps(self) -> dict[int, int]:
        """Task (from 1) -> its number of steps."""
        counts: dict[int, int] = {}
        for record in self.steps_logged:
            counts[record.task] = max(counts.get(record.task, 0), record.step)
        return counts

    def place(self, task: int, step: int) -> float:
        """Where a step of a task (from 0) lies on the axis of tasks."""
        part = step / max(1, self.steps.get(task + 1, 0))
        return task + part if self.continual else self.task_count * part

    def points(self, protocol: str) -> list[Point]:
        """Every evaluation of the run, in order."""
        ends: list[tuple[float, Scores]] = [
            (self._end(n), scores) for n, scores in enumerate(self.run.metrics.evaluations)
        ]
        curve = (self.run.metrics.curve or []) if self.steps else []
        ends += [(self.place(scores.task, scores.step), scores) for scores in curve]
        points = []
        for x, scores in sorted(ends, key=lambda pair: pair[0]):
            accuracy = _array(scores.protocols[protocol].accuracy, (self.task_count,))
            points.append(Point(x, accuracy, _number(scores.task_level.accuracy)))
        return points

    def _end(self, evaluation: int) -> float:
        return float(evaluation + 1 if self.continual else self.task_count)

    def matrix(self, protocol: str) -> np.ndarray:
        """A[t, i]: [evaluations, tasks], NaN for a task without test images."""
        shape = (len(self.run.metrics.evaluations), self.task_count)
        return _array(self.run.metrics[protocol].accuracy_matrix, shape)

    def class_accuracy(self, protocol: str) -> np.ndarray:
        """[evaluations, classes] in percent."""
        rows = [scores.protocols[protocol].per_class for scores in self.run.metrics.evaluations]
        return _array(rows, (len(rows), len(rows[0])))

    def final(self, protocol: str) -> float | None:
        """A, or None where it is missing."""
        return self.run.metrics[protocol].A

    def health(self, field: str) -> tuple[np.ndarray, np.ndarray]:
        """(x, values) of one measure of the features' health at the end of every task."""
        return self._ends(enumerate(getattr(scores.health, field) for scores in self.run.metrics.evaluations))

    def _ends(self, values: Iterable[tuple[int, float | None]]) -> tuple[np.ndarray, np.ndarray]:
        x, y = np.array([(self._end(n), value) for n, value in values if value is not None]).reshape(-1, 2).T
        return x, y

    def task_level(self) -> tuple[np.ndarray, np.ndarray]:
        """(x, accuracy of the KNN on task ids) at the end of every task."""
        return self._ends(enumerate(scores.task_level.accuracy for scores in self.run.metrics.evaluations))

    def arrays(self, task: int | None = None) -> Arrays:
        """The arrays stored after a task (from 0; default: the last); empty where the file is missing."""
        if task is None:
            return self.run.arrays()
        path = self.run.path / "evaluation" / f"task-{task + 1:02d}.safetensors"
        return load_file(path) if path.exists() else {}

    def memory(self, task: int | None = None) -> tuple[np.ndarray, np.ndarray] | None:
        """(source ids, tasks) of the images in the memory after a task (default: the last), or None."""
        folder = self.run.path / "checkpoints"
        files = sorted(folder.glob("task-*.safetensors"))
        path = files[-1] if task is None and files else folder / f"task-{(task or 0) + 1:02d}.safetensors"
        if not path.exists():
            return None
        with safe_open(path, framework="numpy") as file:
            if "memory.source" not in file.keys():  # noqa: SIM118 (not a mapping)
                return None
            return file.get_tensor("memory.source"), file.get_tensor("memory.task")

    def damage(self) -> str:
        """Why the files of this run cannot be used, or an empty string: everything that a report needs is read once."""
        try:
            self._read_everything()
        except UserError as error:
            return str(error).rstrip(".")
        except msgspec.ValidationError as error:
            return f"log.jsonl: {error}"
        except (KeyError, TypeError, ValueError, IndexError, AttributeError, OSError, SafetensorError) as error:
            return f"{type(error).__name__}: {harmless(str(error))[:200]}"
        return ""

    def _read_everything(self) -> None:
        if not self.run.metrics.task_names or not self.run.metrics.evaluations:
            raise ValueError("metrics.json has no tasks or no evaluations")
        if unknown := set(self.run.protocols) - set(PROTOCOLS):
            raise ValueError(f"metrics.json has the unknown protocol {sorted(unknown)[0]!r}")
        for _, tasks in self.run.metrics.environments:
            if not set(tasks) <= set(range(self.task_count)):
                raise ValueError("metrics.json has an environment with tasks that do not exist")
        for protocol in self.run.protocols:
            _ = self.points(protocol), self.matrix(protocol), self.class_accuracy(protocol)
        _ = self.command, self.composition, self.config, self.steps, self.steps_logged, self.overfitting_logged
        for task in [*range(self.task_count), None]:
            _check_arrays(self.arrays(task), self.task_count, self.run.fingerprint.bank_images)
            self.memory(task)


def _array(values: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Percentages as floats, NaN where there is no number."""
    array = np.array(values, dtype=np.float64)
    if array.shape != shape:
        raise ValueError(f"metrics.json has accuracies of shape {array.shape} where {shape} is needed")
    return array


def _number(value: float | None) -> float:
    return float("nan") if value is None else value


def _check_arrays(arrays: Arrays, task_count: int, bank_images: int) -> None:
    """Indices lie within what they index, and arrays that are read together fit each other."""
    images = len(arrays.get("task", ()))
    limits = {
        "task": task_count,
        "projection.indices": images,
        "neighbours.indices": images,
        "neighbours.bank": bank_images,
        "label": len(arrays.get("class_similarity", ())),
    }
    for name, limit in limits.items():
        indices = arrays.get(name, np.zeros(0, dtype=np.int64))
        if indices.size and not (indices.min() >= 0 and indices.max() < limit):
            raise IndexError(f"the array {name!r} of an evaluation has entries outside 0 to {limit - 1}")
    shapes = {
        "label": (images,),
        "projection.points": (len(arrays.get("projection.indices", ())), 2),
        "class_similarity": (len(arrays.get("class_similarity", ())),) * 2,
        **{name: (2, array.shape[-1]) for name, array in arrays.items() if name.startswith("histogram.")},
    }
    for name, shape in shapes.items():
        if name in arrays and arrays[name].shape != shape:
            raise ValueError(f"the array {name!r} of an evaluation should have the shape {shape}")
