"""Does replay overfit to the memory? The relative loss difference (Sec. 4.4, Fig. 3b and Fig. 5).

(L_all - L_mem) / L_all: the contrastive loss of a batch from all data observed against that of a batch from the memory,
both without the current task. The loss grows with the number of negatives, so both batches have the same number of
images, and an image that is in the memory twice is used once (it would be its own negative).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from osiris.framework import losses
from osiris.randomness import generator

FEWEST = 4
"""A contrastive loss on fewer images says nothing."""

Embed = Callable[[Tensor, torch.Generator], dict[str, Tensor]]
"""Indices of training images -> normalised embeddings [2, N, d] of two views of each, by space (g, h)."""


def relative_difference(loss_all: float, loss_memory: float) -> float:
    """(L_all - L_mem) / L_all: near zero without overfitting, positive if the loss on the memory is too low."""
    return (loss_all - loss_memory) / loss_all


def overfitting(
    embed: Embed,
    past: Tensor,
    memory: Tensor,
    key: tuple[int, ...],
    size: int,
    draws: int = 4,
    tau: float = 0.1,
) -> dict[str, dict[str, float]] | None:
    """{space: {all, memory, relative}}, means over `draws` pairs of batches of `size` images (or as many as there are).

    `past`: all training images of past tasks; `memory`: those of them in the memory; `key`: seed and indices of the
    random stream. The two batches of a pair share their augmentation parameters, which reduces the noise of the
    difference. None if the memory holds too few images of past tasks.
    """
    memory = memory.unique()
    count = min(size, len(memory), len(past))
    if count < FEWEST:
        return None
    totals: dict[str, dict[str, float]] = {}
    for draw in range(draws):
        for name, source in (("all", past), ("memory", memory)):
            seed, *indices = key
            chosen = torch.randperm(len(source), generator=generator(seed, f"tracking.{name}", *indices, draw))[:count]
            views = generator(seed, "tracking.augment", *indices, draw)
            for space, z in embed(source[chosen], views).items():
                losses_of = totals.setdefault(space, {"all": 0.0, "memory": 0.0})
                losses_of[name] += float(losses.contrast(z.float(), tau)) / draws
    return {space: {**of, "relative": relative_difference(of["all"], of["memory"])} for space, of in totals.items()}
