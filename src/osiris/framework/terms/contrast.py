"""Terms that contrast images of the present and of the memory: L_current, L_cross, L_past-R (Sec. 3.2), ER+, LUMP."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import numpy as np
import torch
from msgspec import Meta
from torch import Tensor

from osiris.errors import UserError
from osiris.framework import losses
from osiris.framework.objectives.base import Batch
from osiris.framework.options import Share
from osiris.framework.representations import Representations
from osiris.framework.terms.base import Space, StepContext, Term, X, Y
from osiris.processes import gather, share
from osiris.randomness import derive_seed

if TYPE_CHECKING:
    from osiris.framework.methods import Method


class Contrast(Term):
    r"""L_current = L^SSL(X; f, g) and L_past-R = L^SSL(Y; f, h): Eq. 1 within one batch, in one space.

    batch="X+Y" is the loss on the union, L^ER++ = L^SSL(X u Y; f, g).
    """

    kind: ClassVar[str] = "contrast"
    batch: Literal["X", "Y", "X+Y"] = "X"
    space: Space = "g"

    @property
    def formula(self) -> str:
        return f"NTX_{self.space}({self.batch.replace('+', ' ∪ ')})"

    @property
    def inputs(self) -> tuple[str, ...]:
        return tuple(self.batch.split("+"))

    def loss(self, rep: Representations, context: StepContext) -> Tensor:
        return _ssl(rep, self.inputs, self.space, context.tau)


class Negatives(Term):
    r"""L^ER+ = L^SSL(X, X u Y; g o f, g o f): the memory adds negatives to the loss of the current task."""

    kind: ClassVar[str] = "negatives"
    formula: ClassVar[str] = "NTX_{space}(X; negatives X ∪ Y)"
    inputs: ClassVar[tuple[str, ...]] = (X, Y)
    replaces_loss: ClassVar[bool] = True
    space: Space = "g"

    def loss(self, rep: Representations, context: StepContext) -> Tensor:
        x, y, objective = rep(X, head=self.space), rep(Y, head=self.space), rep.networks.objective
        objective.watch(x)
        return losses.contrast_with_negatives(x, y, context.tau, self.space == "g" and objective.decoupled)

    def check(self, method: Method) -> None:
        objective = method.objective
        if self.space == "g" and not objective.has_negatives:
            raise UserError(
                f"{self.kind}:g compares images of X with images of Y as negatives, and the objective {objective.kind} "
                f"has no negatives. Use {self.kind}:h, which works in NT-Xent, or --objective ntxent or dcl."
            )


class Cross(Negatives):
    r"""L_cross = 1/2 [L^SSL(X, Y; h o f, h o f) + L^SSL(Y, X; h o f, h o f)] (Sec. 3.2.3, consolidation)."""

    kind: ClassVar[str] = "cross"
    formula: ClassVar[str] = "½ [CROSS_{space}(X → Y) + CROSS_{space}(Y → X)]"
    space: Space = "h"

    def loss(self, rep: Representations, context: StepContext) -> Tensor:
        x, y = rep(X, head=self.space), rep(Y, head=self.space)
        decoupled = self.space == "g" and rep.networks.objective.decoupled
        return (losses.cross(x, y, context.tau, decoupled) + losses.cross(y, x, context.tau, decoupled)) / 2


class Mixed(Term):
    r"""L^LUMP = L^SSL(nu X + (1 - nu) Y; f, g): mixing creates an input, it is not a loss.

    One nu ~ Beta(alpha, alpha) per batch, the same for both views, after augmentation and normalisation.
    """

    kind: ClassVar[str] = "mixed"
    formula: ClassVar[str] = "NTX_{space}(ν X + (1 − ν) Y), ν ~ Beta({alpha:g}, {alpha:g})"
    reads: ClassVar[tuple[str, ...]] = (X, Y)
    alpha: Annotated[float, Meta(gt=0, le=1e6)] = 0.4
    space: Space = "g"

    @property
    def mixture(self) -> str:
        """Named by alpha, so that two mixtures in one method are two inputs."""
        return f"mix({self.alpha:g})"

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.mixture,)

    def check(self, method: Method) -> None:
        if method.replay != 1:
            raise UserError("mixing pairs every image of X with one of Y: it needs --replay-fraction 1.")

    def nu(self, context: StepContext) -> float:
        """Keyed by the step; torch's Beta would use the global generator."""
        seed = derive_seed(context.seed, "mix", context.task, context.step)
        return float(np.random.default_rng(seed).beta(self.alpha, self.alpha))

    def make(self, views: Mapping[str, Tensor], context: StepContext) -> dict[str, Tensor]:
        nu = self.nu(context)
        return {self.mixture: nu * views[X] + (1 - nu) * views[Y]}

    def loss(self, rep: Representations, context: StepContext) -> Tensor:
        return _ssl(rep, self.inputs, self.space, context.tau)


