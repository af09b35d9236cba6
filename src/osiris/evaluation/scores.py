"""Percentages of hits, over all images or by group."""

from __future__ import annotations

from torch import Tensor


def percent(hit: Tensor) -> float | None:
    """100 * hits / images; None without images."""
    return 100 * int(hit.sum()) / len(hit) if len(hit) else None


def percent_by(hit: Tensor, group: Tensor, count: int) -> list[float | None]:
    """Percent of hits in each group 0 to count - 1; members of group -1 are left out."""
    return [percent(hit[group == number]) for number in range(count)]
