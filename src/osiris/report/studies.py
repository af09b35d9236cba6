"""What a report is made of: runs with their logs, sorted into studies whose numbers may stand beside each other."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import msgspec
import numpy as np

from osiris.errors import UserError
from osiris.evaluation.fingerprint import digest
from osiris.evaluation.metrics_file import RunMetrics, Scores
from osiris.evaluation.runs import Run
from osiris.files import read_json
from osiris.framework.composition import method_from_dict
from osiris.framework.methods import Method
from osiris.report.curves import Point
from osiris.report.style import order_of

PREFERRED = ("ft", "osiris-d", "lump", "cassle", "osiris-r", "er")
NORMS = {"gn": "GroupNorm", "bn": "BatchNorm"}
VARYING = ("learning.", "projector.", "method.")
"""Parts of the config in which two runs of one method make two rows."""


@dataclass(frozen=True)
class StudyRun:
    """One run."""

    number: int
    """From 1; the list of commands on the page has it."""
    run: Run
    """Its `method` is the label it goes by in the report."""
    method: str

    label = property(lambda self: self.run.method)
    seed = property(lambda self: self.run.seed)
    path = property(lambda self: self.run.path)

    @property
    def norm(self) -> str:
        return self.run.fingerprint.encoder.get("norm", "gn")

    @cached_property
    def environment(self) -> list[dict[str, Any]]:
        path = self.run.path / "environment.json"
        return read_json(path) if path.exists() else []

    @property
    def command(self) -> str:
        """The command line of its first start."""
        return self.environment[0]["command"] if self.environment else "(environment.json was not copied along)"

    @cached_property
    def log(self) -> list[dict[str, Any]]:
        """log.jsonl; a line that a crash cut short is left out."""
        path = self.run.path / "log.jsonl"
        records = []
        for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
            try:
                records.append(json.loads(line))
            except ValueError:
                continue
        return records

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [record for record in self.log if record.get("event") == kind]

    @cached_property
    def composition(self) -> Method | None:
        """From config.json; None where it was not copied along, or has terms of a module that is not imported here."""
        path = self.run.path / "config.json"
        record = read_json(path).get("composition") if path.exists() else None
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

    @property
    def task_count(self) -> int:
        return len(self.run.metrics.task_names)

    @cached_property
    def steps(self) -> list[int]:
        """Steps of each phase."""
        counts: dict[int, int] = {}
        for record in self.log:
            if "step" in record and "task" in record:
                counts[record["task"]] = max(counts.get(record["task"], 0), int(record["step"]))
        return [counts[task] for task in sorted(counts)]

    def place(self, task: int, step: int) -> float:
        """Where a step of a task (from 0) lies on the axis of tasks."""
        if not self.run.continual:
            return self.task_count * step / max(1, self.steps[0])
        return task + step / max(1, self.steps[task])

    def points(self, protocol: str) -> list[Point]:
        """Every evaluation of the run, in order."""
        metrics = self.run.metrics
        found = []
        for number, entry in enumerate(metrics.evaluations):
            x = float(number + 1) if self.run.continual else float(self.task_count)
            found.append(_point(x, entry, protocol))
        for entry in metrics.curve or []:
            if self.steps:
                found.append(_point(self.place(entry.task, entry.step), entry, protocol))
        return sorted(found, key=lambda point: point.x)

    def arrays(self, task: int | None = None) -> dict[str, np.ndarray]:
        """The arrays after a task (from 0; default: the last); empty where the file is missing."""
        if task is None:
            return self.run.arrays()
        from safetensors.numpy import load_file

        path = self.run.path / "evaluation" / f"task-{task + 1:02d}.safetensors"
        return load_file(path) if path.exists() else {}


def _point(x: float, entry: Scores, protocol: str) -> Point:
    accuracy = [np.nan if value is None else value for value in entry.protocols[protocol].accuracy]
    assert entry.task_level.accuracy is not None
    return Point(x, np.array(accuracy, dtype=np.float64), entry.task_level.accuracy)


@dataclass(frozen=True)
class Study:
    """Runs on one benchmark under one protocol; the encoder's normalisation alone may differ."""

    identifier: str
    runs: tuple[StudyRun, ...]

    @property
    def benchmark(self) -> str:
        return self.runs[0].run.benchmark

    @property
    def metrics(self) -> RunMetrics:
        return self.runs[0].run.metrics

    @property
    def task_names(self) -> list[str]:
        return self.metrics.task_names

    @property
    def environments(self) -> list[tuple[str, list[int]]]:
        return self.metrics.environments

    @property
    def labelled(self) -> bool:
        return self.metrics.labelled

    @property
    def protocols(self) -> list[str]:
        return [name for name in self.runs[0].run.protocols if all(name in item.run.protocols for item in self.runs)]

    @property
    def main_norm(self) -> str:
        """GroupNorm where there is any, as in the paper."""
        return "gn" if any(item.norm == "gn" for item in self.runs) else self.runs[0].norm

    @cached_property
    def main(self) -> list[StudyRun]:
        return [item for item in self.runs if item.norm == self.main_norm]

    @cached_property
    def by_label(self) -> dict[str, list[StudyRun]]:
        """Of the main normalisation: label -> runs of all seeds, in the order of the zoo."""
        labels = sorted({item.label for item in self.main}, key=order_of)
        return {label: [item for item in self.main if item.label == label] for label in labels}

    @property
    def continual(self) -> dict[str, list[StudyRun]]:
        return {label: items for label, items in self.by_label.items() if items[0].run.continual}

    @property
    def plain(self) -> dict[str, list[StudyRun]]:
        """Without ablations, unless there is nothing else: they have tables of their own."""
        kept = {label: items for label, items in self.by_label.items() if "/" not in label}
        return kept or self.by_label

    def few(self, most: int = 6) -> dict[str, list[StudyRun]]:
        """Continual methods for a figure that holds only so many: those of the paper's figures first."""
        labels = [label for label in self.plain if label in self.continual]
        if len(labels) > most:
            first = [label for label in PREFERRED if label in labels]
            chosen = (first + [label for label in labels if label not in first])[:most]
            labels = [label for label in labels if label in chosen]
        return {label: self.by_label[label] for label in labels}

    @property
    def numbers(self) -> tuple[int, ...]:
        return tuple(item.number for item in self.main)

    def untrained(self, protocol: str) -> float | None:
        """A of untrained encoders."""
        return self.main[0].run.metrics[protocol].untrained


