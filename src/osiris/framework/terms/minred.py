"""MinRed: the model learns from a memory of the least redundant images alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from torch import Tensor

from osiris.errors import UserError
from osiris.framework.representations import Representations, unit_vectors
from osiris.framework.terms.base import StepContext, StoringTerm, X, Y

if TYPE_CHECKING:
    from osiris.framework.methods import Method


class Revisit(StoringTerm):
    r"""MinRed: L^SSL(Y; f, g). X only feeds the memory, and each visit of an image renews its feature c.

    c <- hat(c + hat(z_1 + z_2)), from zero at the first visit. The memory `minred` compares these features.
    """

    kind: ClassVar[str] = "revisit"
    formula: ClassVar[str] = "NTX_g(Y)"
    inputs: ClassVar[tuple[str, ...]] = (Y,)
    memory_fields: ClassVar[Mapping[str, str]] = {"feature": "g"}
    stores: ClassVar[str] = "features"

    def check(self, method: Method) -> None:
        if method.memory != "minred":
            raise UserError(
                "the term revisit belongs to the memory minred; use --method minred or --memory-policy minred."
            )

    def entry(self, rep: Representations, head: str) -> Tensor:
        return rep.views[X].new_zeros(rep.counts[X], rep.networks.width(head))

    def rewritten(self, rep: Representations, context: StepContext) -> dict[str, Tensor]:
        z = unit_vectors(rep.raw(Y).sum(0))
        return {"feature": unit_vectors(context.stored("feature", like=z) + z)}

    def loss(self, rep: Representations, context: StepContext) -> Tensor:
        value = rep.networks.objective(rep, (Y,), context.tau)
        rep.networks.objective.watch(rep(Y))
        return value
