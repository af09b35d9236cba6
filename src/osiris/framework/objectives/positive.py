"""Objectives without negatives: two views agree (BYOL, SimSiam), and dimensions are decorrelated (Barlow, VICReg)."""

from __future__ import annotations

from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from osiris.framework import losses
from osiris.framework.objectives.base import Batch, Objective, WithAverage
from osiris.framework.options import Weight
from osiris.framework.representations import Networks, normalise
from osiris.models.heads import mlp
from osiris.randomness import scoped


class Predictive(Objective):
    """Past and present are compared by 2 - 2 cos."""

    repulsion: ClassVar[float | None] = 0.5

    def agree(self, prediction: Tensor, target: Tensor) -> Tensor:
        return losses.match(normalise(prediction), normalise(target))


class Byol(WithAverage, Predictive):
    """BYOL: the prediction from one view matches the moving average's embedding of the other view."""

    kind: ClassVar[str] = "byol"
    symbol: ClassVar[str] = "BYOL"
    mixes: ClassVar[bool] = True

    def projector(self, inputs: int, hidden: int, outputs: int) -> nn.Module:
        return mlp(inputs, 2 * hidden, outputs)

    def attach(self, networks: Networks, seed: int) -> None:
        super().attach(networks, seed)
        width, hidden = networks.width("g"), 2 * networks.projector_config.projector_hidden
        with scoped(seed, "init.s"):
            self.predictor = mlp(width, hidden, width)

    def loss(self, batch: Batch, tau: float) -> Tensor:
        prediction, target = batch.normalised(self.predictor), self.targets(batch).normalised()
        return 2 * losses.match(prediction, target.flip(0))  # the sum of both directions

    def pair(self, a: Tensor, b: Tensor, tau: float) -> Tensor:
        return losses.match(normalise(a), normalise(b))

    def anchors(self, batch: Batch) -> Tensor:
        return batch.raw(self.predictor)

    def positives(self, batch: Batch) -> Tensor:
        return self.targets(batch).raw()


class Simsiam(Predictive):
    """SimSiam: the prediction from one view matches the other view's embedding, which gets no gradient."""

    kind: ClassVar[str] = "simsiam"
    symbol: ClassVar[str] = "SIMSIAM"
    constant_rate: ClassVar[tuple[str, ...]] = ("predictor",)

    def projector(self, inputs: int, hidden: int, outputs: int) -> nn.Module:
        return mlp(inputs, hidden, hidden, hidden, bias=False, last_norm=True)

    def attach(self, networks: Networks, seed: int) -> None:
        width = networks.width("g")
        with scoped(seed, "init.s"):
            self.predictor = mlp(width, width // 4, width, first_bias=False)

    def loss(self, batch: Batch, tau: float) -> Tensor:
        """-cos, mean over both directions."""
        prediction, target = batch.normalised(self.predictor), batch.normalised().detach()
        return losses.match(prediction, target.flip(0)) / 2 - 1


class Barlow(Objective):
    """Barlow Twins: the cross-correlation of the two views becomes the identity."""

    kind: ClassVar[str] = "barlow"
    symbol: ClassVar[str] = "BARLOW"
    repulsion: ClassVar[float | None] = 1.0
    mixes: ClassVar[bool] = True
    off_diagonal: Weight = 5e-3
    """Weight of the correlations between different dimensions."""
    scale: Weight = 0.1
    """Factor of the whole loss."""

    def projector(self, inputs: int, hidden: int, outputs: int) -> nn.Module:
        return mlp(inputs, hidden, hidden, hidden)

    def loss(self, batch: Batch, tau: float) -> Tensor:
        first, second = batch.raw()
        return self.pair(first, second, tau)

    def pair(self, a: Tensor, b: Tensor, tau: float) -> Tensor:
        return losses.barlow(a, b, self.off_diagonal, self.scale)

    def agree(self, prediction: Tensor, target: Tensor) -> Tensor:
        views = [losses.barlow(p, z, self.off_diagonal, self.scale) for p, z in zip(prediction, target)]
        return (views[0] + views[1]) / 2

    def repel(self, prediction: Tensor, other: Tensor) -> Tensor:
        """-cos."""
        return losses.match(normalise(prediction), normalise(other)) / 2 - 1


class Vicreg(Objective):
    """VICReg: two views agree, every dimension keeps its variance, and dimensions are not correlated."""

    kind: ClassVar[str] = "vicreg"
    symbol: ClassVar[str] = "VICREG"
    repulsion: ClassVar[float | None] = 23.0
    invariance: Weight = 25.0
    variance: Weight = 25.0
    covariance: Weight = 1.0
    halved: bool = False
    """Mean instead of sum of the variance part over the two views, as in the original code."""

    def projector(self, inputs: int, hidden: int, outputs: int) -> nn.Module:
        return mlp(inputs, hidden, hidden, hidden)

    def loss(self, batch: Batch, tau: float) -> Tensor:
        variance = self.variance / 2 if self.halved else self.variance
        return losses.vicreg(batch.raw(), self.invariance, variance, self.covariance)

    def agree(self, prediction: Tensor, target: Tensor) -> Tensor:
        return self.invariance * F.mse_loss(prediction, target)

    def repel(self, prediction: Tensor, other: Tensor) -> Tensor:
        return F.mse_loss(prediction, other)
