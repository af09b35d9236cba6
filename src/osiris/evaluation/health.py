"""Health of a representation: numbers without labels that show a collapse while it happens.

All of them are computed from L2-normalised features, as the KNN is.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as functional
from torch import Tensor, nn

from osiris.augment.views import TwoViews
from osiris.data.benchmark import Benchmark
from osiris.evaluation.scores import Health
from osiris.models.normalisation import evaluating
from osiris.randomness import generator

HEALTH_IMAGES = 4096
"""Images that the numbers are computed from."""
ALIGNMENT_IMAGES = 256
COLLAPSED_SPREAD = 0.02
COLLAPSED_RANK = 3.0


def fixed_subset(count: int, limit: int) -> Tensor:
    """int64, sorted: `limit` of `count` images (all if there are fewer), the same at every checkpoint."""
    if count <= limit:
        return torch.arange(count)
    return torch.randperm(count, generator=generator(0, "projection", count, limit))[:limit].sort().values


def feature_deviation(features: Tensor) -> float:
    """Standard deviation of a coordinate over the images, mean over coordinates (Chen & He, 2021).
    1 / sqrt(d) for directions spread evenly over the sphere, 0 when all images have one direction."""
    return float(functional.normalize(features.double(), dim=1).std(dim=0, correction=0).mean())


def effective_rank(features: Tensor) -> float:
    """exp of the entropy of the singular values as a distribution (Roy & Vetterli, 2007), between 1 and d. Features are
    not centred, so that one common direction counts as rank 1 and not as noise."""
    unit = functional.normalize(features.double(), dim=1)
    products = unit.T @ unit if len(unit) >= unit.shape[1] else unit @ unit.T  # of the same singular values
    singular = torch.linalg.eigvalsh(products).clamp_min(0).sqrt()
    total = singular.sum()
    if total == 0:
        return 0.0
    share = singular / total
    return float(torch.exp(-torch.special.xlogy(share, share).sum()))


def alignment(first: Tensor, second: Tensor) -> float:
    """Mean squared distance between the embeddings of two views of the same images (Wang & Isola, 2020, alpha = 2)."""
    assert first.shape == second.shape, (first.shape, second.shape)
    first, second = functional.normalize(first.double(), dim=1), functional.normalize(second.double(), dim=1)
    return float((first - second).square().sum(dim=1).mean())


def uniformity(features: Tensor) -> float | None:
    """log of the mean of exp(-2 |x - y|^2) over pairs of different images (Wang & Isola, 2020, t = 2).
    0 for a collapsed representation, down to about -4 for one spread over the sphere."""
    if len(features) < 2:
        return None
    unit = functional.normalize(features.double(), dim=1)
    distance = (2 - 2 * unit @ unit.T).clamp_min(0)
    pairs = len(unit) * (len(unit) - 1)
    apart = torch.exp(-2 * distance).fill_diagonal_(0)
    return math.log(float(apart.sum()) / pairs)


def health(features: Tensor, views: tuple[Tensor, Tensor] | None = None) -> Health:
    """The numbers for features [N, d] (a fixed subset of them); `alignment` only if two views' embeddings are given."""
    features = features[fixed_subset(len(features), HEALTH_IMAGES).to(features.device)].cpu()
    deviation, dimension = feature_deviation(features), features.shape[1]
    return Health(
        dimension=dimension,
        feature_deviation=deviation,
        spread=deviation * math.sqrt(dimension),
        effective_rank=effective_rank(features),
        uniformity=uniformity(features[:: max(1, len(features) // 2048)]),
        alignment=None if views is None else alignment(*views),
    )


def embed_two_views(
    encoder: nn.Module, benchmark: Benchmark, device: torch.device | str = "cpu"
) -> tuple[Tensor, Tensor]:
    """Features of the paper's two views of some bank images, always the same ones: what `alignment` compares."""
    images = benchmark.bank.images.take(fixed_subset(len(benchmark.bank), ALIGNMENT_IMAGES)).to(device)
    views = TwoViews(benchmark.mean, benchmark.std)(images, generator(0, "health"))
    with evaluating(encoder):
        first, second = (encoder(view).float().cpu() for view in views)
    return first, second


def collapsed(numbers: Health) -> str | None:
    """A warning if the representation has collapsed, else None.

    `spread` is the feature deviation relative to 1 / sqrt(d). Untrained encoders of this family have a spread of 0.1
    to 0.4 and an effective rank above 10 on CIFAR-100; the thresholds are well below that. The spread detects that all
    images are in one point (the rank then measures noise), the rank that only a few directions are left.
    """
    spread, rank, dimension = numbers.spread, numbers.effective_rank, numbers.dimension
    if spread < COLLAPSED_SPREAD:
        how = f": features of different images are almost the same (spread {spread:.3f}, below {COLLAPSED_SPREAD})"
    elif dimension >= 16 and rank < COLLAPSED_RANK:
        how = f" to {rank:.1f} effective dimensions of {dimension}"
    else:
        return None
    return f"the representation has collapsed{how}. Lower the learning rate or check that the loss has negatives."
