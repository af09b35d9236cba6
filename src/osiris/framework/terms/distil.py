"""Terms that compare the model with its past: the checkpoint of osiris-d, CaSSLe, PFR and PNR, and DER."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from torch import Tensor, nn

from osiris.errors import UserError
from osiris.framework import losses
from osiris.framework.objectives import Mocov2
from osiris.framework.objectives.base import enqueue
from osiris.framework.options import Count, Tau, Weight
from osiris.framework.representations import Networks, Representations, Unit, normalise
from osiris.framework.terms.base import Space, StepContext, TaskContext, Term, X, Y
from osiris.models.heads import mlp, predictor
from osiris.randomness import scoped

if TYPE_CHECKING:
    from osiris.framework.methods import Method


class Distil(Term):
    r"""L_past-D = 1/2 [L^SSL(X, X; h o f*, h o f) + L^SSL(X, X; h o f, h o f*)] (Sec. 3.2.2).

    The frozen encoder with the *live* h: no gradient into f*, gradient into h from both sides.
    """

    kind: ClassVar[str] = "distil"
    formula: ClassVar[str] = "½ [DISTIL({space} f(X) → {space} f*(X)) + DISTIL({space} f*(X) → {space} f(X))]"
    needs: ClassVar[frozenset[str]] = frozenset({"past.encoder"})
    space: Space = "h"
    positive: Literal["same", "other"] = "same"
    """The positive is the same view of the image, or the other view (as Eq. 2 is written)."""

    def check(self, method: Method) -> None:
        if self.space == "g" and not method.objective.contrastive:
            raise UserError(
                f"distil:g is contrastive, and the objective of g is {method.objective.kind}. Use distil:h, which "
                "works in NT-Xent, or predict, which follows the objective."
            )

    def loss(self, rep: Representations, context: StepContext) -> Tensor:
        now, past = rep(X, head=self.space), rep(X, head=self.space, encoder="past")
        tau = rep.networks.objective.temperature(context.tau) if self.space == "g" else context.tau
        rows, columns = losses.distil(now, past, tau, self.positive), losses.distil(past, now, tau, self.positive)
        return (rows + columns) / 2


def predictor_of_past(networks: Networks, seed: int, batch_norm: bool) -> nn.Module:
    """From today's embeddings in the space of g to those of the previous checkpoint."""
    with scoped(seed, "init.predictor"):
        network = predictor(networks.width("g"), networks.projector_config.projector_hidden, batch_norm)
    return nn.Sequential(Unit(), network) if networks.objective.unit_predictions else network


class Predict(Term):
    r"""CaSSLe: L^SSL(X, X; h o g o f, g* o f*): the model predicts the embeddings of the previous checkpoint.

    One direction, as the paper writes it. The predictor is fresh at task 2 and trained from then on. Predictions and
    targets are compared as the objective of the method does: contrastively, or by its `agree`.
    """

    kind: ClassVar[str] = "predict"
    needs: ClassVar[frozenset[str]] = frozenset({"past.encoder", "past.g"})
    symbols: ClassVar[Mapping[str, str]] = {"predictor": "p", "distiller": "D"}
    positive: Literal["same", "other"] = "same"
    symmetric: bool = False
    """Also contrast targets against predictions."""
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
        batch_norm = not networks.objective.contrastive if self.batch_norm is None else self.batch_norm
        self.predictor = predictor_of_past(networks, seed, batch_norm)
        self.distiller = networks.objective.distiller(networks, seed)

    def end_task(self, context: TaskContext) -> None:
        if self.distiller is not None:
            self.distiller.update(context.networks.objective)

    def check(self, method: Method) -> None:
        if self.paired and self.tau is not None:
            raise UserError("cromo has one temperature for all its losses; use --tau instead of predict(tau=...).")
        if not method.objective.can_agree:
            raise UserError(f"predict: cassle has no form for the objective {method.objective.kind}; use another one.")
        changed = [name for name in ("symmetric", "keep_other", "tau") if self.options[name]]
        changed += ["positive"] if self.positive == "other" else []
        if changed and not method.objective.contrastive:
            raise UserError(
                f"predict({changed[0]}=...) belongs to contrastive distillation, and the objective is "
                f"{method.objective.kind}; leave it out."
            )

    def loss(self, rep: Representations, context: StepContext) -> Tensor:
        objective = rep.networks.objective
        if not objective.contrastive:
            agree = self.distiller or objective.agree
            return agree(rep.raw(X, ("g", self.predictor)), rep.raw(X, "past.g", "past"))
        prediction, target = rep(X, ("g", self.predictor)), rep(X, "past.g", "past")
        tau = self.tau or objective.temperature(context.tau)
        if self.paired:
            pairs = [torch.stack([prediction[view], target[view]]) for view in range(2)]
            values = [losses.contrast_with_negatives(z, None, tau, objective.decoupled) for z in pairs]
            return (values[0] + values[1]) / 2
        value = losses.distil(prediction, target, tau, self.positive, self.keep_other)
        if self.symmetric:
            value = (value + losses.distil(target, prediction, tau, self.positive, self.keep_other)) / 2
        return value


