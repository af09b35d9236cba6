"""Whitening: directions in which rows vary much count less, so that all count alike."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from osiris.exact.moments import Moments
from osiris.randomness import generator

RIDGE = 1e-3
"""Added to the variances, as a part of the largest: directions without variance are not blown up to noise."""
LARGEST = 4096
"""More numbers than these are projected onto fewer random directions first: the eigenproblem grows with their cube."""
RANDOM = 2048
"""Random directions in that case."""


@dataclass(frozen=True)
class Spectrum:
    """Variances [d], ascending, and their directions [d, d] in columns, float64."""

    variances: Tensor
    directions: Tensor

    @staticmethod
    def of(covariance: Tensor) -> Spectrum:
        variances, directions = torch.linalg.eigh(covariance)
        return Spectrum(variances.clamp_min(0), directions)

    def ridge(self, part: float) -> float:
        return part * float(self.variances[-1]) or 1.0  # rows that are all the same vary in no direction


def narrowed(*rows: Tensor) -> tuple[Tensor, ...]:
    """Rows [n, D]; on fewer random directions, if their square matrix would be too large."""
    width = rows[0].shape[1]
    if width <= LARGEST:
        return rows
    directions = torch.randn(width, RANDOM, generator=generator(0, "whitening")) / RANDOM**0.5
    return tuple(part @ directions.to(part) for part in rows)


def whitened(bank: Tensor, *others: Tensor, ridge: float = RIDGE) -> tuple[Tensor, ...]:
    """Rows [n, D] of a bank, and others, whitened by the moments of the bank: float32 on its device."""
    rows = narrowed(bank, *others)
    moments = Moments.of(rows[0])
    spectrum = Spectrum.of(moments.covariance)
    scaled = spectrum.directions * (spectrum.variances + spectrum.ridge(ridge)).rsqrt()
    mean, scaled = moments.mean.float().to(bank.device), scaled.float().to(bank.device)
    return tuple((part - mean) @ scaled for part in rows)
