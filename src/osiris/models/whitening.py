"""Whitened image patches: the first layer of the `fast` encoder, fitted without labels."""

from __future__ import annotations

import torch
from torch import Tensor

PLACES = 10
"""Patches are cut at about this many places along each axis of an image."""
REGULARISATION = 1e-2
"""Added to the variances, so that directions without variance are not blown up to noise."""


def patches(images: Tensor, size: int) -> Tensor:
    """float32 [N, 3 * size * size]: patches of size x size pixels on a regular grid of normalised images."""
    stride = max(1, (min(images.shape[2:]) - size) // (PLACES - 1))
    grid = images.unfold(2, size, stride).unfold(3, size, stride)
    return grid.permute(0, 2, 3, 1, 4, 5).reshape(-1, images.shape[1] * size * size)


def principal_components(rows: Tensor) -> tuple[Tensor, Tensor]:
    """(variances [d], directions [d, d] in rows) of [N, d], largest variance first, the largest entry positive."""
    centred = rows.double() - rows.double().mean(0)
    variances, directions = torch.linalg.eigh(centred.T @ centred / len(rows))
    variances, directions = variances.flip(0).clamp(min=0), directions.T.flip(0)
    largest = directions.gather(1, directions.abs().argmax(1, keepdim=True))
    return variances.float(), (directions * largest.sign()).float()


def whitening_filters(images: Tensor, size: int, count: int) -> Tensor:
    """[count, 3, size, size]: the first count / 2 principal components, scaled to unit variance, with both signs.

    Both signs, because the activation that follows would otherwise lose half of each response (as in airbench).
    """
    variances, directions = principal_components(patches(images, size))
    half = directions[: count // 2] / torch.sqrt(variances[: count // 2, None] + REGULARISATION)
    return torch.cat([half, -half]).view(count, images.shape[1], size, size)
