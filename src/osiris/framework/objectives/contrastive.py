"""Objectives with negatives: NT-Xent, the paper's, its decoupled variant, and momentum contrast with queues or keys."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from osiris.framework import losses
from osiris.framework.objectives.base import Batch, Objective, WithAverage, WithQueue
from osiris.framework.options import Count, Tau
from osiris.framework.representations import Networks, unit_vectors
from osiris.models.heads import mlp
from osiris.randomness import scoped


class Ntxent(Objective):
    """NT-Xent (Eq. 1): each view finds the other view of its image among all views of the batch."""

    kind: ClassVar[str] = "ntxent"
    symbol: ClassVar[str] = "NTX"

    def loss(self, batch: Batch, tau: float) -> Tensor:
        return losses.contrast(batch.normalised(), tau)


class Dcl(Ntxent):
    """Decoupled contrastive learning: NT-Xent whose denominator does not contain the positive."""

    kind: ClassVar[str] = "dcl"
    symbol: ClassVar[str] = "DCL"
    weighted: bool = False
    """DCLW: positives of dissimilar views weigh more."""

    def loss(self, batch: Batch, tau: float) -> Tensor:
        z = batch.normalised()
        return losses.weighted_decoupled(z, tau) if self.weighted else losses.contrast(z, tau, decoupled=True)


class Mocov2(WithAverage, WithQueue):
    """MoCo v2+: each view finds the moving average's embedding of the other view among a queue of past ones.

    One queue for each view. They start as random unit vectors, are written after each step and carry over to the next
    task.
    """

    kind: ClassVar[str] = "mocov2+"
    symbol: ClassVar[str] = "MOCO2"
    final_rate: ClassVar[float] = 0.999
    queue_size: Count = 32768
    tau: Tau = 0.2

    def __post_init__(self) -> None:
        super().__post_init__()
        self.more_negatives: Tensor | None = None
        """Embeddings that a term adds to the queues in this step, [2, K, d]."""

    def projector(self, inputs: int, hidden: int, outputs: int) -> nn.Module:
        return mlp(inputs, hidden, outputs, norm=False)

    def attach(self, networks: Networks, seed: int) -> None:
        super().attach(networks, seed)
        with scoped(seed, "init.queue"):
            self.attach_queue(unit_vectors(torch.randn(2, self.queue_size, networks.width("g"))))

    def start(self) -> None:
        super().start()
        self.more_negatives = None

    def negatives(self) -> Tensor:
        queue = self.get_buffer("queue")
        return queue if self.more_negatives is None else torch.cat([queue, self.more_negatives], dim=1)

    def loss(self, batch: Batch, tau: float) -> Tensor:
        keys = self.targets(batch).normalised()
        self.waiting.append(keys)
        return losses.queued(batch.normalised(), keys.flip(0), self.negatives().flip(0), self.tau)


class Mocov3(WithAverage):
    """MoCo v3: the prediction from one view finds the moving average's embedding of the other view in the batch."""

    kind: ClassVar[str] = "mocov3"
    symbol: ClassVar[str] = "MOCO3"
    tau: Tau = 0.2

    def projector(self, inputs: int, hidden: int, outputs: int) -> nn.Module:
        return mlp(inputs, 2 * hidden, outputs, bias=False, last_norm=True)

    def attach(self, networks: Networks, seed: int) -> None:
        super().attach(networks, seed)
        width, hidden = networks.width("g"), 2 * networks.projector_config.projector_hidden
        with scoped(seed, "init.s"):
            self.predictor = mlp(width, hidden, width, bias=False)

    def loss(self, batch: Batch, tau: float) -> Tensor:
        prediction, keys = batch.normalised(self.predictor), self.targets(batch).normalised()
        logits = prediction @ keys.flip(0).transpose(1, 2) / self.tau
        positive = logits.diagonal(dim1=1, dim2=2)
        return 2 * self.tau * (logits.logsumexp(2) - positive).mean(1).sum()  # the sum of both directions
