"""The studies of a report: runs whose numbers may be compared with each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from osiris.evaluation.fingerprint import digest
from osiris.evaluation.metrics_file import RunMetrics
from osiris.evaluation.runs import Run
from osiris.evaluation.untrusted import safe_name, shortened
from osiris.report.style import order_of
from osiris.report.validation import damage

PREFERRED = ("ft", "osiris-d", "lump", "cassle", "osiris-r", "er")
NORMS = {"gn": "GroupNorm", "bn": "BatchNorm"}
VARYING = ("learning.", "projector.", "method.")
"""Runs of one method that differ in these parts of the config are separate rows."""
TASK_NAME = 30
"""Longest name of a task in a figure, in characters."""


@dataclass(frozen=True)
class Study:
    """Runs on one benchmark under one protocol; only the encoder's normalisation may differ."""

    identifier: str
    runs: tuple[Run, ...]

    @property
    def metrics(self) -> RunMetrics:
        return self.runs[0].metrics

    @property
    def benchmark(self) -> str:
        return self.metrics.benchmark

    @property
    def task_count(self) -> int:
        return len(self.metrics.task_names)

    def task_title(self, task: int) -> str:
        """`task 3 (city)` contains its number; `beetles` becomes `10 beetles`."""
        name = shortened(self.metrics.task_names[task], TASK_NAME)
        return name if name.startswith("task ") else f"{task + 1} {name}"

    @property
    def environments(self) -> list[tuple[str, list[int]]]:
        return [(shortened(name, TASK_NAME), tasks) for name, tasks in self.metrics.environments]

    @property
    def protocols(self) -> list[str]:
        return [name for name in self.metrics.protocols if all(name in run.metrics.protocols for run in self.runs)]

    @cached_property
    def main(self) -> list[Run]:
        """Runs with GroupNorm if there are any, as in the paper; otherwise with the normalisation of the first run."""
        norm = "gn" if any(run.norm == "gn" for run in self.runs) else self.runs[0].norm
        return [run for run in self.runs if run.norm == norm]

    @cached_property
    def by_label(self) -> dict[str, list[Run]]:
        """Of the main normalisation: label -> runs of all seeds, in the order of the zoo."""
        labels = sorted({run.label for run in self.main}, key=order_of)
        return {label: [run for run in self.main if run.label == label] for label in labels}

    @property
    def continual(self) -> dict[str, list[Run]]:
        return {label: runs for label, runs in self.by_label.items() if runs[0].continual}

    @property
    def plain(self) -> dict[str, list[Run]]:
        """Without ablations, which have tables of their own, unless there is nothing else."""
        ablations = [label for label, runs in self.by_label.items() if "/" in label and runs[0].continual]
        return {label: runs for label, runs in self.by_label.items() if label not in ablations} or self.by_label

    def few(self, most: int = 6) -> dict[str, list[Run]]:
        """At most `most` continual methods, for a figure with little space; those of the paper's figures first."""
        labels = [label for label in self.plain if label in self.continual]
        preferred = [label for label in PREFERRED if label in labels]
        chosen = list(dict.fromkeys(preferred + labels))[:most]
        return {label: self.by_label[label] for label in labels if label in chosen}

    def final(self, label: str, protocol: str) -> list[float]:
        """A of every seed of a method that has one."""
        return [value for run in self.by_label[label] if (value := run.metrics[protocol].A) is not None]

    def untrained(self, protocol: str) -> float | None:
        """A of untrained encoders."""
        return self.main[0].metrics[protocol].untrained


def studies(runs: Sequence[Run]) -> tuple[list[Study], list[str]]:
    """(studies in the order of their first run; one line for each damaged run, which is left out)."""
    usable: list[Run] = []
    damaged = []
    for run in runs:
        if reason := damage(run):
            damaged.append(f"{run.path} is damaged and left out: {reason}.")
        else:
            usable.append(replace(run, number=len(usable) + 1))
    groups: dict[str, list[Run]] = {}
    for run in usable:
        groups.setdefault(_setting(run.metrics), []).append(run)
    names: Counter[str] = Counter()
    grouped = []
    for members in groups.values():
        name = safe_name(members[0].metrics.benchmark)
        names[name] += 1
        identifier = name if names[name] == 1 else f"{name}-{names[name]}"
        grouped.append(Study(identifier, tuple(_with_variants(members))))
    return grouped, damaged


def _setting(metrics: RunMetrics) -> str:
    """What two runs must share, apart from the normalisation of the encoder."""
    fields = {name: value for name, value in metrics.fingerprint.plain().items() if name != "hash"}
    fields["encoder"] = {name: value for name, value in fields["encoder"].items() if name != "norm"}
    return digest([fields, metrics.task_names])


def _with_variants(runs: list[Run]) -> list[Run]:
    """Runs of one method with different settings are told apart by them: `epochs=48`."""
    named = []
    for run in runs:
        twins = [other for other in runs if (other.method, other.norm) == (run.method, run.norm)]
        differing = [
            name
            for name in sorted(run.config)
            if name.startswith(VARYING) and len({repr(other.config.get(name)) for other in twins}) > 1
        ]
        variant = ", ".join(f"{name.split('.', 1)[1]}={run.config[name]}" for name in differing)
        named.append(replace(run, variant=variant) if variant else run)
    return named


def seeds_of(runs: Iterable[Run]) -> str:
    """`seed 0`, `3 seeds`, or `1 to 3 seeds` if methods differ."""
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
