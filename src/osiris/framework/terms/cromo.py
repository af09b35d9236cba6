"""CroMo-Mixup: L_cross compares mixtures of X and Y with both. Its L_past is `predict(paired=true)` of cassle.py."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import torch
from msgspec import Meta
from torch import Tensor

from osiris.errors import UserError
from osiris.framework import losses
from osiris.framework.objectives import Barlow, Byol, Dcl, Ntxent, Objective, find_form, form_of
from osiris.framework.objectives.base import Batch
from osiris.framework.options import Share
from osiris.framework.representations import Representations, unit_vectors
from osiris.framework.terms.base import StepContext, X, Y
from osiris.framework.terms.contrast import Mixed, refuse_weights
from osiris.processes import gather, share

if TYPE_CHECKING:
    from osiris.framework.methods import Method


def ntxent(objective: Ntxent, a: Tensor, b: Tensor, tau: float) -> Tensor:
    return losses.contrast(unit_vectors(torch.stack([a, b])), tau)


def dcl(objective: Dcl, a: Tensor, b: Tensor, tau: float) -> Tensor:
    return losses.contrast(unit_vectors(torch.stack([a, b])), tau, decoupled=True)


def barlow(objective: Barlow, a: Tensor, b: Tensor, tau: float) -> Tensor:
    return losses.barlow(a, b, objective.off_diagonal, objective.scale)


def byol(objective: Byol, a: Tensor, b: Tensor, tau: float) -> Tensor:
    return losses.match(unit_vectors(a), unit_vectors(b))


def embeddings(objective: Objective, batch: Batch) -> Tensor:
    return batch.raw()


@dataclass(frozen=True)
class Form:
    """S for one objective."""

    pair: Callable[[Any, Tensor, Tensor, float], Tensor]
    """The loss of raw embeddings [N, d] of which row i of the first belongs to row i of the second."""
    anchors: Callable[[Any, Batch], Tensor] = embeddings
    """Raw embeddings of mixtures, [2, N, d]."""
    positives: Callable[[Any, Batch], Tensor] = embeddings
    """Raw embeddings of X, [2, N, d]."""


FORMS: dict[type[Objective], Form] = {
    Ntxent: Form(ntxent),
    Dcl: Form(dcl),
    Barlow: Form(barlow),
    Byol: Form(
        byol,
        anchors=lambda objective, batch: batch.raw(objective.predictor),
        positives=lambda objective, batch: objective.targets(batch).raw(),
    ),
}
"""The original code defines no form for the other objectives."""


class CrossMix(Mixed):
    r"""CroMo-Mixup: a mixture m = nu x + (1 - nu) y resembles x by nu, and the past embedding of y by 1 - nu.

    1/2 sum_v [nu S(z(m_v), z(x_v)) + (1 - nu) S(z(m_v), z*(y_v))] with the first |Y| images of X; S is the loss of the
    objective on pairs (`FORMS`).
    """

    kind: ClassVar[str] = "cross-mix"
    formula: ClassVar[str] = "½ Σᵥ [ν NTX(g f(M_v), g f(X_v)) + (1 − ν) NTX(g f(M_v), g* f*(Y_v))], M = ν X + (1 − ν) Y"
    needs: ClassVar[frozenset[str]] = frozenset({"f*", "g*"})
    alpha: Annotated[float, Meta(gt=0, le=1e6)] = 1.0
    fixed_nu: Share | None = None
    """nu in every step, instead of a draw (the original code: 0.7 with Barlow Twins)."""

    @property
    def inputs(self) -> tuple[str, ...]:
        return (X, self.mixture)

    def check_stream(self, method: Method) -> None:
        raise UserError(
            "cromo keeps as many images of each task, chosen at its end, and a stream has no end of a task; leave out "
            "--stream to learn task after task."
        )

    def check(self, method: Method) -> None:
        if self.space != "g":
            raise UserError("cross-mix acts in the space of g, which f* and g* share; write cross-mix:g.")
        refuse_weights(self, method)
        if find_form(FORMS, method.objective) is None:
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
        form = form_of(FORMS, objective)
        mixed = form.anchors(objective, Batch(rep, (self.mixture,)))
        x = form.positives(objective, Batch(rep, (X,)))[:, :count]
        past = rep.raw(Y, "g*", "f*")
        parts = [
            nu * form.pair(objective, mixed[view], x[view], context.tau)
            + (1 - nu) * form.pair(objective, mixed[view], past[view], context.tau)
            for view in range(2)
        ]
        return (parts[0] + parts[1]) / 2
