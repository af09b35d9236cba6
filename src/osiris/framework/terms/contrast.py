"""Terms that contrast images of X and Y: FT, ER, ER+, ER++, LUMP, and L_cross and L_past-R of OSIRIS (Sec. 3.2)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import numpy as np
import torch
from msgspec import Meta
from torch import Tensor

from osiris.errors import UserError
from osiris.framework import losses
from osiris.framework.objectives import Dcl, Ntxent, Objective, find_form
from osiris.framework.representations import Representations
from osiris.framework.terms.base import Space, StepContext, Term, X, Y
from osiris.randomness import derive_seed

if TYPE_CHECKING:
    from osiris.framework.methods import Method


class Contrast(Term):
    r"""L_current = L^SSL(X; f, g) and L_past-R = L^SSL(Y; f, h): Eq. 1 within one batch, in one space.

    ft is L_current alone, er adds L^SSL(Y; f, g), osiris-r has L_past-R in h. batch="X+Y" is the loss on the union,
    L^ER++ = L^SSL(X u Y; f, g).
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


DECOUPLED: dict[type[Objective], bool] = {Ntxent: False, Dcl: True}
"""The objectives for which images of X and Y can be negatives of each other in the space of g, and whether the positive
is left out of the denominator."""


def refuse_weights(term: Term, method: Method) -> None:
    """Refuse dcl(weighted=true) for a term that computes the loss in the space of g itself."""
    if method.objective.options.get("weighted"):
        raise UserError(
            f"{term.kind} has a loss of its own, without the weights of dcl(weighted=true); leave them out."
        )


class Negatives(Term):
    r"""L^ER+ = L^SSL(X, X u Y; g o f, g o f): the memory adds negatives to the loss of the current task."""

    kind: ClassVar[str] = "negatives"
    formula: ClassVar[str] = "NTX_{space}(X; negatives X ∪ Y)"
    inputs: ClassVar[tuple[str, ...]] = (X, Y)
    space: Space = "g"

    def loss(self, rep: Representations, context: StepContext) -> Tensor:
        x, y = rep(X, head=self.space), rep(Y, head=self.space)
        rep.networks.objective.watch(x)
        return losses.contrast_with_negatives(x, y, context.tau, self.decoupled(rep))

    def decoupled(self, rep: Representations) -> bool:
        """Whether the positive is left out of the denominator."""
        return self.space == "g" and bool(find_form(DECOUPLED, rep.networks.objective))

    def check(self, method: Method) -> None:
        objective = method.objective
        if self.space != "g":
            return
        refuse_weights(self, method)
        if find_form(DECOUPLED, objective) is None:
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
        decoupled = self.decoupled(rep)
        return (losses.cross(x, y, context.tau, decoupled) + losses.cross(y, x, context.tau, decoupled)) / 2


class Mixed(Term):
    r"""L^LUMP = L^SSL(nu X + (1 - nu) Y; f, g): mixing creates an input, it is not a loss.

    One nu ~ Beta(alpha, alpha) per batch, the same for both views, after augmentation and normalisation.
    """

    kind: ClassVar[str] = "mixed"
    formula: ClassVar[str] = "NTX_{space}(ν X + (1 − ν) Y), ν ~ Beta({alpha:g}, {alpha:g})"
    alpha: Annotated[float, Meta(gt=0, le=1e6)] = 0.4
    space: Space = "g"

    @property
    def mixture(self) -> str:
        """The name of its input, which contains alpha: two mixtures in one method are two inputs."""
        return f"mix({self.alpha:g})"

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.mixture,)

    def check(self, method: Method) -> None:
        if method.replay != 1:
            raise UserError("mixing pairs every image of X with one of Y: it needs --replay-fraction 1.")
        if method.replay_count is not None:
            raise UserError("mixing pairs every image of X with one of Y: leave out --replay.")
        if method.replay_limit is not None:
            raise UserError(
                f"mixing pairs every image of X with one of Y, and this method replays at most {method.replay_limit}; "
                "leave out `mixed`, or start from --method lump."
            )

    def nu(self, context: StepContext) -> float:
        """The nu of a step, drawn by NumPy with a seed of its own: torch's Beta would use the global generator."""
        seed = derive_seed(context.seed, "mix", context.task, context.step)
        return float(np.random.default_rng(seed).beta(self.alpha, self.alpha))

    def make(self, views: Mapping[str, Tensor], context: StepContext) -> dict[str, Tensor]:
        nu = self.nu(context)
        return {self.mixture: nu * views[X] + (1 - nu) * views[Y]}

    def loss(self, rep: Representations, context: StepContext) -> Tensor:
        return _ssl(rep, self.inputs, self.space, context.tau)


def _ssl(rep: Representations, names: tuple[str, ...], space: str, tau: float) -> Tensor:
    """L^SSL on the union of some inputs: the objective of the method in g, NT-Xent in h."""
    if space == "g":
        return rep.networks.objective(rep, names, tau)
    return losses.contrast(torch.cat([rep(name, head=space) for name in names], dim=1), tau)
