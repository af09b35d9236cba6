"""The numbers that claims are judged by: one sample over seeds for each method and quantity."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache

from osiris.evaluation import published
from osiris.evaluation.config import METRICS
from osiris.evaluation.statistics import Sample

TASK_AWARE = "task-aware "
"""Prefix of a quantity under the task-aware protocol: `task-aware A`. Without it, the protocol is class-agnostic."""
BATCH_NORM = " with BatchNorm"
"""Suffix of a method trained with BatchNorm: `ft with BatchNorm`. Without it, the encoder has GroupNorm."""


@dataclass(frozen=True)
class RunNumbers:
    """Every quantity measured on one run, in percent."""

    method: str
    seed: int
    values: Mapping[str, float]
    """`A`, `task-aware A`, `accuracy in city`, `similarity in city`, `overfitting in h`, `late plasticity`, ..."""


@dataclass(frozen=True)
class Evidence:
    """The runs on one benchmark, or the published tables of one benchmark."""

    benchmark: str
    samples: Mapping[tuple[str, str], Sample] = field(default_factory=dict)
    """(method, quantity) -> sample over seeds"""
    environments: tuple[str, ...] = ()
    """In the order of the tasks."""
    scale: str = ""
    """How the runs differ from the paper's."""
    meaningful: bool = True
    """False for smoke runs, which decide nothing."""

    def get(self, method: str, quantity: str) -> Sample | None:
        return self.samples.get((method, quantity))

    def methods(self, quantity: str = "A") -> list[str]:
        """Continual methods of the zoo with this quantity: no references, ablations or variants."""
        names = [method for method, known in self.samples if known == quantity]
        return [name for name in names if name in groups() and name not in published.REFERENCES]


@cache
def groups() -> dict[str, str]:
    """Method of the zoo -> replay, distillation or reference."""
    from osiris.framework.table1 import GROUPS

    return {name: group for group, names in GROUPS.items() for name in names}


def from_runs(
    benchmark: str, runs: Iterable[RunNumbers], environments: tuple[str, ...] = (), scale: str = "", smoke: bool = False
) -> Evidence:
    by_seed: dict[tuple[str, str], dict[int, float]] = {}
    for run in runs:
        for quantity, value in run.values.items():
            by_seed.setdefault((run.method, quantity), {})[run.seed] = value
    samples = {key: Sample.of(values) for key, values in by_seed.items()}
    return Evidence(benchmark, samples, environments, scale, not smoke)


def from_paper() -> list[Evidence]:
    """The published tables (their deviations taken as sample deviations)."""
    evidence = []
    for benchmark in published.benchmarks():
        samples: dict[tuple[str, str], Sample] = {}
        for protocol, prefix in (("class-agnostic", ""), ("task-aware", TASK_AWARE)):
            for method, row in published.published_rows(benchmark, protocol).items():
                samples |= {(method, prefix + metric): row[metric] for metric in METRICS if metric in row}
        names: tuple[str, ...] = ()
        if benchmark == published.ENVIRONMENTS:
            for method, row in published.published_environments().items():
                names = tuple(row)
                samples |= {(method, f"accuracy in {name}"): sample for name, sample in row.items()}
        evidence.append(Evidence(benchmark, samples, names))
    return evidence
