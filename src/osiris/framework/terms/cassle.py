"""CaSSLe: the model predicts the embeddings of the previous checkpoint, in a form for each objective (Sec. 3.3)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from osiris.errors import UserError
from osiris.framework import losses
from osiris.framework.objectives import (
    Barlow,
    Byol,
    Dcl,
    Mocov2,
    Mocov3,
    Ntxent,
    Objective,
    Simsiam,
    Swav,
    Vicreg,
    find_form,
    form_of,
)
from osiris.framework.objectives.clustering import prototypes
from osiris.framework.options import Tau
from osiris.framework.representations import Networks, Representations, Unit, unit_vectors
from osiris.framework.terms.base import StepContext, TaskContext, Term, X
from osiris.framework.terms.contrast import DECOUPLED
from osiris.models.heads import predictor
from osiris.randomness import scoped

if TYPE_CHECKING:
    from osiris.framework.methods import Method


class Predict(Term):
    r"""CaSSLe: L^SSL(X, X; p o g o f, g* o f*): the model predicts the embeddings of the previous checkpoint.

    One direction, as the paper writes it (with h for p). The predictor is fresh at task 2 and trained from then on.
    Predictions and targets are compared as the objective of the method does (`FORMS`).
    """

    kind: ClassVar[str] = "predict"
    needs: ClassVar[frozenset[str]] = frozenset({"f*", "g*"})
    symbols: ClassVar[Mapping[str, str]] = {"predictor": "p", "distiller": "D"}
    positive: Literal["same", "other"] = "same"
    symmetric: bool = False
    """Whether targets are also contrasted against predictions; the two losses are averaged."""
    keep_other: bool = False
    """Keep the other view of the image in the denominator, as the original code does."""
    batch_norm: bool | None = None
    """BatchNorm in the predictor; default: unless the objective is contrastive."""
    tau: Tau | None = None
    """Temperature, if it is not that of the objective or of the run (the original code: 0.2)."""
    paired: bool = False
    """CroMo: NT-Xent with prediction and target as two views, for each view of the image, instead of distillation."""

    @property
    def formula(self) -> str:
        if self.paired:
            return "½ Σᵥ NTX(p g f(X_v), g* f*(X_v))"
        forth, back = "DISTIL(p g f(X) → g* f*(X))", "DISTIL(g* f*(X) → p g f(X))"
        return f"½ [{forth} + {back}]" if self.symmetric else forth

    def attach(self, networks: Networks, seed: int) -> None:
        form = form_of(FORMS, networks.objective)
        batch_norm = not form.contrastive if self.batch_norm is None else self.batch_norm
        self.predictor = predictor_of_past(networks, seed, batch_norm)
        self.distiller = None if form.distiller is None else form.distiller(networks, seed)

    def end_task(self, context: TaskContext) -> None:
        if self.distiller is not None:
            self.distiller.update(context.networks.objective)

    def check(self, method: Method) -> None:
        if self.paired and self.tau is not None:
            raise UserError("cromo has one temperature for all its losses; use --tau instead of predict(tau=...).")
        if find_form(FORMS, method.objective) is None:
            raise UserError(f"predict: cassle has no form for the objective {method.objective.kind}; use another one.")
        changed = [name for name in ("symmetric", "keep_other", "tau") if self.options[name]]
        changed += ["positive"] if self.positive == "other" else []
        if changed and self.paired:
            raise UserError(f"predict({changed[0]}=...) changes nothing with paired=true, as in cromo; leave it out.")
        if changed and not is_contrastive(method.objective):
            raise UserError(
                f"predict({changed[0]}=...) belongs to contrastive distillation, and the objective is "
                f"{method.objective.kind}; leave it out."
            )

    def loss(self, rep: Representations, context: StepContext) -> Tensor:
        objective = rep.networks.objective
        form = form_of(FORMS, objective)
        if form.contrastive:
            return self.contrast(rep, objective, self.tau or objective.temperature(context.tau))
        prediction, target = rep.raw(X, ("g", self.predictor)), rep.raw(X, "g*", "f*")
        if self.distiller is not None:
            return self.distiller(prediction, target)
        assert form.distance is not None
        return form.distance(objective, prediction, target)

    def contrast(self, rep: Representations, objective: Objective, tau: float) -> Tensor:
        prediction, target = rep(X, ("g", self.predictor)), rep(X, "g*", "f*")
        if self.paired:
            decoupled = find_form(DECOUPLED, objective) or False
            values = [losses.contrast(torch.stack([prediction[v], target[v]]), tau, decoupled) for v in range(2)]
            return (values[0] + values[1]) / 2
        value = losses.distil(prediction, target, tau, self.positive, self.keep_other)
        if self.symmetric:
            value = (value + losses.distil(target, prediction, tau, self.positive, self.keep_other)) / 2
        return value


def predictor_of_past(networks: Networks, seed: int, batch_norm: bool) -> nn.Module:
    """A network that predicts the embeddings of the previous checkpoint from those of g."""
    with scoped(seed, "init.predictor"):
        network = predictor(networks.width("g"), networks.projector_config.projector_hidden, batch_norm)
    form = find_form(FORMS, networks.objective)
    return nn.Sequential(Unit(), network) if form is not None and form.unit_inputs else network


def cosine(objective: Objective, prediction: Tensor, target: Tensor) -> Tensor:
    """2 - 2 cos."""
    return losses.match(unit_vectors(prediction), unit_vectors(target))


def barlow(objective: Barlow, prediction: Tensor, target: Tensor) -> Tensor:
    """The loss of Barlow Twins, mean over the views."""
    views = [losses.barlow(p, z, objective.off_diagonal, objective.scale) for p, z in zip(prediction, target)]
    return (views[0] + views[1]) / 2


def vicreg(objective: Vicreg, prediction: Tensor, target: Tensor) -> Tensor:
    """The mean squared distance, weighted as in the objective."""
    return objective.invariance * F.mse_loss(prediction, target)


class SwavDistiller(nn.Module):
    """Predictions have the assignments of the past embeddings to the past prototypes as targets."""

    def __init__(self, networks: Networks, seed: int) -> None:
        super().__init__()
        objective = networks.objective
        assert isinstance(objective, Swav)
        with scoped(seed, "init.distiller"):
            self.prototypes, self.tau = prototypes(networks.width("g"), objective.clusters), objective.tau
        vectors = self.prototypes.weight
        assert isinstance(vectors, Tensor)
        self.register_buffer("past", vectors.detach().clone())

    def forward(self, prediction: Tensor, target: Tensor) -> Tensor:
        targets = (unit_vectors(target) @ self.get_buffer("past").T / self.tau).softmax(-1)
        return losses.assignment(self.prototypes(unit_vectors(prediction)), targets, self.tau)

    @torch.no_grad()
    def update(self, objective: Objective) -> None:
        """Take the prototypes of the objective at the end of a task."""
        assert isinstance(objective, Swav)
        self.get_buffer("past").copy_(objective.prototype_vectors())


@dataclass(frozen=True)
class Form:
    """CaSSLe for one objective: contrastive (Eq. 2), unless it has a distance or a distiller."""

    distance: Callable[[Any, Tensor, Tensor], Tensor] | None = None
    """The distance of raw predictions from raw embeddings of the past, both [2, N, d]."""
    distiller: type[SwavDistiller] | None = None
    """A module with a state of its own that computes the distance."""
    unit_inputs: bool = False
    """Whether the predictor gets normalised embeddings."""

    @property
    def contrastive(self) -> bool:
        return self.distance is None and self.distiller is None


FORMS: dict[type[Objective], Form] = {
    Ntxent: Form(),
    Dcl: Form(),
    Mocov2: Form(unit_inputs=True),
    Mocov3: Form(cosine),
    Byol: Form(cosine),
    Simsiam: Form(cosine),
    Barlow: Form(barlow),
    Vicreg: Form(vicreg),
    Swav: Form(distiller=SwavDistiller),
}


def is_contrastive(objective: Objective) -> bool:
    """Whether past and present are compared contrastively in the space of g."""
    form = find_form(FORMS, objective)
    return form is not None and form.contrastive
