"""One episode, from where a run stands in it to its end: a generator of what happens.

    begin -> step, step, ... (a point to evaluate now and then) -> all steps are done -> end (terms, then f* <- f)

Whoever consumes the events decides what is logged, saved and evaluated; tests consume them without any of that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from osiris.runs.state import Position
from osiris.training.engine import Accept, Engine, StepResult
from osiris.training.schedule import Episode


@dataclass(frozen=True)
class Stepped:
    """A step is done."""

    step: int
    """Steps done in this episode."""
    result: StepResult
    at_point: bool
    """Whether a point to evaluate follows."""


@dataclass(frozen=True)
class Point:
    """The encoder is to be evaluated between two steps."""

    step: int


@dataclass(frozen=True)
class Trained:
    """All steps are done; the end of the episode comes next."""


@dataclass(frozen=True)
class Ended:
    """The episode has ended: its encoder is final."""


Event = Stepped | Point | Trained | Ended


def learn(
    engine: Engine,
    episode: Episode,
    position: Position | None = None,
    evaluate_every: int | None = None,
    at_once: Callable[[], AbstractContextManager[None]] = nullcontext,
    accept: Accept | None = None,
) -> Iterator[Event]:
    """Learn from an episode. `position`: where the run stands in it; default: at its beginning. `at_once`: a context in
    which an interruption need not wait, because all steps are saved. `accept`: see `Engine.end`."""
    stage, start = ("train", 0) if position is None else (position.stage, position.step)
    if stage in ("train", "curve"):
        if start == 0:
            engine.begin(episode)
        if stage == "curve":
            yield Point(start)
        for step in range(start, episode.steps):
            result, done = engine.step(episode, step), step + 1
            at_point = bool(evaluate_every) and done % (evaluate_every or 1) == 0 and done < episode.steps
            yield Stepped(done, result, at_point)
            if at_point:
                yield Point(done)
        yield Trained()
    if stage != "evaluate":
        with at_once():
            engine.end(episode, accept)
        yield Ended()
