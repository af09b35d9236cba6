"""The readout: one linear map of joined layers, made from sums over the images that were seen.

Each layer is scaled to the same mean square; with their covariance S = V L V^T the similarity of two images is

    (x - m)^T W (x' - m),   W = (1 - share) V (L + ridge max(L))^-1 V^T / e + share I_own / o

Whitening makes all directions count alike, and `share` keeps a part of the network's own similarity (e, o: what each
part has on average). No label is used.

- The sums are those of the images and of a fixed set of drawings, which count as many images: a few photos of one kind
  do not say which directions matter.
- Where a few directions have most of the variance, these are style, light or background, and whitening helps. Where no
  direction stands out, the large ones are what the images show, and whitening alone would take that away: then the
  share is not zero. The number of directions of the drawings says what is many for this network.
  docs/results/readout.md has measurements.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from osiris.exact.moments import Moments
from osiris.exact.whitening import Spectrum

RIDGE = 5e-3
"""Larger than that of the whitened KNN: as good with many images to compare with, and better with few."""
SHARE = 0.5
"""Of the network's own similarity, for images without directions that stand out."""
DRAWINGS = 1000
"""As how many images the fixed drawings count."""
SMALL = 1e-6
"""Part of the largest variance: directions with less are those of no image."""


class Readout(nn.Module):
    """Joined features [B, D] to [B, P]."""

    centre: Tensor
    projection: Tensor
    count: Tensor

    def __init__(self, sizes: Sequence[int], dimension: int) -> None:
        """Before it is set, it gives what the network itself returns."""
        super().__init__()
        joined, own = sum(sizes), sizes[-1]
        start = torch.zeros(joined, dimension)
        first = joined - own if dimension == joined else 0
        start[joined - own :, first : first + own] = torch.eye(own)[:, : dimension - first]
        self.register_buffer("centre", torch.zeros(joined))
        self.register_buffer("projection", start)
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def forward(self, joined: Tensor) -> Tensor:
        return (joined - self.centre) @ self.projection

    @torch.no_grad()
    def set(self, fitted: Fitted) -> None:
        self.centre.copy_(fitted.centre)
        self.projection.copy_(fitted.projection)
        self.count.fill_(fitted.count)


@dataclass(frozen=True)
class Fitted:
    """A map; `count`: the images whose sums it was made from."""

    centre: Tensor
    projection: Tensor
    count: int

    @staticmethod
    def own(sizes: Sequence[int], dimension: int, count: int) -> Fitted:
        """What the network itself returns (and zeros)."""
        map = Readout(sizes, dimension)
        return Fitted(map.centre, map.projection, count)


def with_drawings(images: Moments, drawings: Moments) -> Moments:
    """The sums of the images, and those of the drawings scaled to `DRAWINGS`."""
    weight = DRAWINGS / drawings.count
    total, outer = images.total + weight * drawings.total, images.outer + weight * drawings.outer
    return Moments(images.count + DRAWINGS, total, outer)


def fit(
    images: Moments,
    drawings: Moments,
    sizes: Sequence[int],
    dimension: int,
    share: float | None = None,
    ridge: float = RIDGE,
) -> Fitted:
    """The map of joined layers of these sizes, the last of which is the network's own. `share`: default as above.

    The sums must be those of phi(x), as the network gives it: the scale of each layer follows from them.
    """
    both = with_drawings(images, drawings)
    scale = layer_scales(both, sizes)
    share = own_share(images, drawings, scale) if share is None else share
    covariance = both.covariance * scale[:, None] * scale
    spectrum = Spectrum.of(covariance)
    variances, directions = spectrum.variances, spectrum.directions
    inverse = 1 / (variances + spectrum.ridge(ridge))
    weights = (1 - share) * inverse / (variances * inverse).sum()
    own = covariance.diagonal()[-sizes[-1] :].sum()
    if share and own > 0:
        metric = (directions * weights) @ directions.T
        metric.diagonal()[-sizes[-1] :] += share / own
        root = _root(metric, spectrum, dimension)
    else:
        root = _whitening(weights, directions, dimension)
    projection = scale[:, None] * root
    return Fitted(both.mean.float(), projection.float(), images.count)


def own_share(images: Moments, drawings: Moments, scale: Tensor) -> float:
    """From 0, if the images have no more directions than the drawings, to `SHARE`, if they have twice as many."""
    ratio = effective_directions(images, scale) / effective_directions(drawings, scale)
    return SHARE * min(max(ratio - 1, 0.0), 1.0)


def effective_directions(moments: Moments, scale: Tensor) -> float:
    """tr(S)^2 / tr(S^2) of the scaled covariance: d if d directions vary alike. n images show fewer of them, which is
    corrected for: 1 / (n - 1) is part of the inverse of what they show."""
    if moments.count < 2:
        return float("inf")
    covariance = moments.covariance * scale[:, None] * scale
    inverse = float(covariance.square().sum()) / max(float(covariance.trace()) ** 2, 1e-300)
    return 1 / max(inverse - 1 / (moments.count - 1), 1e-6)


def layer_scales(moments: Moments, sizes: Sequence[int]) -> Tensor:
    """float64 [D]: one over the root of the mean square of each layer, repeated for its numbers."""
    squares = [layer.sum() for layer in moments.second.split(list(sizes))]
    scales = [square.rsqrt() if square > 0 else square for square in squares]
    return torch.cat([scale.expand(size) for scale, size in zip(scales, sizes)])


def _whitening(weights: Tensor, directions: Tensor, dimension: int) -> Tensor:
    """`_root` of the metric that has these weights along the directions of the images."""
    if dimension >= len(weights):
        return (directions * weights.sqrt()) @ directions.T
    return directions[:, -dimension:] * weights[-dimension:].sqrt()


def _root(metric: Tensor, spectrum: Spectrum, dimension: int) -> Tensor:
    """[D, P] with metric = root root^T; if P < D, the P directions in which the images differ most under it."""
    if dimension >= len(metric):
        values, vectors = torch.linalg.eigh(metric)
        return (vectors * values.clamp_min(0).sqrt()) @ vectors.T  # the symmetric root, which changes smoothly
    deviations = (spectrum.variances + spectrum.ridge(SMALL)).sqrt()
    spread = (spectrum.directions * deviations) @ spectrum.directions.T
    values, vectors = torch.linalg.eigh(spread @ metric @ spread)
    back = (spectrum.directions / deviations) @ spectrum.directions.T
    return back @ (vectors[:, -dimension:] * values[-dimension:].clamp_min(0).sqrt())