class CrossMix(Mixed):
    r"""CroMo-Mixup: a mixture m = nu x + (1 - nu) y resembles x by nu, and the past embedding of y by 1 - nu.

    1/2 sum_v [nu S(z(m_v), z(x_v)) + (1 - nu) S(z(m_v), z*(y_v))] with the first |Y| images of X; S is the objective
    on pairs.
    """

    kind: ClassVar[str] = "cross-mix"
    formula: ClassVar[str] = "½ Σᵥ [ν NTX(g f(M_v), g f(X_v)) + (1 − ν) NTX(g f(M_v), g* f*(Y_v))], M = ν X + (1 − ν) Y"
    replaces_loss: ClassVar[bool] = True
    needs: ClassVar[frozenset[str]] = frozenset({"past.encoder", "past.g"})
    made_like: ClassVar[str] = Y
    alpha: Annotated[float, Meta(gt=0, le=1e6)] = 1.0
    fixed_nu: Share | None = None
    """nu in every step, instead of a draw (the original code: 0.7 with Barlow Twins)."""

    @property
    def inputs(self) -> tuple[str, ...]:
        return (X, self.mixture)

    def check(self, method: Method) -> None:
        if self.space != "g":
            raise UserError("cross-mix acts in the space of g, which f* and g* share; write cross-mix:g.")
        if not method.objective.mixes:
            raise UserError(
                f"cross-mix: cromo has no form for the objective {method.objective.kind}; use ntxent, dcl, "
                "barlow or byol."
            )

    def nu(self, context: StepContext) -> float:
        return super().nu(context) if self.fixed_nu is None else self.fixed_nu

    def make(self, views: Mapping[str, Tensor], context: StepContext) -> dict[str, Tensor]:
        assert context.slots is not None
        nu, count = self.nu(context), len(context.slots)
        x = gather(views[X], context.images, dim=1)[:, share(count)]  # the rows of our part of Y
        return {self.mixture: nu * x + (1 - nu) * views[Y]}

    def loss(self, rep: Representations, context: StepContext) -> Tensor:
        nu, count, objective = self.nu(context), rep.counts[Y], rep.networks.objective
        mixed, x = objective.anchors(Batch(rep, (self.mixture,))), objective.positives(Batch(rep, (X,)))[:, :count]
        past = rep.raw(Y, "past.g", "past")
        parts = [
            nu * objective.pair(mixed[view], x[view], context.tau)
            + (1 - nu) * objective.pair(mixed[view], past[view], context.tau)
            for view in range(2)
        ]
        return (parts[0] + parts[1]) / 2


def _ssl(rep: Representations, names: tuple[str, ...], space: str, tau: float) -> Tensor:
    """L^SSL on the union of some inputs: the objective of the method in g, NT-Xent in h."""
    if space == "g":
        return rep.networks.objective(rep, names, tau)
    return losses.contrast(torch.cat([rep(name, head=space) for name in names], dim=1), tau)
