"""Overfitting to the memory, tracked while training goes on."""

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
from osiris.training.schedule import Episode


def track_overfitting(engine: Engine, episode: Episode, step: int) -> dict[str, Any] | None:
    """A line of the log: the loss on past tasks against the loss on the memory, while training goes on (Fig. 3b).

    It has random streams of its own and changes nothing: the weights of a run are the same bits with and without it.
    None while the memory holds too few images of past tasks.
    """

    @torch.no_grad()
    def embed(indices: Tensor, key: torch.Generator) -> dict[str, Tensor]:
        count, rows = len(indices), processes.share(len(indices))
        images = upload(engine.benchmark.train.images.take(indices[rows]), engine.device)
        with frozen_statistics(engine.networks):
            rep = engine.represent({X: engine.two_views(images, key, rows, count)}, {X: count})
        return {space: rep(X, head=space) for space in engine.networks.heads}

    learning, memory = engine.config.learning, engine.memory
    past = (engine.benchmark.train.task < episode.task).nonzero().squeeze(1)
    source, task = memory.source[: memory.filled].cpu(), memory.task[: memory.filled].cpu()
    earlier = task < episode.task
    remembered = engine.benchmark.training_rows(task[earlier], source[earlier])
    key = (engine.config.seed, episode.task, step)
    spaces = overfitting(embed, past, remembered, key, learning.batch_size, tau=learning.tau)
    return spaces and {"event": "overfitting", "task": episode.task + 1, "step": step, "spaces": spaces}
