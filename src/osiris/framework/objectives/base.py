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
from typing import TYPE_CHECKING, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from osiris.framework.options import Configurable, Share
from osiris.framework.representations import Average, Networks, Representations
from osiris.models.heads import projector

if TYPE_CHECKING:
    from osiris.framework.terms import TaskContext

Form = TypeVar("Form")
COLLAPSED = 0.02
"""Embeddings with a smaller spread have collapsed. A mean cosine of 0.999 gives a spread of 0.03."""


def is_collapsed(spread: float | None) -> bool:
    return spread is not None and spread < COLLAPSED


@dataclass
class Batch:
    """The embeddings of a union of inputs, [2, N, d], through an encoder, a head and further modules."""

    rep: Representations
    names: tuple[str, ...]
    encoder: str | nn.Module = "f"
    head: str | nn.Module = "g"

    def normalised(self, *after: nn.Module) -> Tensor:
        return torch.cat([self.rep(name, (self.head, *after), self.encoder) for name in self.names], dim=1)

    def raw(self, *after: nn.Module) -> Tensor:
        return torch.cat([self.rep.raw(name, (self.head, *after), self.encoder) for name in self.names], dim=1)


class Objective(Configurable):
    """L^SSL of a batch in the space of g."""

    symbol: ClassVar[str] = ""
    """The name of its loss in formulas, such as NTX in NTX_g(X)."""
    symbols: ClassVar[Mapping[str, str]] = {"predictor": "s", "average_encoder": "f~", "average_head": "g~"}
    """The symbols of its modules in tables and pictures."""
    constant_rate: ClassVar[tuple[str, ...]] = ()
    """Modules whose learning rate follows no schedule."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.spread: Tensor | None = None
        """Standard deviation of normalised embeddings over the batch, mean over dimensions, times sqrt(d): near 1 when
        healthy, 0 when collapsed. That of the last batch."""

    def start(self) -> None:
        """Called at the beginning of each step."""
        self.spread = None

    def projector(self, inputs: int, hidden: int, outputs: int) -> nn.Module:
        """A fresh g (default: that of the paper)."""
        return projector(inputs, hidden, outputs)

    def attach(self, networks: Networks, seed: int) -> None:
        """Create its modules and buffers."""

    def forward(
        self,
        rep: Representations,
        names: tuple[str, ...],
        tau: float,
        encoder: str | nn.Module = "f",
        head: str | nn.Module = "g",
    ) -> Tensor:
        """L^SSL of the union of some inputs. In pocon, `encoder` and `head` are those of the expert."""
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
        """The temperature of contrastive losses in the space of g: its own, or `tau`, that of the run."""
        return getattr(self, "tau", tau)

    @abstractmethod
    def loss(self, batch: Batch, tau: float) -> Tensor:
        """L^SSL of the batch: the equation of the objective."""

    def begin_task(self, context: TaskContext) -> None: ...

    def after_step(self, context: TaskContext) -> None: ...


def find_form(forms: Mapping[type[Objective], Form], objective: Objective) -> Form | None:
    """The form of an objective in the table of a method: that of its class, or of the nearest class it is derived from;
    None if there is none."""
    return next((forms[kind] for kind in type(objective).__mro__ if kind in forms), None)


def form_of(forms: Mapping[type[Objective], Form], objective: Objective) -> Form:
    """The same for an objective that the method has accepted."""
    form = find_form(forms, objective)
    assert form is not None, objective
    return form


@torch.no_grad()
def enqueue(queue: Tensor, position: Tensor, embeddings: Tensor) -> None:
    """Write embeddings [2, N, d] over the oldest ones of a queue [2, K, d]. Those that are not finite are left out."""
    embeddings = embeddings[:, -queue.shape[1] :]
    slots = (position + torch.arange(embeddings.shape[1], device=queue.device)) % queue.shape[1]
    finite = embeddings.isfinite().all(-1, keepdim=True)
    queue[:, slots] = torch.where(finite, embeddings.to(queue.dtype), queue[:, slots])
    position.add_(embeddings.shape[1]).remainder_(queue.shape[1])


class WithQueue(Objective):
    """An objective with a queue [2, K, d] of embeddings of earlier batches, for each view; K = 0: without one."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.waiting: list[Tensor] = []
        """Embeddings of this step, which enter the queue after it."""

    def start(self) -> None:
        super().start()
        self.waiting = []

    def attach_queue(self, embeddings: Tensor) -> None:
        """Create the queue with these contents."""
        self.register_buffer("queue", embeddings)
        self.register_buffer("queue_position", torch.zeros((), dtype=torch.int64))

    def after_step(self, context: TaskContext) -> None:
        super().after_step(context)
        for embeddings in self.waiting if self.get_buffer("queue").shape[1] else ():
            enqueue(self.get_buffer("queue"), self.get_buffer("queue_position"), embeddings)
        self.waiting = []


class WithAverage(Objective):
    """An objective with moving averages f~ and g~ of the networks that it trains."""

    rate: Share = 0.99
    """The share of the old average in an update at the start of a task."""
    final_rate: ClassVar[float] = 1.0
    """The same at the end of a task; cosine in between."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.trained: tuple[nn.Module, nn.Module] | None = None
        """Encoder and head that it trains in this step; None: f and g."""

    def start(self) -> None:
        super().start()
        self.trained = None

    def attach(self, networks: Networks, seed: int) -> None:
        self.average_encoder, self.average_head = Average(networks.encoder), Average(networks.heads["g"])

    def targets(self, batch: Batch) -> Batch:
        """The same images through f~ and g~."""
        if isinstance(batch.encoder, nn.Module) and isinstance(batch.head, nn.Module):
            self.trained = batch.encoder, batch.head
        return Batch(batch.rep, batch.names, self.average_encoder, self.average_head)

    def after_step(self, context: TaskContext) -> None:
        """theta~ <- tau theta~ + (1 - tau) theta with tau(k - 1) after the k-th step of the task."""
        super().after_step(context)
        done = (context.step - 1) / context.steps
        rate = self.final_rate - (self.final_rate - self.rate) * (1 + cos(pi * done)) / 2
        encoder, head = self.trained or (context.networks.encoder, context.networks.heads["g"])
        self.average_encoder.follow(encoder, rate)
        self.average_head.follow(head, rate)
