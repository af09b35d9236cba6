"""What every objective has in common.

The paper fixes L^SSL to NT-Xent. Its framework does not need that: g serves the present alone, so any self-supervised
loss can act in the space of g, while h keeps the comparison with the past. An objective brings the shape of g, and its
own predictor, moving averages and queues. `attach` creates its state, so that checkpoints contain it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from math import cos, pi
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn

from osiris.framework.options import Configurable, Share
from osiris.framework.representations import Average, Networks, Representations
from osiris.models.heads import projector

if TYPE_CHECKING:
    from osiris.framework.objectives.clustering import SwavDistiller
    from osiris.framework.terms import TaskContext

COLLAPSED = 0.02
"""A smaller spread is a collapse. Unit vectors with a mean cosine of 0.999 have a spread of 0.03."""


def is_collapsed(spread: float | None) -> bool:
    return spread is not None and spread < COLLAPSED


@dataclass
class Batch:
    """The embeddings of a union of inputs, [2, N, d], through an encoder, a head and further modules."""

    rep: Representations
    names: tuple[str, ...]
    encoder: str | nn.Module = "live"
    head: str | nn.Module = "g"

    def normalised(self, *after: nn.Module) -> Tensor:
        return torch.cat([self.rep(name, (self.head, *after), self.encoder) for name in self.names], dim=1)

    def raw(self, *after: nn.Module) -> Tensor:
        return torch.cat([self.rep.raw(name, (self.head, *after), self.encoder) for name in self.names], dim=1)


class Objective(Configurable):
    """L^SSL of a batch in the space of g."""

    symbol: ClassVar[str] = ""
    """Its name in formulas, as NTX in NTX_g(X)."""
    symbols: ClassVar[Mapping[str, str]] = {"predictor": "s", "average_encoder": "f~", "average_head": "g~"}
    """The symbols of its modules in tables and pictures."""
    contrastive: ClassVar[bool] = False
    """Whether distillation in the space of g is contrastive too."""
    has_negatives: ClassVar[bool] = False
    """Whether images of a batch are negatives of each other: `cross` and `negatives` in g need that."""
    decoupled: ClassVar[bool] = False
    """Whether the denominator leaves out the positive."""
    unit_predictions: ClassVar[bool] = False
    """Whether the predictor of cassle gets normalised embeddings."""
    constant_rate: ClassVar[tuple[str, ...]] = ()
    """Modules whose learning rate follows no schedule."""
    mixes: ClassVar[bool] = False
    """Whether cromo has a form for this objective: `pair`."""
    repulsion: ClassVar[float | None] = None
    """Weight of `repel` in pnr; None: pnr has no form for this objective."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.spread: Tensor | None = None
        """Standard deviation of normalised embeddings over the batch, mean over dimensions, times sqrt(d): near 1 when
        healthy, 0 when collapsed. Of the last batch."""
        self.waiting: list[Tensor] = []
        """Embeddings of this step that enter a queue after it."""

    def start(self) -> None:
        """A step begins."""
        self.spread, self.waiting = None, []

    def projector(self, inputs: int, hidden: int, outputs: int) -> nn.Module:
        """A fresh g (default: that of the paper)."""
        return projector(inputs, hidden, outputs)

    def attach(self, networks: Networks, seed: int) -> None:
        """Create its state."""

    def forward(
        self,
        rep: Representations,
        names: tuple[str, ...],
        tau: float,
        encoder: str | nn.Module = "live",
        head: str | nn.Module = "g",
    ) -> Tensor:
        """L^SSL of the union of some inputs. `encoder` and `head` are others in pocon, which trains an expert."""
        batch = Batch(rep, names, encoder, head)
        value = self.loss(batch, tau)
        if names != ("Y",):
            self.watch(batch.normalised())
        return value

    @torch.no_grad()
    def watch(self, z: Tensor) -> None:
        """Measure the spread of normalised embeddings [2, N, d]."""
        self.spread = z.std(1, unbiased=False).mean() * z.shape[2] ** 0.5

    def temperature(self, tau: float) -> float:
        """Of contrastive losses in the space of g: its own, or that of the run."""
        return getattr(self, "tau", tau)

    @property
    def paper_projector(self) -> bool:
        """Whether g has the shape of h, so that h can start as a copy of g."""
        return type(self).projector is Objective.projector

    @property
    def can_agree(self) -> bool:
        """Whether past and present can be compared in the space of g (cassle)."""
        kind = type(self)
        return self.contrastive or kind.agree is not Objective.agree or kind.distiller is not Objective.distiller

    @abstractmethod
    def loss(self, batch: Batch, tau: float) -> Tensor: ...

    def agree(self, prediction: Tensor, target: Tensor) -> Tensor:
        """The distance of raw predictions from raw embeddings of the past, both [2, N, d] (cassle)."""
        raise NotImplementedError(f"{type(self).__name__} has no agree")

    def pair(self, a: Tensor, b: Tensor, tau: float) -> Tensor:
        """The loss of raw embeddings [N, d] of which row i of a belongs to row i of b (cromo)."""
        raise NotImplementedError(f"{type(self).__name__} has no pair")

    def anchors(self, batch: Batch) -> Tensor:
        """Raw embeddings for the first argument of `pair`, [2, N, d]."""
        return batch.raw()

    def positives(self, batch: Batch) -> Tensor:
        """Raw embeddings for the second argument of `pair`, [2, N, d]."""
        return batch.raw()

    def distiller(self, networks: Networks, seed: int) -> SwavDistiller | None:
        """A module that replaces `agree` where that needs a state of its own."""
        return None

    def repel(self, prediction: Tensor, other: Tensor) -> Tensor:
        """The distance that grows between raw predictions and raw past embeddings of the other view (pnr)."""
        return self.agree(prediction, other)

    def begin_task(self, context: TaskContext) -> None: ...

    def after_step(self, context: TaskContext) -> None: ...


@torch.no_grad()
def enqueue(queue: Tensor, position: Tensor, rows: Tensor) -> None:
    """Write rows [2, N, d] over the oldest of a queue [2, K, d]. Rows that are not finite leave the old ones."""
    rows = rows[:, -queue.shape[1] :]
    slots = (position + torch.arange(rows.shape[1], device=queue.device)) % queue.shape[1]
    finite = rows.isfinite().all(-1, keepdim=True)
    queue[:, slots] = torch.where(finite, rows.to(queue.dtype), queue[:, slots])
    position.add_(rows.shape[1]).remainder_(queue.shape[1])


class WithAverage(Objective):
    """An objective with moving averages f~ and g~ of the trained networks."""

    rate: Share = 0.99
    """The share of the old average in an update at the start of a task."""
    final_rate: ClassVar[float] = 1.0
    """The same at the end of a task; cosine in between."""

    def attach(self, networks: Networks, seed: int) -> None:
        self.average_encoder, self.average_head = Average(networks.encoder), Average(networks.heads["g"])

    def targets(self, batch: Batch) -> Batch:
        """The same images through f~ and g~."""
        return Batch(batch.rep, batch.names, self.average_encoder, self.average_head)

    def after_step(self, context: TaskContext) -> None:
        """theta~ <- tau theta~ + (1 - tau) theta with tau(k - 1) after the k-th step of the task."""
        done = (context.step - 1) / context.steps
        rate = self.final_rate - (self.final_rate - self.rate) * (1 + cos(pi * done)) / 2
        networks = context.networks
        encoder, head = (networks.expert if context.task else None) or (networks.encoder, networks.heads["g"])
        self.average_encoder.follow(encoder, rate)
        self.average_head.follow(head, rate)
