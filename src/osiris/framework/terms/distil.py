"""Terms that compare the model with its past: OSIRIS-D, PFR and DER."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Literal

from torch import Tensor

from osiris.errors import UserError
from osiris.framework import losses
from osiris.framework.options import Count
from osiris.framework.representations import Networks, Representations
from osiris.framework.terms.base import Space, StepContext, StoringTerm, Term, X, Y
from osiris.framework.terms.cassle import is_contrastive
from osiris.models.heads import mlp
from osiris.randomness import scoped

if TYPE_CHECKING:
    from osiris.framework.methods import Method


class Distil(Term):
    r"""L_past-D = 1/2 [L^SSL(X, X; h o f*, h o f) + L^SSL(X, X; h o f, h o f*)] (Sec. 3.2.2).

    The frozen encoder with the *live* h: no gradient into f*, gradient into h from both sides.
    """

    kind: ClassVar[str] = "distil"
    formula: ClassVar[str] = "½ [DISTIL({space} f(X) → {space} f*(X)) + DISTIL({space} f*(X) → {space} f(X))]"
    needs: ClassVar[frozenset[str]] = frozenset({"f*"})
    space: Space = "h"
    positive: Literal["same", "other"] = "same"
    """The positive is the same view of the image, or the other view (as Eq. 2 is written)."""

    def check(self, method: Method) -> None:
        if self.space == "g" and not is_contrastive(method.objective):
            raise UserError(
                f"distil:g is contrastive, and the objective of g is {method.objective.kind}. Use distil:h, which "
                "works in NT-Xent, or predict, which follows the objective."
            )

    def loss(self, rep: Representations, context: StepContext) -> Tensor:
        now, past = rep(X, head=self.space), rep(X, head=self.space, encoder="f*")
        tau = rep.networks.objective.temperature(context.tau) if self.space == "g" else context.tau
        return (losses.distil(now, past, tau, self.positive) + losses.distil(past, now, tau, self.positive)) / 2


class Project(Term):
    r"""PFR: -cos(p(f(v)), f*(v)) on encoder outputs, mean over all views."""

    kind: ClassVar[str] = "project"
    formula: ClassVar[str] = "− mean cos(p f(X), f*(X))"
    spaces: ClassVar[frozenset[str]] = frozenset()
    needs: ClassVar[frozenset[str]] = frozenset({"f*"})
    symbols: ClassVar[Mapping[str, str]] = {"predictor": "p"}
    hidden: Count = 256
    """Width of the predictor."""

    def attach(self, networks: Networks, seed: int) -> None:
        features = networks.features
        with scoped(seed, "init.predictor"):
            self.predictor = mlp(features, self.hidden, features, first_bias=False)

    def loss(self, rep: Representations, context: StepContext) -> Tensor:
        return losses.negative_cosine(rep(X, head=self.predictor), rep(X, head=(), encoder="f*"))


class Match(StoringTerm):
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
