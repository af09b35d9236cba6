"""SwAV: the cluster assignment of one view is predicted from the other view."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, ClassVar

import torch
from msgspec import Meta
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from osiris.framework import losses
from osiris.framework.objectives.base import Batch, Objective, enqueue
from osiris.framework.options import Tau
from osiris.framework.representations import Networks, normalise
from osiris.models.heads import mlp
from osiris.randomness import scoped

if TYPE_CHECKING:
    from osiris.framework.terms import TaskContext


def prototypes(width: int, count: int) -> nn.Module:
    """Rows of learnt direction and length: the scores of an embedding are its products with them."""
    return weight_norm(nn.Linear(width, count, bias=False))


class Swav(Objective):
    """SwAV: assignments of each view to prototypes, balanced by Sinkhorn iterations, are targets for the other view."""

    kind: ClassVar[str] = "swav"
    symbol: ClassVar[str] = "SWAV"
    symbols: ClassVar[Mapping[str, str]] = {"prototypes": "P"}
    clusters: Annotated[int, Meta(ge=2, le=10_000_000)] = 3000
    """Number of prototypes."""
    tau: Tau = 0.1
    frozen_epochs: Annotated[int, Meta(ge=0)] = 2
    """At the start of each task the prototypes are not trained for so many epochs."""
    queue_size: Annotated[int, Meta(ge=0, le=10_000_000)] = 0
    """Embeddings of earlier batches that join the assignment (the original code: 3840); emptied in every task."""
    queue_epoch: Annotated[int, Meta(ge=0)] = 50
    """They join from this epoch of a task on."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.epoch = 0

    def projector(self, inputs: int, hidden: int, outputs: int) -> nn.Module:
        return mlp(inputs, hidden, outputs)

    def attach(self, networks: Networks, seed: int) -> None:
        width = networks.width("g")
        with scoped(seed, "init.prototypes"):
            self.prototypes = prototypes(width, self.clusters)
        self.register_buffer("queue", torch.zeros(2, self.queue_size, width))
        self.register_buffer("queue_position", torch.zeros((), dtype=torch.int64))

    def loss(self, batch: Batch, tau: float) -> Tensor:
        z = batch.normalised()
        self.waiting.append(z.detach())
        rows = self.rows()
        scores = z @ rows.T
        with torch.no_grad():
            earlier = self.get_buffer("queue")[:, : None if self.epoch >= self.queue_epoch else 0]
            targets = losses.sinkhorn(torch.cat([scores, earlier @ rows.T], dim=1))[:, : z.shape[1]]
        return losses.assignment(scores.flip(0), targets, self.tau)

    def rows(self) -> Tensor:
        rows = self.prototypes.weight
        assert isinstance(rows, Tensor)
        return rows.detach() if self.epoch < self.frozen_epochs else rows

    def distiller(self, networks: Networks, seed: int) -> SwavDistiller:
        with scoped(seed, "init.distiller"):
            return SwavDistiller(prototypes(networks.width("g"), self.clusters), self.tau)

    def begin_task(self, context: TaskContext) -> None:
        self.epoch = 0
        self.get_buffer("queue").zero_()
        self.get_buffer("queue_position").zero_()

    def after_step(self, context: TaskContext) -> None:
        self.epoch = context.step // context.steps_per_epoch
        for z in self.waiting if self.queue_size else ():
            enqueue(self.get_buffer("queue"), self.get_buffer("queue_position"), z)
        self.waiting = []

    def get_extra_state(self) -> Tensor:
        return torch.tensor(self.epoch, dtype=torch.int64)

    def set_extra_state(self, state: Tensor) -> None:
        self.epoch = int(state)


class SwavDistiller(nn.Module):
    """CaSSLe for SwAV: predictions have the assignments of the past embeddings to the past prototypes as targets."""

    def __init__(self, prototypes: nn.Module, tau: float) -> None:
        super().__init__()
        self.prototypes, self.tau = prototypes, tau
        weight = prototypes.weight
        assert isinstance(weight, Tensor)
        self.register_buffer("past", weight.detach().clone())

    def forward(self, prediction: Tensor, target: Tensor) -> Tensor:
        targets = (normalise(target) @ self.get_buffer("past").T / self.tau).softmax(-1)
        return losses.assignment(self.prototypes(normalise(prediction)), targets, self.tau)

    @torch.no_grad()
    def update(self, objective: Objective) -> None:
        """The prototypes of the objective at the end of a task."""
        assert isinstance(objective, Swav)
        self.get_buffer("past").copy_(objective.rows())
