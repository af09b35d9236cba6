"""CLA: embeddings are aligned with those of an earlier model, a moving average or stored with the memory."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Literal

from torch import Tensor

from osiris.errors import UserError
from osiris.framework import losses
from osiris.framework.options import Count, Share
from osiris.framework.representations import Average, BothViews, Networks, Representations, unit_vectors
from osiris.framework.terms.base import StepContext, StoringTerm, TaskContext, Term, X, Y
from osiris.models.heads import mlp
from osiris.randomness import scoped

if TYPE_CHECKING:
    from osiris.framework.methods import Method


class _Align(Term):
    """-cos(a(z), target), mean over all views: an aligner a maps today's embeddings to earlier ones."""

    batch: Literal["X", "Y"] = "Y"
    hidden: Count = 512
    """Width of the aligner."""

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.batch,)

    def attach(self, networks: Networks, seed: int) -> None:
        width = networks.width("g")
        with scoped(seed, "init.aligner"):
            self.aligner = BothViews(*mlp(width, self.hidden, width, first_bias=False))

    @abstractmethod
    def target(self, rep: Representations, context: StepContext) -> Tensor:
        """Unit vectors, [2, N, d]."""

    def loss(self, rep: Representations, context: StepContext) -> Tensor:
        return losses.negative_cosine(rep(self.batch, ("g", self.aligner)), self.target(rep, context))


class AlignAverage(_Align):
    r"""CLA-E, and CLA-B on X: the targets are the embeddings of a moving average, g~(f~(.)), from the first step on."""

    kind: ClassVar[str] = "align-average"
    formula: ClassVar[str] = "− mean cos(a g f({batch}), g~ f~({batch}))"
    stores: ClassVar[str] = "f~, g~"
    symbols: ClassVar[Mapping[str, str]] = {"aligner": "a", "average_encoder": "f~", "average_head": "g~"}
    rate: Share = 0.999
    """The share of the old average in an update."""

    def attach(self, networks: Networks, seed: int) -> None:
        super().attach(networks, seed)
        self.average_encoder = Average(networks.encoder, alone=True)
        self.average_head = Average(networks.heads["g"], alone=True)

    def target(self, rep: Representations, context: StepContext) -> Tensor:
        return rep(self.batch, self.average_head, self.average_encoder)

    def after_step(self, context: TaskContext) -> None:
        self.average_encoder.follow(context.networks.encoder, self.rate)
        self.average_head.follow(context.networks.heads["g"], self.rate)


class AlignStored(_Align, StoringTerm):
    r"""CLA-R: the target c is stored with an image, as the mean of its raw embeddings over the views, and renewed.

    c <- alpha c + (1 - alpha) mean_v z_v at each visit.
    """

    kind: ClassVar[str] = "align-stored"
    formula: ClassVar[str] = "− mean cos(a g f(Y), stored c)"
    memory_fields: ClassVar[Mapping[str, str]] = {"target": "g"}
    stores: ClassVar[str] = "embeddings"
    symbols: ClassVar[Mapping[str, str]] = {"aligner": "a"}
    alpha: Share = 0.5
    """1: never renewed."""

    def check(self, method: Method) -> None:
        if self.batch != "Y":
            raise UserError("align-stored: targets are stored with the images of the memory; leave out batch=X.")

    def entry(self, rep: Representations, head: str) -> Tensor:
        return rep.raw(X, head).mean(0)

    def target(self, rep: Representations, context: StepContext) -> Tensor:
        return unit_vectors(context.stored("target", like=rep.raw(Y)))

    def rewritten(self, rep: Representations, context: StepContext) -> dict[str, Tensor]:
        z = rep.raw(Y).mean(0)
        return {"target": self.alpha * context.stored("target", like=z) + (1 - self.alpha) * z}
