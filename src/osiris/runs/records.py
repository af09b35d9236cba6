"""The records of a run directory: metrics.json and how it is built from the evaluations, baselines.json,
observations.json, and the lines of log.jsonl."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta

from osiris.data.benchmark import Benchmark
from osiris.errors import UserError
from osiris.evaluation.metrics import all_metrics, as_matrix, stream_metrics
from osiris.evaluation.scores import (
    Baseline,
    Budget,
    Comparison,
    CurveScores,
    Fingerprint,
    Percentages,
    Record,
    ReferenceScores,
    Scores,
    Setting,
    read_record,
)
from osiris.evaluation.statistics import format_p, mean
from osiris.runs.untrusted import harmless


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
    average: float | None = None
    """Of a stream: the mean of A over its points."""
    drop: float | None = None
    """Of a stream: how far A fell below its best so far, at worst."""
    G: float | None = None
    """A minus that of the start, for a pretrained encoder."""
    against_start: list[Comparison | None] | None = None
    """The final encoder against the start, by task."""
    overall: Comparison | None = None
    """The final encoder against the start, over all tasks."""

    def values(self) -> dict[str, float | None]:
        values = {"A": self.A, "F": self.F, "K": self.K, "C": self.C, "T": self.T, "G": self.G}
        return values if self.average is None else values | {"A mean": self.average, "drop": self.drop}

    @property
    def gain(self) -> str | None:
        """G and its p: `+1.2, p = 0.040`. The test counts images, and G is a mean over tasks. If tasks have different
        numbers of images, the two may differ, even in sign: then both are shown."""
        if self.G is None or self.overall is None:
            return None if self.G is None else f"{self.G:+.1f}"
        same = abs(self.G - self.overall.difference) < 0.05
        tested = f", {format_p(self.overall.p)}" if same else f" (over all images {self.overall})"
        return f"{self.G:+.1f}{tested}"

    @property
    def untrained(self) -> float | None:
        """A of untrained encoders of the same architecture; with a pretrained encoder, that of the start."""
        return mean(self.random_baseline or [])


class Baselines(Record, frozen=True, kw_only=True):
    """baselines.json of a run: what `osiris evaluate RUN --baseline NAME` measured, by name."""

    baselines: dict[str, Baseline]


class RunMetrics(Record, frozen=True, kw_only=True):
    """metrics.json. `metrics["class-agnostic"].A` is the overall accuracy under that protocol."""

    method: str
    benchmark: str
    seed: int
    task_names: Annotated[list[str], Meta(min_length=1)]
    environments: list[tuple[str, list[int]]]
    continual: bool
    complete: bool
    fingerprint: Fingerprint
    labelled: bool
    protocols: dict[str, ProtocolMetrics]
    task_level: Percentages
    evaluations: Annotated[list[Scores], Meta(min_length=1)]
    """After each task that is not in `lost`; a run that is not continual has the final one alone."""
    lost: tuple[int, ...] = ()
    """Tasks (from 0) whose evaluation was damaged when their images were gone."""
    missing: str | None = None
    curve: list[CurveScores] | None = None
    preset: str | None = None
    start: Scores | None = None
    """The evaluation of the pretrained encoder that the run started from."""

    @property
    def stream(self) -> str | None:
        """The order, if all tasks were learned as one stream."""
        return self.fingerprint.stream

    @property
    def budget(self) -> Budget | None:
        """What a stream has cost in all."""
        return self.evaluations[-1].budget

    @property
    def evaluated(self) -> dict[int, Scores]:
        """Task (from 0) -> the evaluation after it; a run that is not continual learns all tasks as one."""
        tasks = range(len(self.evaluations) + len(self.lost))
        return dict(zip((task for task in tasks if task not in self.lost), self.evaluations))

    @property
    def reference_name(self) -> str:
        """What accuracies are compared with: the encoder before it learned anything here."""
        return "untrained encoder" if self.start is None else "start"

    @property
    def harm(self) -> str | None:
        """One sentence where the run is significantly below its start; None if it is not."""
        name = next(iter(self.protocols), None)
        worse = [] if name is None else self.below_start(name)
        if not worse:
            return None
        return (
            f"the encoder is significantly worse than its start on {', '.join(worse)}, {name}. Use the start, or a "
            "lower --merge or --learning-rate."
        )

    def below_start(self, protocol: str) -> list[str]:
        """Where the run is significantly below its start: `all tasks (-3.1, p = 0.004)`, and single tasks."""
        numbers = self.protocols[protocol]
        if numbers.overall is None:
            return []
        parts = zip(["all tasks", *self.task_names], [numbers.overall, *(numbers.against_start or ())])
        return [f"{place} ({one})" for place, one in parts if one and one.significant and one.difference < 0]

    def __getitem__(self, protocol: str) -> ProtocolMetrics:
        if protocol not in self.protocols:
            available = ", ".join(self.protocols) or "none, because its images have no labels"
            run = f"the run of {self.method} with seed {self.seed}"
            more = f" `osiris evaluate RUN --protocols class-agnostic {protocol}` adds them." if self.protocols else ""
            raise UserError(f"{run} has no numbers under the protocol {protocol!r}; it has {available}.{more}")
        return self.protocols[protocol]


class Observation(Record, frozen=True, kw_only=True):
    """What `observe` measured after one episode."""

    task: int
    drift: float | None = None
    """Mean of 1 - cosine between the features of the memory's images before and after the episode."""
    same_neighbours: float | None = None
    """Percent of the nearest neighbours among the memory's images that are the same before and after."""
    from_start: float | None = None
    """The drift from the pretrained start to the encoder after the episode."""
    kept: bool = True
    """False: the reference got worse, so the encoder stayed what it was before the episode."""
    reference: ReferenceScores | None = None
    readout: str | None = None
    """How a method that learns a readout made its map (`--readout`)."""
    others: dict[str, ReferenceScores] = msgspec.field(default_factory=dict)
    """Scores of what --readout could be instead, by its value; measured after the last episode alone."""


