"""Metrics of the user's own: one number of each checkpoint, beside the accuracies."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from osiris.data.benchmark import Benchmark
from osiris.errors import UserError
from osiris.evaluation.features import Features
from osiris.evaluation.scores import Better, OwnNumber
from osiris.framework.options import Configurable, parse


class Metric(Configurable):
    """A number of the features of the bank and the test images. Its `kind` is the name of its column."""

    better: ClassVar[Better | None] = None
    """Which direction is better, if one is: the best of a table is then marked."""

    @abstractmethod
    def measure(self, features: Features, benchmark: Benchmark) -> float | None:
        """`features.bank` [N, d] and `features.test` [M, d] are in the order of `benchmark.bank` and `benchmark.test`
        (`label`, `task`); None: it is not defined here."""


def measure(names: Sequence[str], features: Features, benchmark: Benchmark) -> dict[str, OwnNumber]:
    """Of values of `--metrics`."""
    numbers = {}
    for name in names:
        metric = parse(Metric, name)
        value = metric.measure(features, benchmark)
        value = None if value is None else float(value)
        if value is not None and not math.isfinite(value):
            raise UserError(f"the metric {name} is {value}; return a finite number, or None.")
        numbers[metric.kind] = OwnNumber(value=value, better=metric.better)
    return numbers
