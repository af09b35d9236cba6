"""Objectives without negatives: two views agree (BYOL, SimSiam), and dimensions are decorrelated (Barlow, VICReg)."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor, nn

from osiris.framework import losses
from osiris.framework.objectives.base import Batch, Objective, WithAverage
from osiris.framework.options import Weight
from osiris.framework.representations import Networks
from osiris.models.heads import mlp
from osiris.randomness import scoped


class Byol(WithAverage):
    """BYOL: the prediction from one view matches the moving average's embedding of the other view."""

    kind: ClassVar[str] = "byol"
    symbol: ClassVar[str] = "BYOL"

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


class Simsiam(Objective):
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
        return losses.negative_cosine(prediction, target.flip(0))


class Barlow(Objective):
    """Barlow Twins: the cross-correlation of the two views becomes the identity."""

    kind: ClassVar[str] = "barlow"
    symbol: ClassVar[str] = "BARLOW"
    off_diagonal: Weight = 5e-3
    """Weight of the correlations between different dimensions."""
    scale: Weight = 0.1
    """Factor of the whole loss."""

    def projector(self, inputs: int, hidden: int, outputs: int) -> nn.Module:
        return mlp(inputs, hidden, hidden, hidden)

    def loss(self, batch: Batch, tau: float) -> Tensor:
        first, second = batch.raw()
        return losses.barlow(first, second, self.off_diagonal, self.scale)


class Vicreg(Objective):
    """VICReg: two views agree, every dimension keeps its variance, and dimensions are not correlated."""

    kind: ClassVar[str] = "vicreg"
    symbol: ClassVar[str] = "VICREG"
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
