"""metrics.json: its schema, how it is built from the evaluations of a run, and how it is read.

A field with a default is left out of the file when it has that value; every other field is always written.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import numpy as np

from osiris.errors import UserError
from osiris.evaluation.metrics import all_metrics, as_matrix
from osiris.evaluation.statistics import mean
from osiris.files import write_json

if TYPE_CHECKING:
    from osiris.data.benchmark import Benchmark  # imports torch, which a table of finished runs does not need

Percentages = list[float | None]
"""One number per task (or class); None without test images."""


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Base class of all records in the file."""

    def plain(self) -> dict[str, Any]:
        """JSON-ready."""
        return msgspec.to_builtins(self)


AnyRecord = TypeVar("AnyRecord", bound=Record)


class Health(Record, frozen=True, kw_only=True):
    """Properties of the features that need no labels; `osiris.evaluation.health` defines them."""

    dimension: int
    feature_deviation: float
    spread: float
    effective_rank: float
    uniformity: float | None
    alignment: float | None


class ProtocolScores(Record, frozen=True, kw_only=True):
    """One checkpoint under one KNN protocol."""

    accuracy: Percentages
    top5: Percentages
    per_class: Percentages
    k_effective: list[int]


class TaskLevelScores(Record, frozen=True, kw_only=True):
    """One checkpoint, when the KNN predicts the task instead of the class."""

    accuracy: float | None
    per_task: Percentages
    confusion: list[list[int]]
    """Counts [true task][predicted task]."""


class ProbeScores(Record, frozen=True, kw_only=True):
    """The linear probe under one protocol."""

    accuracy: Percentages
    l2: list[float | None]


NO_TASK_LEVEL = TaskLevelScores(accuracy=None, per_task=[], confusion=[])


class Scores(Record, frozen=True, kw_only=True):
    """All numbers of one checkpoint; accuracies in percent. Without labels only `health`, `task_level` and `missing`
    are filled."""

    labelled: bool
    bank_size: int
    test_size: int
    health: Health
    missing: str | None = None
    """Without labels: what cannot be computed, and why."""
    k: int | None = None
    temperature: float | None = None
    protocols: dict[str, ProtocolScores] = {}
    task_level: TaskLevelScores = NO_TASK_LEVEL
    environments: dict[str, float | None] | None = None
    probe: dict[str, ProbeScores] = {}


class CurveScores(Scores, frozen=True, kw_only=True):
    """A checkpoint in the middle of a task."""

    task: int
    step: int
    total_step: int


class ProtocolMetrics(Record, frozen=True, kw_only=True):
    """A whole run under one protocol. A F K C T are the metrics of Sec. 4.1; None if one is not defined."""

    continual: bool
    accuracy_matrix: list[Percentages]
    """[after task t][on task i]"""
    random_baseline: Percentages | None
    A: float | None
    F: float | None
    K: float | None
    C: float | None
    T: float | None

    def values(self) -> dict[str, float | None]:
        return {"A": self.A, "F": self.F, "K": self.K, "C": self.C, "T": self.T}

    @property
    def untrained(self) -> float | None:
        """A of untrained encoders of the same architecture."""
        return mean(self.random_baseline or [])


class Baseline(Record, frozen=True, kw_only=True):
    """Accuracies of features that were not learned, in percent."""

    protocols: dict[str, Percentages]
    task_level: float | None


class Baselines(Record, frozen=True, kw_only=True):
    """baselines.json of a run: what `osiris evaluate RUN --baseline NAME` measured, by name."""

    baselines: dict[str, Baseline]


class Fingerprint(Record, frozen=True, kw_only=True):
    """What two numbers must share to be comparable; see `osiris.evaluation.fingerprint`."""

    benchmark: str
    train_images: int
    bank_images: int
    test_images: int
    image_size: list[int]
    split: str
    tasks: int
    task_order: str
    k: int
    temperature: float
    random_encoders: int
    encoder: dict[str, Any]
    """Its config, or a name if it was made elsewhere."""
    hash: str


