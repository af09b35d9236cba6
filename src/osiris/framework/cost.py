"""What a method costs: encoder passes per training image, and images per second.

A backward pass counts as two forward passes. A frozen encoder has no backward pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from osiris.framework.methods import Method
from osiris.framework.representations import Passes
from osiris.framework.tracing import IMAGES, Scene, one_thread


@dataclass(frozen=True)
class Cost:
    """Views through an encoder for each image of X."""

    forward: float
    backward: float

    def __str__(self) -> str:
        return f"{self.forward:g}+{self.backward:g}"

    @property
    def frozen(self) -> float:
        """Forward passes without a backward."""
        return self.forward - self.backward

    @property
    def work(self) -> float:
        """In units of one forward pass of one view."""
        return self.forward + 2 * self.backward


FT = Cost(forward=2, backward=2)
"""Two views. This is also the cost of the first task of every method, and of offline and d1-only."""


@one_thread()
def measure_cost(method: Method) -> dict[str, Cost]:
    """Encoder passes per image of X in one step: `f: X`, `f: Y`, `f*: X`. Without the Fisher pass of ewc."""
    scene, passes = Scene(method), Passes()
    scene.loss(passes)
    names = {"live": "f", "past": "f*", "frozen": "frozen", "other": "expert"}
    costs = {}
    for key, images in passes.forward.items():
        encoder, _, source = key.partition(":")
        costs[f"{names[encoder]}: {source}"] = Cost(images / IMAGES, passes.backward.get(key, 0) / IMAGES)
    return costs


def total_cost(costs: Mapping[str, Cost]) -> Cost:
    return Cost(sum(cost.forward for cost in costs.values()), sum(cost.backward for cost in costs.values()))


@cache
def later_cost(method: Method) -> Cost:
    """Of a step from the second task on."""
    if method.stream == "continual":
        return total_cost(measure_cost(method))
    return Cost(FT.forward * method.length, FT.backward * method.length)


def throughput(rates: Sequence[float]) -> float:
    """Images per second: the median over logged lines, which ignores the warm-up and outliers of a busy machine."""
    return float(np.median(rates)) if len(rates) else float("nan")
