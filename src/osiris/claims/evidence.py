"""The numbers that claims are judged by: one sample over seeds for each method and quantity."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache

from osiris.evaluation import published
from osiris.evaluation.config import METRICS
from osiris.evaluation.statistics import Sample, samples_of

TASK_AWARE = "task-aware "
"""Prefix of a quantity under the task-aware protocol: `task-aware A`. Without it, the protocol is class-agnostic."""
BATCH_NORM = " with BatchNorm"
"""Suffix of a method trained with BatchNorm: `ft with BatchNorm`. Without it, the encoder has GroupNorm."""


Quantities = Mapping[str, float | None]
"""Measured on one run, in percent: `A`, `task-aware A`, `accuracy in city`, `similarity in city`, `overfitting in h`,
`late plasticity`, ..."""


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
    elsewhere: Mapping[str, Evidence] = field(default_factory=dict)
    """Benchmark -> evidence, for claims that compare benchmarks."""

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


def samples_by_method(runs: Mapping[str, Mapping[int, Quantities]]) -> dict[tuple[str, str], Sample]:
    """The samples of an `Evidence`, from the quantities of each method and seed."""
    samples = {method: samples_of(by_seed) for method, by_seed in runs.items()}
    return {(method, quantity): sample for method, each in samples.items() for quantity, sample in each.items()}


def from_paper() -> list[Evidence]:
    """The published tables; their deviations are taken as sample deviations."""
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
