"""PNR: the embeddings of the previous checkpoint are further negatives of L_current and of L_past.

Both losses have the form of the objective (`FORMS`): negatives in the batch, negatives in queues, or a distance that
grows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

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
    Vicreg,
    find_form,
    form_of,
)
from osiris.framework.objectives.base import enqueue
from osiris.framework.options import Tau, Weight
from osiris.framework.representations import Networks, Representations, unit_vectors
from osiris.framework.terms.base import StepContext, TaskContext, Term, X
from osiris.framework.terms.cassle import barlow, cosine, predictor_of_past, vicreg
from osiris.framework.terms.contrast import refuse_weights
from osiris.randomness import scoped

if TYPE_CHECKING:
    from osiris.framework.methods import Method

Distance = Callable[[Any, Tensor, Tensor], Tensor]
"""(objective, raw predictions, raw embeddings of the past), both [2, N, d]."""


class _PseudoNegatives(Term):
    """The common part of both terms."""

    needs: ClassVar[frozenset[str]] = frozenset({"f*", "g*"})
    tau: Tau | None = None
    """Temperature, if it is not that of the run (the original code: 0.2)."""

    def check(self, method: Method) -> None:
        form = find_form(FORMS, method.objective)
        if form is None:
            raise UserError(
                f"{self.kind}: pnr has no form for the objective {method.objective.kind}; use another --objective."
            )
        if form.needs_queue and not isinstance(method.current[0], PseudoContrast):
            raise UserError(
                f"{self.kind} with {method.objective.kind} needs the queue of pseudo-contrast; use --current "
                "pseudo-contrast."
            )
        for option in form.unused:
            if self.options.get(option):
                raise UserError(
                    f"{self.kind}({option}=...) changes nothing with the objective {method.objective.kind}; "
                    "leave it out."
                )


class PseudoContrast(_PseudoNegatives):
    r"""L_current of PNR: NT-Xent with the past embeddings g*(f*(X)) of all other views as further negatives.

    With mocov2+, a queue of past embeddings of each view adds negatives. Objectives without negatives stay as they are.
    """

    kind: ClassVar[str] = "pseudo-contrast"
    formula: ClassVar[str] = "NTX_g(X; negatives X ∪ g* f*(X))"

    def check(self, method: Method) -> None:
        refuse_weights(self, method)
        super().check(method)

    def attach(self, networks: Networks, seed: int) -> None:
        self.waiting: Tensor | None = None
        """Embeddings of this step, which enter the queue after it."""
        if form_of(FORMS, networks.objective).needs_queue:
            queue = networks.objective.get_buffer("queue")
            with scoped(seed, "init.past_queue"):
                self.register_buffer("queue", unit_vectors(torch.randn(queue.shape)))
            self.register_buffer("queue_position", torch.zeros((), dtype=torch.int64))

    def after_step(self, context: TaskContext) -> None:
        if context.task > 0 and self.waiting is not None:  # task 1 is ft: only an estimate of memory has left any
            enqueue(self.get_buffer("queue"), self.get_buffer("queue_position"), self.waiting)
            self.waiting = None

    def loss(self, rep: Representations, context: StepContext) -> Tensor:
        objective = rep.networks.objective
        return form_of(FORMS, objective).current(self, objective, rep, self.tau or context.tau)


class PseudoDistil(_PseudoNegatives):
    r"""L_past of PNR: predictions p(g(f(X))) find the past embedding of their view; other views are negatives.

    With mocov2+, the negatives are the queues of keys and of past embeddings of the other view, as in the current loss.
    Objectives without negatives: d(p(z_v), z*_v) - b d'(p(z_v), z*_v'), v' the other view, d the distance of cassle.
    """

    kind: ClassVar[str] = "pseudo-distil"
    formula: ClassVar[str] = "DISTIL(p g f(X) → g* f*(X); negatives X ∪ g* f*(X))"
    symbols: ClassVar[Mapping[str, str]] = {"predictor": "p"}
    positive_in_denominator: bool = False
    """Add the positive to the denominator, which the original code does not."""
    repulsion: Weight | None = None
    """b; default: that of the objective (0.5 for byol, 23 for vicreg, 1 for barlow)."""

    def attach(self, networks: Networks, seed: int) -> None:
        self.predictor = predictor_of_past(networks, seed, batch_norm=True)

    def loss(self, rep: Representations, context: StepContext) -> Tensor:
        objective = rep.networks.objective
        return form_of(FORMS, objective).past(self, objective, rep, self.tau or context.tau)


class Form(ABC):
    """L_current and L_past of PNR for one kind of objective."""

    needs_queue: ClassVar[bool] = False
    """Whether `PseudoContrast` keeps a queue of past embeddings."""
    unused: ClassVar[tuple[str, ...]]
    """Options of the terms that change nothing."""

    @abstractmethod
    def current(self, term: PseudoContrast, objective: Any, rep: Representations, tau: float) -> Tensor: ...

    @abstractmethod
    def past(self, term: PseudoDistil, objective: Any, rep: Representations, tau: float) -> Tensor: ...


@dataclass(frozen=True)
class InBatch(Form):
    """Objectives for which images of a batch are negatives of each other."""

    decoupled: bool
    unused: ClassVar[tuple[str, ...]] = ("repulsion",)

    def current(self, term: PseudoContrast, objective: Objective, rep: Representations, tau: float) -> Tensor:
        z, past = rep(X), rep(X, "g*", "f*")
        objective.watch(z)
        return losses.pseudo_contrast(z, past, tau, self.decoupled)

    def past(self, term: PseudoDistil, objective: Objective, rep: Representations, tau: float) -> Tensor:
        prediction, past = rep(X, ("g", term.predictor)), rep(X, "g*", "f*")
        return losses.pseudo_distil(prediction, past, rep(X), tau, term.positive_in_denominator)


@dataclass(frozen=True)
class Queued(Form):
    """MoCo v2+: negatives are queues. The objective has the queue of keys, `PseudoContrast` that of the past."""

    needs_queue: ClassVar[bool] = True
    unused: ClassVar[tuple[str, ...]] = ("tau", "positive_in_denominator", "repulsion")

    def current(self, term: PseudoContrast, objective: Mocov2, rep: Representations, tau: float) -> Tensor:
        objective.more_negatives, term.waiting = term.get_buffer("queue"), rep(X, "g*", "f*")
        return objective(rep, (X,), tau)

    def past(self, term: PseudoDistil, objective: Mocov2, rep: Representations, tau: float) -> Tensor:
        prediction, past = rep(X, ("g", term.predictor)), rep(X, "g*", "f*")
        return losses.queued(prediction, past, objective.negatives().flip(0), objective.tau)


@dataclass(frozen=True)
class Repelled(Form):
    """Objectives without negatives: predictions keep away from the past embedding of the other view."""

    attraction: Distance
    """d, that of cassle."""
    repulsion: Distance
    """d'."""
    weight: float
    """b."""
    unused: ClassVar[tuple[str, ...]] = ("tau", "positive_in_denominator")

    def current(self, term: PseudoContrast, objective: Objective, rep: Representations, tau: float) -> Tensor:
        return objective(rep, (X,), tau)

    def past(self, term: PseudoDistil, objective: Objective, rep: Representations, tau: float) -> Tensor:
        prediction, past = rep.raw(X, ("g", term.predictor)), rep.raw(X, "g*", "f*")
        weight = self.weight if term.repulsion is None else term.repulsion
        near, far = self.attraction(objective, prediction, past), self.repulsion(objective, prediction, past.flip(0))
        return near - weight * far


def negative_cosine(objective: Barlow, prediction: Tensor, other: Tensor) -> Tensor:
    return losses.negative_cosine(unit_vectors(prediction), unit_vectors(other))


def squared_distance(objective: Vicreg, prediction: Tensor, other: Tensor) -> Tensor:
    return F.mse_loss(prediction, other)


FORMS: dict[type[Objective], Form] = {
    Ntxent: InBatch(decoupled=False),
    Dcl: InBatch(decoupled=True),
    Mocov2: Queued(),
    Mocov3: Repelled(cosine, cosine, 0.5),
    Byol: Repelled(cosine, cosine, 0.5),
    Simsiam: Repelled(cosine, cosine, 0.5),
    Barlow: Repelled(barlow, negative_cosine, 1.0),
    Vicreg: Repelled(vicreg, squared_distance, 23.0),
}
"""For the assignments of SwAV the authors of PNR define no distance that grows."""
