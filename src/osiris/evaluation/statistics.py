"""Statistics over seeds and over test images.

Deviations are those of a sample (ddof 1). The paper's p = 0.185 is obtained with the population's (ddof 0).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

Mark = Literal["best", "second"]
BOOTSTRAP_ENTRIES = 1 << 22
"""Draws held at a time (32 MiB)."""


@dataclass(frozen=True)
class TTest:
    t: float
    degrees: int
    p: float
    """Two-sided."""


@dataclass(frozen=True)
class Interval:
    """A difference in percentage points and its bootstrap interval."""

    difference: float
    low: float
    high: float
    confidence: float
    resamples: int

    @property
    def excludes_zero(self) -> bool:
        return self.low > 0 or self.high < 0


def mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def deviation(values: Sequence[float]) -> float | None:
    """Of a sample (ddof 1); None for fewer than two values."""
    if len(values) < 2:
        return None
    centre = mean(values)
    return math.sqrt(math.fsum((value - centre) ** 2 for value in values) / (len(values) - 1))


def t_test(first: Sequence[float], second: Sequence[float]) -> TTest | None:
    """Student's unpaired t-test with equal variances; None if either side has fewer than two values."""
    one, other = deviation(first), deviation(second)
    if one is None or other is None:
        return None
    return t_test_from_summaries((mean(first), one, len(first)), (mean(second), other, len(second)))


def t_test_from_summaries(first: tuple[float, float, int], second: tuple[float, float, int]) -> TTest:
    """The same from (mean, sample deviation, count), such as a published table gives."""
    from scipy.special import stdtr

    (mean_one, deviation_one, count_one), (mean_two, deviation_two, count_two) = first, second
    degrees = count_one + count_two - 2
    assert count_one >= 1 and count_two >= 1 and degrees >= 1, (count_one, count_two)
    pooled = ((count_one - 1) * deviation_one**2 + (count_two - 1) * deviation_two**2) / degrees
    error = math.sqrt(pooled * (1 / count_one + 1 / count_two))
    difference = mean_one - mean_two
    if error == 0:
        return TTest(0.0, degrees, 1.0) if difference == 0 else TTest(math.copysign(math.inf, difference), degrees, 0.0)
    t = difference / error
    return TTest(t, degrees, 2 * float(stdtr(degrees, -abs(t))))


def paired_bootstrap(
    first: np.ndarray,
    second: np.ndarray,
    task: np.ndarray,
    seed: int = 0,
    resamples: int = 2000,
    confidence: float = 0.95,
) -> Interval:
    """Percentile interval of the difference in A between two methods, over test images.

    `first` and `second` are bool [seeds, test images]: whether a run of the method was right. They may have different
    numbers of seeds; a method's hits are averaged over its own. Images are drawn with replacement within each task, the
    same draw for both methods (that makes it paired), and tasks weigh the same, as in A.
    """
    import torch

    from osiris.randomness import generator

    assert first.ndim == second.ndim == 2 and first.shape[1] == second.shape[1] == len(task)
    gain = 100 * (first.mean(axis=0, dtype=np.float64) - second.mean(axis=0, dtype=np.float64))
    tasks = np.unique(task)
    centre, drawn = 0.0, np.zeros(resamples)
    for number in tasks:
        part = gain[task == number]
        source = generator(seed, "bootstrap", int(number))
        height = max(1, BOOTSTRAP_ENTRIES // len(part))
        for start in range(0, resamples, height):
            size = (min(height, resamples - start), len(part))
            drawn[start : start + height] += part[torch.randint(len(part), size, generator=source).numpy()].mean(axis=1)
        centre += float(part.mean())
    low, high = np.quantile(drawn / len(tasks), [(1 - confidence) / 2, (1 + confidence) / 2])
    return Interval(centre / len(tasks), float(low), float(high), confidence, resamples)


def mark(values: Sequence[float | None], higher_is_better: bool = True, decimals: int = 1) -> list[Mark | None]:
    """Which values of a column are best and second best.

    The rule: values are compared as printed (rounded to `decimals`). All rows with the best printed value are `best`,
    all with the next distinct printed value are `second`; None competes with nobody. Significance plays no part.
    """
    printed = [None if value is None else round(value, decimals) + 0.0 for value in values]
    ranked = sorted({value for value in printed if value is not None}, reverse=higher_is_better)
    names: dict[float, Mark] = dict(zip(ranked, ("best", "second")))
    return [None if value is None else names.get(value) for value in printed]
