"""What f* and g* are in a stream, which has no end of a task: a snapshot now and then, or a moving average."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from osiris.errors import UserError

FORMS = "snapshot:N or ema:N, where N is a number of steps, or below 1 a share of the stream"
START = 0.1
"""An average begins after this share of the stream (or its own horizon, if that is shorter): before, it would be one of
a network that has learned nothing."""


@dataclass(frozen=True)
class Past:
    """f* and g* of a stream. No term that uses them acts before the first of them."""

    kind: str = "snapshot"
    """snapshot, ema, known (at true boundaries), detect, none."""
    every: int = 0
    """Steps between snapshots, or the horizon of an average: its mean age."""
    steps: frozenset[int] = frozenset()
    """After which f* <- f, where boundaries are known."""
    start: int = 0
    """The step after which an average begins, as a copy."""

    def renewed(self, step: int) -> bool:
        """Whether f* <- f after this many steps, by a rule that is known before the run."""
        if self.kind == "snapshot":
            return step % self.every == 0
        return step in self.steps if self.kind == "known" else self.kind == "ema" and step == self.start

    @property
    def rate(self) -> float:
        """The share of the old average in an update."""
        return 1 - 1 / self.every


WINDOW = 8
"""Batches on each side of a change."""
THRESHOLD = 3.0
"""Squared distance of two windows in units of what chance gives. Without a change it is about 1
(docs/results/streams.md)."""
SIDE = 8
"""Pictures are compared at this size."""


class Detector:
    """Finds changes of the images: the mean picture of the last WINDOW batches against that of the WINDOW before.

    Their squared distance is compared with s^2 = (s_1^2 + s_2^2) / WINDOW, which it has by chance if batches are
    independent; s_i^2 is the variance of the batches of a window. Pictures are small and raw: features would change
    with the encoder that learns. The device keeps their means; the host waits for a decision every half window.
    """

    def __init__(self) -> None:
        self.means: Tensor | None = None
        self.count = 0
        """Batches since the last change."""

    def add(self, mean: Tensor) -> bool:
        """Whether the images have changed, after one more batch with this mean."""
        before = mean.new_zeros(2 * WINDOW, len(mean)) if self.means is None else self.means
        self.means, self.count = torch.cat([before[1:], mean[None]]), self.count + 1
        if self.count < 2 * WINDOW or self.count % (WINDOW // 2):
            return False
        if float(distance(self.means)) <= THRESHOLD:
            return False
        self.count = 0
        return True

    def state(self) -> dict[str, Any]:
        return {"count": self.count} | ({} if self.means is None else {"means": self.means})

    def restore(self, state: dict[str, Any], device: torch.device) -> None:
        self.count = int(state["count"])
        self.means = state["means"].to(device) if "means" in state else None


def distance(means: Tensor) -> Tensor:
    """Squared distance of the mean of the first half of the rows from that of the second, in units of chance."""
    first, second = means.chunk(2)
    chance = (first.var(0).sum() + second.var(0).sum()) / len(first)
    return (first.mean(0) - second.mean(0)).square().sum() / chance


def pictures(images: Tensor) -> Tensor:
    """uint8 [N, 3, H, W] as small pictures, float32 [N, 3 * SIDE^2]."""
    return functional.adaptive_avg_pool2d(images.float() / 255, SIDE).flatten(1)


def past_of(boundaries: str, text: str | None, steps: int, starts: Sequence[int], order: str) -> Past:
    """`boundaries`: known, none or detect; `text`: of --past-model; `starts`: steps before which tasks begin."""
    if boundaries == "known":
        if not starts:
            raise UserError(f"--boundaries known: the order {order!r} has no boundaries. Use none or detect.")
        return Past("known", steps=frozenset(starts))
    if boundaries == "detect":
        return Past("detect")
    kind, _, number = (text or "snapshot:0.1").partition(":")
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    if kind not in ("snapshot", "ema") or not 0 < value < math.inf or (value >= 1 and value != int(value)):
        raise UserError(f"--past-model {text}: write {FORMS}.")
    every = max(1, round(value * steps) if value < 1 else int(value))
    return Past(kind, every=every, start=max(1, min(every, round(START * steps))))


def parse(text: str) -> None:
    """Refuse what is not the past of a stream."""
    past_of("none", text, 1000, (), "")
