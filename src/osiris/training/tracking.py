"""--track-overfitting N: the loss on past tasks against the loss on the memory, while training goes on (Fig. 3b)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from osiris import processes
from osiris.augment.operations import upload
from osiris.evaluation.overfitting import overfitting
from osiris.framework.terms import X
from osiris.models.normalisation import frozen_statistics
from osiris.training.engine import Engine
from osiris.training.schedule import Phase


class Tracker:
    """Measures every `every` steps from the second task on. It has random streams of its own and changes nothing:
    the weights of a run are the same bits with and without it."""

    def __init__(self, engine: Engine, every: int | None) -> None:
        self.engine, self.every = engine, every

    def due(self, phase: Phase, step: int) -> bool:
        return self.every is not None and phase.task > 0 and step % self.every == 0

    def measure(self, phase: Phase, step: int) -> dict[str, Any] | None:
        """The line of the log, or None while the memory holds too few images of past tasks."""
        engine, learning = self.engine, self.engine.config.learning
        past = (engine.benchmark.train.task < phase.task).nonzero().squeeze(1)
        filled = slice(0, engine.memory.filled)
        source, task = engine.memory.source[filled].cpu(), engine.memory.task[filled].cpu()
        key = (engine.config.seed, phase.task, step)
        spaces = overfitting(self._embed, past, source[task < phase.task], key, learning.batch_size, tau=learning.tau)
        if spaces is None:
            return None
        return {"event": "overfitting", "task": phase.task + 1, "step": step, "spaces": spaces}

    @torch.no_grad()
    def _embed(self, indices: Tensor, key: torch.Generator) -> dict[str, Tensor]:
        engine, count = self.engine, len(indices)
        rows = processes.share(count)
        images = upload(engine.benchmark.train.images.take(indices[rows]), engine.device)
        with frozen_statistics(engine.networks):
            rep = engine.represent({X: engine.two_views(images, key, rows, count)}, {X: count})
        return {space: rep(X, head=space) for space in engine.networks.heads}
