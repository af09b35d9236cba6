"""Terms of methods for streams: MinRed learns from its memory alone, CLA aligns the memory with an earlier model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from torch import Tensor

from osiris.errors import UserError
from osiris.framework import losses
from osiris.framework.representations import Average, BothViews, Networks, Representations, normalise
from osiris.framework.terms.base import StepContext, TaskContext, Term, X, Y
from osiris.models import mlp
from osiris.randomness import scoped

if TYPE_CHECKING:
    from osiris.framework.methods import Method


@dataclass(eq=False)
class Revisit(Term):
    r"""MinRed: L^SSL(Y; f, g). X only feeds the memory, and each visit of an image renews its feature c.

    c <- hat(c + hat(z_1 + z_2)), from zero at the first visit. The memory `minred` compares these features.
    """

    kind: ClassVar[str] = "revisit"
    stores: ClassVar[str] = "features"

    @property
    def formula(self) -> str:
        return "NTX_g(Y)"

    @property
    def inputs(self) -> tuple[str, ...]:
        return (Y,)

    @property
    def memory_fields(self) -> dict[str, str]:
        return {"feature": "g"}

    def check(self, method: Method) -> None:
        if method.memory != "minred":
            raise UserError(
                "the term revisit belongs to the memory minred; use --method minred or --memory-policy minred."
            )

    def entry(self, rep: Representations, head: str) -> Tensor:
        return rep.views[X].new_zeros(rep.counts[X], rep.networks.width(head))

    def rewritten(self, rep: Representations, context: StepContext) -> dict[str, Tensor]:
        assert context.memory is not None and context.slots is not None
        z = normalise(rep.raw(Y).sum(0))
        return {"feature": normalise(context.memory.field("feature", context.slots).to(z.dtype) + z)}

    def loss(self, rep: Representations, context: StepContext) -> Tensor:
        value = rep.networks.objective(rep, (Y,), context.tau)
        rep.networks.objective.watch(rep(Y))
        return value


@dataclass(eq=False)
class _Align(Term):
    """-cos(a(z), target), mean over all views: an aligner a maps today's embeddings to earlier ones."""

    batch: Literal["X", "Y"] = "Y"
    hidden: int = 512
    """Width of the aligner."""

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.batch,)

    def attach(self, networks: Networks, seed: int) -> None:
        width = networks.width("g")
        with scoped(seed, "init.aligner"):
            self.aligner = BothViews(*mlp(width, self.hidden, width, first_bias=False))

    def target(self, rep: Representations, context: StepContext) -> Tensor:
        """Unit vectors, [2, N, d]."""
        raise NotImplementedError

    def loss(self, rep: Representations, context: StepContext) -> Tensor:
        return losses.match(rep(self.batch, ("g", self.aligner)), self.target(rep, context)) / 2 - 1


@dataclass(eq=False)
class AlignAverage(_Align):
    r"""CLA-E, and CLA-B on X: the targets are the embeddings of a moving average, g~(f~(.)), from the first step on."""

    kind: ClassVar[str] = "align-average"
    stores: ClassVar[str] = "f~, g~"
    follows_first_task: ClassVar[bool] = True
    symbols: ClassVar[Mapping[str, str]] = {"aligner": "a", "average_encoder": "f~", "average_head": "g~"}
    rate: float = 0.999
    """The share of the old average in an update."""

    @property
    def formula(self) -> str:
        return f"− mean cos(a g f({self.batch}), g~ f~({self.batch}))"

    def attach(self, networks: Networks, seed: int) -> None:
        super().attach(networks, seed)
        self.average_encoder = Average(networks.encoder, alone=True)
        self.average_head = Average(networks.heads["g"], alone=True)

    def target(self, rep: Representations, context: StepContext) -> Tensor:
        return rep(self.batch, self.average_head, self.average_encoder)

    def after_step(self, context: TaskContext) -> None:
        self.average_encoder.follow(context.networks.encoder, self.rate)
        self.average_head.follow(context.networks.heads["g"], self.rate)


@dataclass(eq=False)
class AlignStored(_Align):
    r"""CLA-R: the target c is stored with an image, as the mean of its raw embeddings over the views, and renewed.

    c <- alpha c + (1 - alpha) mean_v z_v at each visit.
    """

    kind: ClassVar[str] = "align-stored"
    stores: ClassVar[str] = "embeddings"
    symbols: ClassVar[Mapping[str, str]] = {"aligner": "a"}
    alpha: float = 0.5
    """1: never renewed."""

    @property
    def formula(self) -> str:
        return "− mean cos(a g f(Y), stored c)"

    @property
    def memory_fields(self) -> dict[str, str]:
        return {"target": "g"}

    def check(self, method: Method) -> None:
        if self.batch != "Y":
            raise UserError("align-stored: targets are stored with the images of the memory; leave out batch=X.")

    def entry(self, rep: Representations, head: str) -> Tensor:
        return rep.raw(X, head).mean(0)

    def stored(self, context: StepContext, like: Tensor) -> Tensor:
        assert context.memory is not None and context.slots is not None
        return context.memory.field("target", context.slots).to(like.dtype)

    def target(self, rep: Representations, context: StepContext) -> Tensor:
        return normalise(self.stored(context, rep.raw(Y)))

    def rewritten(self, rep: Representations, context: StepContext) -> dict[str, Tensor]:
        z = rep.raw(Y).mean(0)
        return {"target": self.alpha * self.stored(context, z) + (1 - self.alpha) * z}
