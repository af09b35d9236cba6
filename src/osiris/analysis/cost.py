"""What a method costs: passes through an encoder for each training image, floating-point operations, time.

A backward pass is counted as two forward passes. A pass through a frozen encoder has no backward.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from osiris.analysis.storage import reads_memory

VIEWS = 2


@dataclass(frozen=True)
class Passes:
    """Views through an encoder for each image of X, from the second task on (the first task is plain ft)."""

    trained: float
    """Forward and backward."""
    frozen: float
    """Forward alone."""

    @property
    def forwards(self) -> float:
        """In units of one forward pass of one view."""
        return 3 * self.trained + self.frozen


FT = Passes(trained=VIEWS, frozen=0)


def encoder_passes(composition: Mapping[str, Any]) -> Passes:
    """From a method's composition, as config.json records it. (ewc's one pass per task for its Fisher is left out.)"""
    terms = [term for role in ("current", "cross", "past") for term in composition.get(role, [])]
    kinds = {term["kind"] for term in terms}
    trained, frozen = float(VIEWS), 0.0
    if reads_memory(terms) and "mixed" not in kinds:  # mixed images replace X and Y: no pass of their own
        trained += VIEWS * float(composition.get("replay", 0.75))
    if "expert" in kinds:  # its own pass, and one through its snapshot
        trained, frozen = trained + VIEWS, frozen + VIEWS
    if kinds & {"distil", "predict"}:
        frozen += VIEWS
    if "snapshot" in kinds:
        frozen += VIEWS
    return Passes(trained, frozen)


def encoder_work(composition: Mapping[str, Any], images_per_task: Sequence[int], epochs: int, continual: bool) -> float:
    """Encoder forward passes of single views in a whole run: the first task as ft, later ones with all terms."""
    later = encoder_passes(composition) if continual else FT
    first, *rest = [count * epochs for count in images_per_task]
    return first * FT.forwards + sum(rest) * later.forwards


def throughput(rates: Sequence[float]) -> float:
    """Images per second: the median over logged lines, since the first ones warm up and a busy machine has outliers."""
    return float(np.median(rates)) if len(rates) else float("nan")


@dataclass(frozen=True)
class Estimate:
    """Of one run."""

    flops: float
    """Of the encoder, forward and backward, training alone."""
    hours: float | None
    """At a measured speed; None where none was measured."""


def estimate(work: float, flops_per_view: float, forwards_per_second: float | None) -> Estimate:
    hours = None if not forwards_per_second else work / forwards_per_second / 3600
    return Estimate(work * flops_per_view, hours)
