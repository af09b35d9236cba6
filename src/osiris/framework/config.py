"""The choice of a method as plain data. No torch here: `osiris list` must be fast."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import tyro
from msgspec import Meta

BY_SUMS = ("readout", "smt")
"""Methods that learn by sums in one pass, without gradients."""


@dataclass(frozen=True)
class MethodConfig:
    """Which method, and what to change in it. Options that are left out keep the values of the method."""

    method: str = "osiris-d"
    """A name of `osiris list methods`, with variants and options as in `osiris-d/no-cross` and `lump(alpha=1)`."""
    objective: str | None = None
    """What L_current optimises in the space of g: ntxent (default), dcl, barlow, vicreg, byol, simsiam, mocov2+,
    mocov3, swav, with options as in `barlow(scale=0.025)`; see docs/objectives.md."""
    current: str | None = None
    """Replace the terms of L_current, for example `contrast:g` or `union`."""
    cross: str | None = None
    """Replace the terms of L_cross; `none` removes them."""
    past: str | None = None
    """Replace the terms of L_past, for example `replay+distil`; `none` removes them."""
    cross_weight: Annotated[float, Meta(ge=0, le=1e6)] | None = None
    """lambda_1, the weight of L_cross."""
    past_weight: Annotated[float, Meta(ge=0, le=1e6)] | None = None
    """lambda_2, the weight of L_past."""
    pocon_interval: tyro.conf.Suppress[int | None] = None
    """Steps between the snapshots of pocon in this preset; on the command line: `--method "pocon(interval=2000)"`."""
    second_space: Literal["copy", "fresh"] | None = None
    """How h starts in task 2: as a copy of g, or newly initialised."""
    memory_policy: str | None = None
    """Images that the memory keeps: `reservoir` (a uniform sample), `fifo` (the newest), `minred` (the least
    redundant), `quota` (as many per task), or `module:name`."""
    replay_fraction: Annotated[float, Meta(gt=0, le=1)] | None = None
    """|Y| / |X|; None means 3/4 (lump and cromo: 1)."""