class Observations(Record, frozen=True, kw_only=True):
    """observations.json"""

    reference: str | None = None
    """The folder of labelled images, as given to the last call that named one."""
    episodes: tuple[Observation, ...] = ()
    start: ReferenceScores | None = None
    """The reference scores of the pretrained encoder that the state started from."""


class StepLine(msgspec.Struct, tag_field="event", tag="step", kw_only=True):
    """A line of log.jsonl: means over the training steps since the last one. Tasks count from 1."""

    task: int
    step: int
    terms: dict[str, float | None]
    loss: float | None = None
    tasks: int = 0
    total_step: int = 0
    epoch: int = 0
    epochs: int = 0
    gradient_norm: float | None = None
    spread: float | None = None
    images_per_second: float | None = None
    progress: Annotated[float, Meta(ge=0, le=1)] = 0.0
    task_progress: float = 0.0
    seconds: float | None = None
    seconds_left: Annotated[float, Meta(ge=0, le=1e9)] | None = None
    bad_steps: int = 0
    peak_memory_mb: float | None = None
    learning_rate: float | None = None
    memory: int = 0
    """Images in the memory."""


class EvaluationLine(msgspec.Struct, tag_field="event", tag="evaluation", kw_only=True):
    """A line of log.jsonl: the few numbers of an evaluation that the progress display shows."""

    task: int
    tasks: int
    step: int
    total_step: int
    shown: dict[str, float | None]


class OverfittingLine(msgspec.Struct, tag_field="event", tag="overfitting", kw_only=True):
    """A line of log.jsonl about overfitting to the memory: space -> losses and their relative difference."""

    task: int
    step: int
    spaces: dict[str, dict[str, float]]
    total_step: int = 0


Line = StepLine | EvaluationLine | OverfittingLine


def read_line(line: bytes) -> Line | None:
    """A line of log.jsonl, made harmless; None for one that a crash cut short, and for other events. One that no
    run writes raises a `msgspec.ValidationError`."""
    try:
        value = harmless(msgspec.json.decode(line))
    except (ValueError, RecursionError):
        return None
    known = isinstance(value, dict) and value.get("event") in ("step", "evaluation", "overfitting")
    return msgspec.convert(value, Line) if known else None


def read_metrics(path: Path) -> RunMetrics:
    return read_record(path, RunMetrics)


def build_metrics(
    method: str,
    setting: Setting,
    seed: int,
    evaluations: Sequence[Scores | None],
    continual: bool = True,
    curve: list[CurveScores] | None = None,
    preset: str | None = None,
    start: Scores | None = None,
    against_start: Mapping[str, tuple[Comparison | None, list[Comparison | None]]] | None = None,
) -> RunMetrics:
    """`setting`: of the last evaluation. `evaluations` are those after tasks 1, 2, ... (a run that is not continual:
    the final one alone), None if one is lost, which the last one never is. The `start` takes the place of untrained
    encoders; with it, the final encoder was compared under each protocol (overall, by task)."""
    assert evaluations and evaluations[-1] and (continual or len(evaluations) == 1)
    present = [scores for scores in evaluations if scores is not None]
    lost = tuple(task for task, scores in enumerate(evaluations) if scores is None)
    assert not (lost and present[-1].protocols), "only the images of a learner go, and they have no labels"
    random_baseline = setting.untrained
    if start is not None:
        random_baseline = {name: one.accuracy for name, one in start.protocols.items()}
    protocols = {}
    task_level = [scores.task_level.accuracy for scores in present]
    for name in present[-1].protocols:
        rows = [scores.protocols[name].accuracy for scores in present]
        untrained = None if random_baseline is None else random_baseline[name]
        reference = None if untrained is None else np.array(untrained, dtype=np.float64)
        values = all_metrics(as_matrix(rows), task_level[-1], reference)
        if setting.fingerprint.stream is not None:
            points = [one.protocols[name].accuracy for one in curve or () if name in one.protocols]
            values |= stream_metrics(np.array([*points, *rows], dtype=np.float64))
        overall, by_task = (against_start or {}).get(name, (None, None))
        level = None if start is None else mean(start.protocols[name].accuracy)
        protocols[name] = ProtocolMetrics(
            continual=continual,
            accuracy_matrix=rows,
            random_baseline=untrained,
            **values,
            G=None if level is None or values["A"] is None else values["A"] - level,
            against_start=by_task,
            overall=overall,
        )
    return RunMetrics(
        method=method,
        benchmark=setting.benchmark,
        seed=seed,
        task_names=setting.task_names,
        environments=setting.environments,
        continual=continual,
        complete=not continual or len(evaluations) == len(setting.task_names),
        fingerprint=setting.fingerprint,
        labelled=setting.labelled,
        protocols=protocols,
        task_level=task_level,
        evaluations=present,
        lost=lost,
        missing=present[-1].missing,
        curve=curve,
        preset=preset,
        start=start,
    )


def setting_of(
    benchmark: Benchmark, fingerprint: Fingerprint, untrained: dict[str, Percentages] | None = None
) -> Setting:
    return Setting(
        benchmark=benchmark.name,
        task_names=task_names(benchmark),
        environments=[(name, list(tasks)) for name, tasks in benchmark.environments],
        labelled=benchmark.labelled,
        fingerprint=fingerprint,
        untrained=untrained,
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
