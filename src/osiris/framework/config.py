"""The choice of a method, as plain data (no torch here: `--help` must be fast)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class MethodConfig:
    """Which method, and what to change about it. An option left out keeps the method's own value."""

    method: str = "osiris-d"
    """Name in the zoo, with ablations after a slash: `osiris-d/no-cross` (see `osiris list methods`)."""
    current: str | None = None
    """Replace the terms of L_current, for example `contrast:g` or `union`."""
    cross: str | None = None
    """Replace the terms of L_cross; `none` removes them."""
    past: str | None = None
    """Replace the terms of L_past, for example `replay+distil`; `none` removes them."""
    cross_weight: float | None = None
    """lambda_1."""
    past_weight: float | None = None
    """lambda_2."""
    positive: Literal["same", "other"] | None = None
    """Which view is the positive of distillation (osiris-d, cassle)."""
    fisher_normaliser: Literal["sum", "max", "l2", "mean"] | None = None
    """What a task's Fisher is divided by (ewc)."""
    pocon_interval: int | None = None
    """Steps between the snapshots of pocon (default: a quarter of a task; the paper presets use the paper's)."""
    mixup_alpha: float | None = None
    """Beta(alpha, alpha) of lump."""
    second_space: Literal["copy", "fresh"] | None = None
    """How h starts in task 2: a copy of g, or fresh."""
    replay_fraction: float | None = None
    """|Y| / |X| (default 3/4; lump 1)."""
