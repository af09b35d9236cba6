"""The engine of methods that learn by sums: one pass over the images of an episode, in place of steps with gradients.

It offers `Training` what `Engine` offers. Its state is the sums over finished episodes, those over the present one, and
the encoder that was made from them; no image is kept.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Container, Iterator
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from osiris import processes
from osiris.config import Config
from osiris.data.benchmark import Benchmark
from osiris.evaluation.scores import Budget
from osiris.framework.methods import Method
from osiris.framework.summed import Summed, image_digests
from osiris.memory import Memory
from osiris.models.external import Architecture
from osiris.runs.state import Position
from osiris.training.build import build_summed
from osiris.training.engine import Accept, Ended, Event, Point, Stepped, StepResult, Trained
from osiris.training.schedule import Episode

FIRST = 2500
"""Images of the first episode that a method may look at before it begins."""


class SummingEngine:
    """`state()` and `restore()` carry it through a checkpoint to the same bits."""

    def __init__(
        self,
        config: Config,
        method: Method,
        benchmark: Benchmark,
        device: torch.device,
        architecture: Architecture | None = None,
        planned: int | None = None,
    ) -> None:
        """`architecture`, `planned`: those of the state that will be restored."""
        self.config, self.method, self.benchmark, self.device = config, method, benchmark, device
        self.planned = planned or benchmark.task_count
        self.summed: Summed = build_summed(config, method, benchmark, device, architecture)
        self.architecture = self.summed.architecture
        self.networks = SimpleNamespace(encoder=self.summed.encoder, heads={}, batch_norm=False, external=True)
        self.memory = Memory(0, benchmark.train.images.shape)
        self.before: dict[str, Tensor] | None = None
        self.guarded = False
        self.total: Any = None
        """The sums over all finished episodes."""
        self.part: Any = None
        """The sums over the steps of the present one."""
        self.learned = self.present = torch.zeros(0, 16, dtype=torch.uint8)
        """Digests of the images of both, by which one that is to be forgotten is known."""

    def learn(
        self,
        episode: Episode,
        position: Position | None = None,
        evaluate_at: Container[int] = (),
        at_once: Callable[[], AbstractContextManager[None]] = nullcontext,
        accept: Accept | None = None,
    ) -> Iterator[Event]:
        """As `Engine.learn`. The encoder changes at the end, and in a stream at each point to evaluate."""
        stage, start = ("train", 0) if position is None else (position.stage, position.step)
        if stage in ("train", "curve"):
            self.begin(episode)
            if stage == "curve":
                yield Point(start)
            for step in range(start, episode.steps):
                result, done = self.step(episode, step), step + 1
                at_point = episode.past is not None and done in evaluate_at and done < episode.steps
                if at_point:
                    self.summed.set(self.total + self.part)
                yield Stepped(done, result, at_point)
                if at_point:
                    yield Point(done)
            yield Trained()
        if stage != "evaluate":
            with at_once():
                self.end(accept)
            yield Ended()

    def budget(self, episode: Episode, step: int, evaluated: int) -> Budget:
        """What a stream has cost after this many steps. No view is sent backward."""
        images = episode.count if step == episode.steps else episode.seen(step)
        return Budget(images=images, steps=step, forward={"x": images}, evaluated=evaluated)

    def begin(self, episode: Episode) -> None:
        if self.total is None:
            assert episode.images is not None
            self.summed.begin(episode.images.take(torch.arange(min(FIRST, episode.count))))
            self.total = self.summed.zero()
        if self.part is None:
            self.part = self.summed.zero()

    def step(self, episode: Episode, step: int) -> StepResult:
        """The sums of the images of one step. Each process computes its share, and all get the whole: what one of them
        saves is complete."""
        assert episode.images is not None
        last = step + 1 == episode.steps  # which takes what is left, also if that is more than others
        positions = torch.arange(step * episode.batch_size, episode.count if last else (step + 1) * episode.batch_size)
        images = episode.images.take(positions[processes.share(len(positions))])
        digests = image_digests(images).long()
        sums = self.summed.over(images) if len(images) else self.summed.zero()
        self.part = self.part + self._of_all_processes(sums)
        self.present = torch.cat([self.present, processes.gather(digests, len(positions)).to(torch.uint8)])
        seen = torch.tensor(float(positions[-1] + 1))
        return StepResult({"images": seen}, torch.tensor(True), len(positions))

    def end(self, accept: Accept | None = None) -> None:
        """Add the sums of the episode, and make the encoder from all. If it is refused, the images do not count."""
        together = self.total + self.part
        earlier = copy.deepcopy(self.summed.encoder) if accept is not None else None
        self.summed.set(together)
        if accept is not None and earlier is not None and not accept(earlier, self.summed.encoder):
            self.summed.encoder.load_state_dict(earlier.state_dict())
        else:
            self.total, self.learned = together, torch.cat([self.learned, self.present])
        self.part, self.present = None, self.present[:0]

    def _of_all_processes(self, sums: Any) -> Any:
        if processes.world_size() == 1:
            return sums
        tensors = sums.tensors()
        return self.summed.from_tensors({name: processes.sum_over_processes(one) for name, one in tensors.items()})

    def state(self) -> dict[str, Any]:
        model = {f"encoder.{name}": value for name, value in self.summed.encoder.state_dict().items()}
        model |= {f"memory.{name}": value for name, value in self.memory.state_dict().items()}
        sums = {name: one.tensors() for name, one in (("total", self.total), ("part", self.part)) if one is not None}
        digests = {"learned": self.learned, "present": self.present}
        return {"model": model, "sums": sums, "constants": self.summed.constants()} | digests

    def restore(self, state: dict[str, Any]) -> None:
        """Raises ValueError if the state is not one of this encoder."""
        try:
            encoder = {name: value for name, value in state["model"].items() if name.startswith("encoder.")}
            self.summed.encoder.load_state_dict({name[8:]: value for name, value in encoder.items()})
            self.summed.restore(state["constants"])
            self.learned, self.present = state["learned"], state["present"]
            self.total, self.part = (
                self.summed.from_tensors(state["sums"][name]) if name in state["sums"] else None
                for name in ("total", "part")
            )
        except (RuntimeError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise ValueError(" ".join(f"{type(error).__name__}: {error}".split())[:300]) from None

    def task_tensors(self) -> dict[str, Tensor]:
        return {f"encoder.{name}": value for name, value in self.summed.encoder.state_dict().items()}
