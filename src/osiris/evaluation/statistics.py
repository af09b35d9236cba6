"""Statistics over seeds, and of shares of images.

Deviations are sample deviations (ddof 1). The paper's p = 0.185 needs the population deviation (ddof 0).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import bdtr, stdtr

from osiris.evaluation.config import Mark


def mean(values: Sequence[float | None] | np.ndarray) -> float | None:
    """The mean of the values that are neither None nor NaN; None if there are no such values."""
    array = np.asarray(values, dtype=np.float64)
    present = array[~np.isnan(array)]
    return float(present.mean()) if len(present) else None


def deviation(values: Sequence[float]) -> float | None:
    """Sample deviation (ddof 1); None for fewer than two values."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else None


@dataclass(frozen=True)
class Sample:
    """A quantity over seeds. Published numbers have no `by_seed`."""

    mean: float
    deviation: float | None
    """Sample deviation; None with one seed."""
    count: int
    by_seed: Mapping[int, float] | None = None

    @staticmethod
    def of(by_seed: Mapping[int, float]) -> Sample:
        values = list(by_seed.values())
        centre = mean(values)
        assert centre is not None, "a sample needs a value"
        return Sample(centre, deviation(values), len(values), by_seed)

    def __sub__(self, other: Sample) -> Sample:
        """The difference: seed by seed where both have the same seeds, otherwise of independent samples."""
        seeds = shared_seeds(self, other)
        if len(seeds) > 1:
            assert self.by_seed is not None and other.by_seed is not None
            return Sample.of({seed: self.by_seed[seed] - other.by_seed[seed] for seed in seeds})
        known = self.deviation is not None and other.deviation is not None
        spread = math.hypot(self.deviation or 0.0, other.deviation or 0.0) if known else None
        return Sample(self.mean - other.mean, spread, min(self.count, other.count))

    def unpaired(self) -> Sample:
        """Without its seeds: for runs that share a seed by chance only."""
        return Sample(self.mean, self.deviation, self.count)

    def __str__(self) -> str:
        spread = "" if self.deviation is None else f" ± {self.deviation:.1f}"
        return f"{round(self.mean, 1) + 0.0:.1f}{spread}"  # + 0.0 turns -0.0 into 0.0


def samples_of(by_seed: Mapping[int, Mapping[str, float | None]]) -> dict[str, Sample]:
    """Quantity -> sample over the seeds that have it, from the quantities of each seed."""
    columns: dict[str, dict[int, float]] = {}
    for seed, values in by_seed.items():
        for name, value in values.items():
            if value is not None:
                columns.setdefault(name, {})[seed] = value
    return {name: Sample.of(column) for name, column in columns.items()}


def shared_seeds(one: Sample, other: Sample) -> list[int]:
    return sorted(set(one.by_seed or ()) & set(other.by_seed or ()))


@dataclass(frozen=True)
class TTest:
    """The result of testing the hypothesis that a difference is zero."""

    difference: float
    p: float
    """The two-sided p-value."""
    seeds: int
    """The number of seeds in the smaller sample."""
    paired: bool
    error: float = 0.0
    """The standard error of the difference."""
    degrees: int = 0
    """Of freedom; 0 for a test that is no t-test."""


def t_test(one: Sample, other: Sample, margin: float = 0.0) -> TTest | None:
    """Student's t-test of `one - other - margin`, paired where the samples share at least two seeds, else unpaired with
    equal variances. None where a sample has fewer than two values."""
    if len(shared_seeds(one, other)) > 1:
        return t_test_against(one - other, margin, paired=True)
    if one.deviation is None or other.deviation is None:
        return None
    degrees = one.count + other.count - 2
    pooled = ((one.count - 1) * one.deviation**2 + (other.count - 1) * other.deviation**2) / degrees
    error = math.sqrt(pooled * (1 / one.count + 1 / other.count))
    return _t_test(one.mean - other.mean - margin, error, degrees, min(one.count, other.count), paired=False)


def t_test_against(sample: Sample, value: float, paired: bool = False) -> TTest | None:
    """Student's t-test of one sample against a constant."""
    if sample.deviation is None:
        return None
    error = sample.deviation / math.sqrt(sample.count)
    return _t_test(sample.mean - value, error, sample.count - 1, sample.count, paired)


def _t_test(difference: float, error: float, degrees: int, seeds: int, paired: bool) -> TTest:
    if error == 0:
        return TTest(difference, float(difference == 0), seeds, paired, error, degrees)
    return TTest(difference, 2 * float(stdtr(degrees, -abs(difference / error))), seeds, paired, error, degrees)


def mcnemar(before: np.ndarray, after: np.ndarray) -> float:
    """Two-sided p of the exact test that two classifiers are equally good, from their hits (bool) on the same images:
    among the images on which they differ, each is right in half of the cases."""
    gained, lost = int((after & ~before).sum()), int((before & ~after).sum())
    return min(1.0, 2 * float(bdtr(min(gained, lost), gained + lost, 0.5)))


def format_p(p: float) -> str:
    """`p < 0.001`, `p = 0.042`."""
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}"


def mark(values: Sequence[float | None], higher_is_better: bool = True) -> list[Mark | None]:
    """Which values of a column are best and second best.

    Values are compared as printed (rounded to one decimal): all rows with the best printed value are `best`, all with
    the next printed value `second`. None is not ranked. A best needs two ranked values, a second best three.
    Significance is not considered.
    """
    printed = [None if value is None else round(value, 1) + 0.0 for value in values]
    ranked = sorted({value for value in printed if value is not None}, reverse=higher_is_better)
    count = sum(value is not None for value in printed)
    marks: tuple[Mark, ...] = ("best", "second") if count > 2 else ("best",) if count > 1 else ()
    names: dict[float, Mark] = dict(zip(ranked, marks))
    return [None if value is None else names.get(value) for value in printed]


def wilson(share: float, count: int, z: float = 1.96) -> tuple[float, float]:
    """The 95% interval of Wilson for a share of so many images."""
    centre, scale = share + z * z / (2 * count), 1 + z * z / count
    half = z * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    return max(0.0, (centre - half) / scale), min(1.0, (centre + half) / scale)