def studies(runs: Sequence[Run]) -> list[Study]:
    """Sort runs into studies, in the order of appearance, with labels that tell variants of a method apart."""
    groups: dict[str, list[StudyRun]] = {}
    for number, run in enumerate(runs, start=1):
        groups.setdefault(_setting(run), []).append(StudyRun(number, run, run.method))
    names: dict[str, int] = {}
    found = []
    for items in groups.values():
        slug = "".join(letter if letter.isalnum() else "-" for letter in items[0].run.benchmark).strip("-")
        names[slug] = names.get(slug, 0) + 1
        identifier = slug if names[slug] == 1 else f"{slug}-{names[slug]}"
        found.append(Study(identifier, tuple(_labelled(items))))
    return found


def _setting(run: Run) -> str:
    """What two runs must share, apart from the normalisation of the encoder."""
    fields = {name: value for name, value in run.fingerprint.plain().items() if name != "hash"}
    fields["encoder"] = {name: value for name, value in fields["encoder"].items() if name != "norm"}
    return digest(fields)


def _labelled(items: list[StudyRun]) -> list[StudyRun]:
    """`osiris-d` where all its runs share their settings; `osiris-d (epochs=48)` where they do not."""
    labelled = []
    for item in items:
        twins = [other for other in items if (other.method, other.norm) == (item.method, item.norm)]
        differing = [
            name
            for name in sorted(item.run.config)
            if name.startswith(VARYING) and len({repr(other.run.config.get(name)) for other in twins}) > 1
        ]
        detail = ", ".join(f"{name.split('.', 1)[1]}={item.run.config[name]}" for name in differing)
        label = f"{item.method} ({detail})" if detail else item.method
        labelled.append(replace(item, run=Run(item.run.path, msgspec.structs.replace(item.run.metrics, method=label))))
    return labelled


def seeds_of(items: Sequence[StudyRun]) -> str:
    """`seed 0`, `3 seeds`, or `1 to 3 seeds` where methods differ."""
    counts: dict[tuple[str, str], set[int]] = {}
    for item in items:
        counts.setdefault((item.label, item.norm), set()).add(item.seed)
    numbers = sorted({len(seeds) for seeds in counts.values()})
    if not numbers:
        return ""
    if numbers == [1]:
        used = sorted({seed for seeds in counts.values() for seed in seeds})
        return f"seed {used[0]}" if len(used) == 1 else "one seed each"
    return f"{numbers[0]} seeds" if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]} seeds"
