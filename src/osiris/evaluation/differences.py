"""One statement about the difference between two methods: its 95% interval and its p, both of the same t distribution,
and what varies.

- `seeds`: other seeds on the same test images. A t-test over seeds, paired where two seeds or more are shared.
- `images`: other test images, with these very runs. Images are paired, and every task has the same weight, as in A.
- `both`: other seeds and other images: seeds and images are crossed random effects. The variance of a mean over both is
  V(seeds) + V(images) - V(their interaction, which both contain), at least the larger of the first two; the degrees of
  freedom follow Satterthwaite, those of the images being large. A hierarchical bootstrap of a few seeds gives intervals
  that are too narrow (docs/log.md).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.special import stdtr, stdtrit

from osiris.evaluation.statistics import Sample, t_test

Varying = Literal["seeds", "images", "both"]
MANY = 1e6
"""Degrees of freedom: a normal distribution."""


@dataclass(frozen=True)
class Hits:
    """Which test images the runs of a method were right on."""

    seeds: tuple[int, ...]
    right: np.ndarray
    """bool [seeds, test images]"""
    task: np.ndarray
    """int [test images]"""

    def of(self, seeds: list[int]) -> np.ndarray:
        """float64 [seeds, test images], in percent."""
        return 100.0 * self.right[[self.seeds.index(seed) for seed in seeds]]


@dataclass(frozen=True)
class Difference:
    """Of one method minus another, in percentage points."""

    value: float
    low: float
    high: float
    p: float
    error: float
    """The standard error."""
    varying: Varying
    paired: bool
    """Whether the same seeds of both were compared."""

    @staticmethod
    def of(value: float, error: float, degrees: float, varying: Varying, paired: bool) -> Difference:
        half = float(stdtrit(degrees, 0.975)) * error
        p = float(value == 0) if error == 0 else 2 * float(stdtr(degrees, -abs(value / error)))
        return Difference(value, value - half, value + half, p, error, varying, paired)

    @property
    def words(self) -> str:
        """What the interval and p are about."""
        if self.varying == "images":
            return "other test images, with these very runs (nothing is said about other seeds)"
        test = "the same seeds of both" if self.paired else "independent samples, because no two seeds are shared"
        if self.varying == "seeds":
            return f"other seeds, on the same test images (t-test of {test})"
        return f"other seeds and other test images (random effects of both; {test})"


def difference(
    one: Sample,
    other: Sample,
    varying: Varying | None = None,
    hits: tuple[Hits | None, Hits | None] = (None, None),
) -> Difference | None:
    """`varying`: by default the seeds, if there are enough, else the images. None if the runs do not support it: two
    seeds each, or hits on the same images."""
    pair = _comparable(*hits)
    if varying in (None, "seeds"):
        over_seeds = _over_seeds(one, other)
        if over_seeds is not None or varying == "seeds" or pair is None:
            return over_seeds
        varying = "images"
    return None if pair is None else _over_images(*pair, varying or "images")


def _comparable(first: Hits | None, second: Hits | None) -> tuple[Hits, Hits] | None:
    if first is None or second is None or not np.array_equal(first.task, second.task):
        return None
    return first, second


def _over_seeds(one: Sample, other: Sample) -> Difference | None:
    test = t_test(one, other)
    if test is None:
        return None
    return Difference.of(test.difference, test.error, test.degrees, "seeds", test.paired)


def _over_images(first: Hits, second: Hits, varying: Varying) -> Difference | None:
    shared = sorted(set(first.seeds) & set(second.seeds))
    if varying == "images":
        ours, theirs = (one.of(shared or list(one.seeds)) for one in (first, second))
        gain = (ours.mean(axis=0) - theirs.mean(axis=0))[None]
        value = _mean(gain, first.task)[0]
        return Difference.of(value, math.sqrt(_image_variance(gain[0], first.task)), MANY, varying, bool(shared))
    if len(shared) > 1:
        parts = [first.of(shared) - second.of(shared)]
    else:
        parts = [first.of(list(first.seeds)), -second.of(list(second.seeds))]
    if min(map(len, parts)) < 2:
        return None
    value = sum(float(_mean(part, first.task).mean()) for part in parts)
    by_seed = [float(np.var(_mean(part, first.task), ddof=1)) / len(part) for part in parts]
    seeds, images = sum(by_seed), _image_variance(sum(part.mean(axis=0) for part in parts), first.task)  # pyright: ignore
    total = max(seeds + images - sum(_interaction(part, first.task) for part in parts), seeds, images)
    known = sum(variance**2 / (len(part) - 1) for variance, part in zip(by_seed, parts))
    degrees = MANY if known == 0 else min(total**2 / known, MANY)
    return Difference.of(value, math.sqrt(total), degrees, varying, len(shared) > 1)


def _mean(values: np.ndarray, task: np.ndarray) -> np.ndarray:
    """Of each row [n, test images]: the mean over tasks, as A."""
    return np.mean([values[:, task == number].mean(axis=1) for number in np.unique(task)], axis=0)


def _image_variance(gain: np.ndarray, task: np.ndarray) -> float:
    """Of the mean over tasks, if other images of each task had been drawn."""
    parts = [gain[task == number] for number in np.unique(task)]
    return sum(float(np.var(part, ddof=1)) / len(part) for part in parts if len(part) > 1) / len(parts) ** 2


def _interaction(values: np.ndarray, task: np.ndarray) -> float:
    """The part of the variance of a mean over seeds and images [seeds, images] that is of single pairs of both."""
    total, tasks = 0.0, np.unique(task)
    for number in tasks:
        part = values[:, task == number]
        rest = part - part.mean(axis=0) - part.mean(axis=1, keepdims=True) + part.mean()
        free = (part.shape[0] - 1) * (part.shape[1] - 1)
        total += float((rest**2).sum()) / free / part.size if free else 0.0
    return total / len(tasks) ** 2