class RunMetrics(Record, frozen=True, kw_only=True):
    """metrics.json. `metrics["class-agnostic"].A` is the overall accuracy under that protocol."""

    method: str
    benchmark: str
    seed: int
    task_names: list[str]
    environments: list[tuple[str, list[int]]]
    continual: bool
    complete: bool
    fingerprint: Fingerprint
    labelled: bool
    protocols: dict[str, ProtocolMetrics]
    task_level: Percentages
    evaluations: list[Scores]
    """After each task; a run that is not continual has the final one alone."""
    missing: str | None = None
    curve: list[CurveScores] | None = None
    preset: str | None = None

    def __getitem__(self, protocol: str) -> ProtocolMetrics:
        if protocol not in self.protocols:
            available = ", ".join(self.protocols) or "none, because its images have no labels"
            run = f"the run of {self.method} with seed {self.seed}"
            raise UserError(f"{run} has no numbers under the protocol {protocol!r}; it has {available}.")
        return self.protocols[protocol]


def read_metrics(path: Path) -> RunMetrics:
    return read_record(path, RunMetrics)


def read_record(path: Path, kind: type[AnyRecord]) -> AnyRecord:
    """A JSON file of this schema."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        raise UserError(f"{path} does not exist.") from None
    except msgspec.ValidationError as error:
        raise UserError(f"{path} is not a {kind.__name__} file of osiris, or of another version: {error}.") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not readable as JSON ({error}). Was the copy interrupted?") from None


def write_record(path: Path, record: Record) -> None:
    write_json(path, record.plain())


def build_metrics(
    method: str,
    benchmark: Benchmark,
    seed: int,
    evaluations: Sequence[Scores],
    random_baseline: dict[str, Percentages] | None,
    fingerprint: Fingerprint,
    continual: bool = True,
    curve: list[CurveScores] | None = None,
    preset: str | None = None,
) -> RunMetrics:
    """`evaluations` are those after tasks 1, 2, ... (a run that is not continual: the final one alone);
    `random_baseline` comes from `untrained_baseline`."""
    assert evaluations and (continual or len(evaluations) == 1)
    protocols = {}
    task_level = [scores.task_level.accuracy for scores in evaluations]
    for name in evaluations[-1].protocols:
        rows = [scores.protocols[name].accuracy for scores in evaluations]
        untrained = None if random_baseline is None else random_baseline[name]
        reference = None if untrained is None else np.array(untrained, dtype=np.float64)
        protocols[name] = ProtocolMetrics(
            continual=continual,
            accuracy_matrix=rows,
            random_baseline=untrained,
            **all_metrics(as_matrix(rows), task_level[-1], reference),
        )
    return RunMetrics(
        method=method,
        benchmark=benchmark.name,
        seed=seed,
        task_names=task_names(benchmark),
        environments=[(name, list(tasks)) for name, tasks in benchmark.environments],
        continual=continual,
        complete=not continual or len(evaluations) == benchmark.task_count,
        fingerprint=fingerprint,
        labelled=benchmark.labelled,
        protocols=protocols,
        task_level=task_level,
        evaluations=list(evaluations),
        missing=evaluations[-1].missing,
        curve=curve,
        preset=preset,
    )


def task_names(benchmark: Benchmark) -> list[str]:
    """The benchmark's own names, or `task 3 (city)` with the environment of the task or up to three classes."""
    if benchmark.task_names:
        return list(benchmark.task_names)
    environment = {task: name for name, tasks in benchmark.environments for task in tasks}
    names = []
    for number, labels in enumerate(benchmark.tasks):
        detail = environment.get(number, "")
        if not detail and benchmark.class_names and 0 < len(labels) <= 3:
            detail = ", ".join(benchmark.class_names[label] for label in labels)
        names.append(f"task {number + 1} ({detail})" if detail else f"task {number + 1}")
    return names
