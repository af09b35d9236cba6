"""SwAV: the cluster assignment of one view is predicted from the other view."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, ClassVar

import torch
from msgspec import Meta
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from osiris.framework import losses
from osiris.framework.objectives.base import Batch, WithQueue
from osiris.framework.options import Tau
from osiris.framework.representations import Networks
from osiris.models.heads import mlp
from osiris.randomness import scoped

if TYPE_CHECKING:
    from osiris.framework.terms import TaskContext


def prototypes(width: int, count: int) -> nn.Module:
    """A linear layer that scores embeddings by products with vectors of learnt direction and length."""
    return weight_norm(nn.Linear(width, count, bias=False))


class Swav(WithQueue):
    """SwAV: assignments of each view to prototypes, balanced by Sinkhorn iterations, are targets for the other view."""

    kind: ClassVar[str] = "swav"
    symbol: ClassVar[str] = "SWAV"
    symbols: ClassVar[Mapping[str, str]] = {"prototypes": "P"}
    clusters: Annotated[int, Meta(ge=2, le=10_000_000)] = 3000
    """Number of prototypes."""
    tau: Tau = 0.1
    frozen_epochs: Annotated[int, Meta(ge=0)] = 2
    """Epochs at the start of each task in which the prototypes are not trained."""
    queue_size: Annotated[int, Meta(ge=0, le=10_000_000)] = 0
    """Embeddings of earlier batches that take part in the assignment (the original code: 3840). The queue is emptied
    at the start of each task."""
    queue_epoch: Annotated[int, Meta(ge=0)] = 50
    """The first epoch of a task in which the queue takes part."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.epoch = 0

    def projector(self, inputs: int, hidden: int, outputs: int) -> nn.Module:
        return mlp(inputs, hidden, outputs)

    def attach(self, networks: Networks, seed: int) -> None:
        width = networks.width("g")
        with scoped(seed, "init.prototypes"):
            self.prototypes = prototypes(width, self.clusters)
        self.attach_queue(torch.zeros(2, self.queue_size, width))

    def loss(self, batch: Batch, tau: float) -> Tensor:
        z = batch.normalised()
        self.waiting.append(z.detach())
        vectors = self.prototype_vectors()
        scores = z @ vectors.T
        with torch.no_grad():
            earlier = self.get_buffer("queue")[:, : None if self.epoch >= self.queue_epoch else 0]
            targets = losses.sinkhorn(torch.cat([scores, earlier @ vectors.T], dim=1))[:, : z.shape[1]]
        return losses.assignment(scores.flip(0), targets, self.tau)

    def prototype_vectors(self) -> Tensor:
        """[clusters, d]; without gradient in the first epochs of a task."""
        vectors = self.prototypes.weight
        assert isinstance(vectors, Tensor)
        return vectors.detach() if self.epoch < self.frozen_epochs else vectors

    def begin_task(self, context: TaskContext) -> None:
        self.epoch = 0
        self.get_buffer("queue").zero_()
        self.get_buffer("queue_position").zero_()

    def after_step(self, context: TaskContext) -> None:
        super().after_step(context)
        self.epoch = context.step // context.steps_per_epoch

    def get_extra_state(self) -> Tensor:
        return torch.tensor(self.epoch, dtype=torch.int64)

    def set_extra_state(self, state: Tensor) -> None:
        self.epoch = int(state)
