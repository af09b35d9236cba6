"""What f* and g* are in a stream, which has no end of a task: a snapshot now and then, or a moving average."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

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
