"""Objectives with negatives: NT-Xent, the paper's, and its decoupled variant."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from osiris.framework import losses
from osiris.framework.objectives.base import Batch, Objective
from osiris.framework.representations import normalise


class Ntxent(Objective):
    """NT-Xent (Eq. 1): each view finds the other view of its image among all views of the batch."""

    kind: ClassVar[str] = "ntxent"
    symbol: ClassVar[str] = "NTX"
    contrastive: ClassVar[bool] = True
    has_negatives: ClassVar[bool] = True
    mixes: ClassVar[bool] = True

    def loss(self, batch: Batch, tau: float) -> Tensor:
        return losses.contrast_with_negatives(batch.normalised(), None, tau, self.decoupled)

    def pair(self, a: Tensor, b: Tensor, tau: float) -> Tensor:
        return losses.contrast_with_negatives(normalise(torch.stack([a, b])), None, tau, self.decoupled)


class Dcl(Ntxent):
    """Decoupled contrastive learning: NT-Xent whose denominator does not contain the positive."""

    kind: ClassVar[str] = "dcl"
    symbol: ClassVar[str] = "DCL"
    decoupled: ClassVar[bool] = True
    weighted: bool = False
    """DCLW: positives of dissimilar views weigh more."""

    def loss(self, batch: Batch, tau: float) -> Tensor:
        return losses.weighted_decoupled(batch.normalised(), tau) if self.weighted else super().loss(batch, tau)
