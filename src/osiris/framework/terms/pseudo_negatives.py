"""PNR: pseudo-negatives. The embeddings of the previous checkpoint are further negatives of both losses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from osiris.errors import UserError
from osiris.framework import losses
from osiris.framework.objectives import Mocov2
from osiris.framework.objectives.base import enqueue
from osiris.framework.representations import Networks, Representations, normalise
from osiris.framework.terms.base import StepContext, TaskContext, Term, X
from osiris.framework.terms.distil import predictor_of_past
from osiris.randomness import scoped

if TYPE_CHECKING:
    from osiris.framework.methods import Method


class _PseudoNegatives(Term):
    needs: ClassVar[frozenset[str]] = frozenset({"past.encoder", "past.g"})
    tau: float | None = None
    """Temperature, if it is not that of the run (the original code: 0.2)."""

    def check(self, method: Method) -> None:
        objective = method.objective
        if isinstance(objective, Mocov2) and not isinstance(method.current[0], PseudoContrast):
            raise UserError(
                "pseudo-distil with mocov2+ needs the queue of pseudo-contrast; use --current pseudo-contrast."
            )
        if not (objective.has_negatives or isinstance(objective, Mocov2)) and objective.repulsion is None:
            raise UserError(
                f"{self.kind}: pnr has no form for the objective {objective.kind}; use another --objective."
            )


class PseudoContrast(_PseudoNegatives):
    r"""L_current of PNR: NT-Xent with the past embeddings g*(f*(X)) of all other views as further negatives.

    With mocov2+, a queue of past embeddings of each view adds negatives. Objectives without negatives stay as they are.
    """

    kind: ClassVar[str] = "pseudo-contrast"
    formula: ClassVar[str] = "NTX_g(X; negatives X ∪ g* f*(X))"
    replaces_loss: ClassVar[bool] = True

    def attach(self, networks: Networks, seed: int) -> None:
        self.waiting: Tensor | None = None
        if isinstance(networks.objective, Mocov2):
            queue = networks.objective.get_buffer("queue")
            with scoped(seed, "init.past_queue"):
                self.register_buffer("queue", normalise(torch.randn(queue.shape)))
            self.register_buffer("queue_position", torch.zeros((), dtype=torch.int64))

    def after_step(self, context: TaskContext) -> None:
        if self.waiting is not None:
            enqueue(self.get_buffer("queue"), self.get_buffer("queue_position"), self.waiting)
            self.waiting = None

    def loss(self, rep: Representations, context: StepContext) -> Tensor:
        objective, tau = rep.networks.objective, self.tau or context.tau
        if isinstance(objective, Mocov2):
            objective.more_negatives, self.waiting = self.get_buffer("queue"), rep(X, "past.g", "past")
        if not objective.has_negatives:
            return objective(rep, (X,), tau)
        z, past = rep(X), rep(X, "past.g", "past")
        objective.watch(z)
        return losses.pseudo_contrast(z, past, tau, objective.decoupled)


class PseudoDistil(_PseudoNegatives):
    r"""L_past of PNR: predictions p(g(f(X))) find the past embedding of their view; other views are negatives.

    With mocov2+, the negatives are the queues of keys and of past embeddings of the same view.
    Objectives without negatives: agree(p(z_v), z*_v) - b repel(p(z_v), z*_v'), v' the other view.
    """

    kind: ClassVar[str] = "pseudo-distil"
    formula: ClassVar[str] = "DISTIL(p g f(X) → g* f*(X); negatives X ∪ g* f*(X))"
    symbols: ClassVar[Mapping[str, str]] = {"predictor": "p"}
    positive_in_denominator: bool = False
    """Add the positive to the denominator, which the original code does not."""
    repulsion: float | None = None
    """b; default: that of the objective (0.5 for byol, 23 for vicreg, 1 for barlow)."""

    def attach(self, networks: Networks, seed: int) -> None:
        self.predictor = predictor_of_past(networks, seed, batch_norm=True)

    def loss(self, rep: Representations, context: StepContext) -> Tensor:
        objective, tau, heads = rep.networks.objective, self.tau or context.tau, ("g", self.predictor)
        if objective.has_negatives:
            prediction, past = rep(X, heads), rep(X, "past.g", "past")
            return losses.pseudo_distil(prediction, past, rep(X), tau, self.positive_in_denominator)
        if isinstance(objective, Mocov2):
            return losses.queued(rep(X, heads), rep(X, "past.g", "past"), objective.negatives(), objective.tau)
        prediction, past = rep.raw(X, heads), rep.raw(X, "past.g", "past")
        weight = objective.repulsion if self.repulsion is None else self.repulsion
        assert weight is not None
        return objective.agree(prediction, past) - weight * objective.repel(prediction, past.flip(0))
