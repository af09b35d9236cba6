"""The studies of a report: runs whose numbers may stand beside each other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import msgspec

from osiris.evaluation.fingerprint import digest
from osiris.evaluation.metrics_file import RunMetrics
from osiris.evaluation.runs import Run
from osiris.report.study_run import StudyRun
from osiris.report.style import order_of
from osiris.report.untrusted import harmless, safe_name, shortened

PREFERRED = ("ft", "osiris-d", "lump", "cassle", "osiris-r", "er")
NORMS = {"gn": "GroupNorm", "bn": "BatchNorm"}
VARYING = ("learning.", "projector.", "method.")
"""Parts of the config in which two runs of one method make two rows."""
LABEL, TASK_NAME = 44, 30
"""Most characters of a method's label and of a task's name in a figure."""


@dataclass(frozen=True)
class Study:
    """Runs on one benchmark under one protocol; only the encoder's normalisation may differ."""

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
    def task_count(self) -> int:
        return len(self.task_names)

    def task_title(self, task: int) -> str:
        """`task 3 (city)` says its number; `beetles` becomes `10 beetles`."""
        name = shortened(self.task_names[task], TASK_NAME)
        return name if name.startswith("task ") else f"{task + 1} {name}"

    @property
    def environments(self) -> list[tuple[str, list[int]]]:
        return [(shortened(name, TASK_NAME), tasks) for name, tasks in self.metrics.environments]

    @property
    def labelled(self) -> bool:
        return self.metrics.labelled

    @property
    def protocols(self) -> list[str]:
        return [name for name in self.runs[0].run.protocols if all(name in run.run.protocols for run in self.runs)]

    @property
    def main_norm(self) -> str:
        """GroupNorm where there is any, as in the paper."""
        return "gn" if any(run.norm == "gn" for run in self.runs) else self.runs[0].norm

    @cached_property
    def main(self) -> list[StudyRun]:
        return [run for run in self.runs if run.norm == self.main_norm]

    @cached_property
    def by_label(self) -> dict[str, list[StudyRun]]:
        """Of the main normalisation: label -> runs of all seeds, in the order of the zoo."""
        labels = sorted({run.label for run in self.main}, key=order_of)
        return {label: [run for run in self.main if run.label == label] for label in labels}

    @property
    def continual(self) -> dict[str, list[StudyRun]]:
        return {label: runs for label, runs in self.by_label.items() if runs[0].continual}

    @property
    def plain(self) -> dict[str, list[StudyRun]]:
        """Without ablations, which have tables of their own, unless there is nothing else."""
        return {label: runs for label, runs in self.by_label.items() if "/" not in label} or self.by_label

    def few(self, most: int = 6) -> dict[str, list[StudyRun]]:
        """Continual methods for a figure that has room for so many: those of the paper's figures first."""
        labels = [label for label in self.plain if label in self.continual]
        chosen = sorted(labels, key=lambda label: PREFERRED.index(label) if label in PREFERRED else len(PREFERRED))[
            :most
        ]
        return {label: self.by_label[label] for label in labels if label in chosen}

    def final(self, label: str, protocol: str) -> list[float]:
        """A of every seed of a method; empty where it is missing."""
        return [value for run in self.by_label[label] if (value := run.final(protocol)) is not None]

    def baselines(self, protocol: str) -> dict[str, float]:
        """A of features that were not learned: the untrained encoder, and what was measured for any of the runs."""
        return {name: value for item in self.main for name, value in item.run.baseline_accuracies(protocol).items()}

    def untrained(self, protocol: str) -> float | None:
        """A of untrained encoders."""
        return self.main[0].run.metrics[protocol].untrained


def all_runs(methods: dict[str, list[StudyRun]]) -> list[StudyRun]:
    return [run for runs in methods.values() for run in runs]


def studies(runs: Sequence[Run]) -> tuple[list[Study], list[str]]:
    """(studies in the order of appearance; a line for each damaged run that was left out)."""
    groups: dict[str, list[StudyRun]] = {}
    damaged = []
    number = 0
    for run in runs:
        metrics = msgspec.convert(harmless(run.metrics.plain()), RunMetrics)
        received = StudyRun(number + 1, Run(run.path, metrics), metrics.method)
        reason = received.damage()
        if reason:
            damaged.append(f"{run.path} is damaged and left out: {reason}.")
        else:
            number += 1
            groups.setdefault(_setting(received.run), []).append(received)
    identifiers: dict[str, int] = {}
    sorted_runs = []
    for members in groups.values():
        name = safe_name(members[0].run.benchmark)
        identifiers[name] = identifiers.get(name, 0) + 1
        identifier = name if identifiers[name] == 1 else f"{name}-{identifiers[name]}"
        sorted_runs.append(Study(identifier, tuple(_labelled(members))))
    return sorted_runs, damaged


def _setting(run: Run) -> str:
    """What two runs must share, apart from the normalisation of the encoder."""
    fields = {name: value for name, value in run.fingerprint.plain().items() if name != "hash"}
    fields["encoder"] = {name: value for name, value in fields["encoder"].items() if name != "norm"}
    return digest([fields, run.metrics.task_names])


def _labelled(runs: list[StudyRun]) -> list[StudyRun]:
    """`osiris-d` where all its runs share their settings; `osiris-d (epochs=48)` where they do not."""
    labelled = []
    for run in runs:
        twins = [other for other in runs if (other.method, other.norm) == (run.method, run.norm)]
        differing = [
            name
            for name in sorted(run.config)
            if name.startswith(VARYING) and len({repr(other.config.get(name)) for other in twins}) > 1
        ]
        detail = ", ".join(f"{name.split('.', 1)[1]}={run.config[name]}" for name in differing)
        label = shortened(f"{run.method} ({detail})" if detail else run.method, LABEL)
        labelled.append(replace(run, run=Run(run.run.path, msgspec.structs.replace(run.run.metrics, method=label))))
    return labelled


def seeds_of(runs: Iterable[StudyRun]) -> str:
    """`seed 0`, `3 seeds`, or `1 to 3 seeds` where methods differ."""
    counts: dict[tuple[str, str], set[int]] = {}
    for run in runs:
        counts.setdefault((run.label, run.norm), set()).add(run.seed)
    numbers = sorted({len(seeds) for seeds in counts.values()})
    if not numbers:
        return ""
    if numbers == [1]:
        used = sorted({seed for seeds in counts.values() for seed in seeds})
        return f"seed {used[0]}" if len(used) == 1 else "one seed each"
    return f"{numbers[0]} seeds" if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]} seeds"
