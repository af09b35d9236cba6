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
    redundant), `quota` (as many per task), `equal` (the same without
    a known number of tasks), or `module:name`."""
    replay: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    """|Y| as a number of images, whatever |X| is."""
    usual_replay: tyro.conf.Suppress[int | None] = None
    """|Y| in this preset, for methods that read the memory; on the command line: --replay."""
    boundaries: Literal["known", "none", "detect"] | None = None
    """In a stream: whether a method is told where a task begins (for f*); `detect`: it looks for changes of the images.
    None means `none`."""
    past_model: str | None = None
    """In a stream without boundaries: what f* is, snapshot:N or ema:N with N steps or (below 1) a share of the stream.
    None means snapshot:0.1."""
    replay_fraction: Annotated[float, Meta(gt=0, le=1)] | None = None
    """|Y| / |X|; None means 3/4 (lump and cromo: 1)."""