class Project(Term):
    r"""PFR: -cos(p(f(v)), f*(v)) on encoder outputs, mean over all views."""

    kind: ClassVar[str] = "project"
    formula: ClassVar[str] = "− mean cos(p f(X), f*(X))"
    spaces: ClassVar[frozenset[str]] = frozenset()
    needs: ClassVar[frozenset[str]] = frozenset({"past.encoder"})
    symbols: ClassVar[Mapping[str, str]] = {"predictor": "p"}
    hidden: Count = 256
    """Width of the predictor."""

    def attach(self, networks: Networks, seed: int) -> None:
        features = networks.features
        with scoped(seed, "init.predictor"):
            self.predictor = mlp(features, self.hidden, features, first_bias=False)

    def loss(self, rep: Representations, context: StepContext) -> Tensor:
        return losses.match(rep(X, head=self.predictor), rep(X, head=(), encoder="past")) / 2 - 1


class Match(Term):
    r"""DER: 1/|Y| sum ||g(f(y)) - z||^2 on normalised vectors; z was stored when y entered the memory."""

    kind: ClassVar[str] = "match"
    formula: ClassVar[str] = "mean ‖{space} f(Y) − stored z‖²"
    inputs: ClassVar[tuple[str, ...]] = (Y,)
    stores: ClassVar[str] = "embeddings"
    space: Space = "g"

    @property
    def memory_fields(self) -> dict[str, str]:
        return {"embedding" if self.space == "g" else f"embedding_{self.space}": self.space}

    def check(self, method: Method) -> None:
        if self.space == "h" and not method.copies_g:
            raise UserError("match:h needs an h that starts as a copy of g: in task 1 the embeddings of g are stored.")

    def loss(self, rep: Representations, context: StepContext) -> Tensor:
        z, (field,) = rep(Y, head=self.space), self.memory_fields
        return losses.match(z, context.stored(field, like=z))


class _PseudoNegatives(Term):
    """PNR: the embeddings of the previous checkpoint are further negatives of both losses."""

    needs: ClassVar[frozenset[str]] = frozenset({"past.encoder", "past.g"})
    tau: Tau | None = None
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
        unused = [] if objective.has_negatives else ["tau", "positive_in_denominator"]
        for option in unused + (["repulsion"] if objective.contrastive else []):
            if self.options.get(option):
                raise UserError(
                    f"{self.kind}({option}=...) changes nothing with the objective {objective.kind}; leave it out."
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

    With mocov2+, the negatives are the queues of keys and of past embeddings of the other view, as in the current loss.
    Objectives without negatives: agree(p(z_v), z*_v) - b repel(p(z_v), z*_v'), v' the other view.
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
        objective, tau, heads = rep.networks.objective, self.tau or context.tau, ("g", self.predictor)
        if objective.has_negatives:
            prediction, past = rep(X, heads), rep(X, "past.g", "past")
            return losses.pseudo_distil(prediction, past, rep(X), tau, self.positive_in_denominator)
        if isinstance(objective, Mocov2):
            negatives = objective.negatives().flip(0)
            return losses.queued(rep(X, heads), rep(X, "past.g", "past"), negatives, objective.tau)
        prediction, past = rep.raw(X, heads), rep.raw(X, "past.g", "past")
        weight = objective.repulsion if self.repulsion is None else self.repulsion
        assert weight is not None
        return objective.agree(prediction, past) - weight * objective.repel(prediction, past.flip(0))
