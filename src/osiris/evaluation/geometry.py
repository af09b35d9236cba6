"""Arrays for figures from a checkpoint's test features: similarities between classes, a projection, neighbours."""

from __future__ import annotations

import torch
import torch.nn.functional as functional
from scipy.sparse.linalg import LinearOperator, eigsh
from torch import Tensor

from osiris.evaluation.health import fixed_subset
from osiris.evaluation.knn import full_precision, neighbours_of
from osiris.randomness import generator

HISTOGRAM_BINS = 200
HISTOGRAM_IMAGES = 5000
HISTOGRAM_ROWS = 250
PROJECTED_IMAGES = 1000
WIDE = 1024
"""Features of which all axes are computed."""
NEIGHBOUR_IMAGES = 50
NEIGHBOURS = 5


def class_similarity(features: Tensor, label: Tensor, class_count: int) -> Tensor:
    """float32 [C, C]: mean cosine similarity between images of two classes (Fig. 4), by label; an image is not paired
    with itself. NaN where there is no pair."""
    unit = functional.normalize(features.float(), dim=1).cpu().double()
    total = torch.zeros(class_count, unit.shape[1], dtype=torch.float64).index_add_(0, label, unit)
    count = torch.bincount(label, minlength=class_count).double()
    with_itself = torch.zeros(class_count, dtype=torch.float64).index_add_(0, label, unit.square().sum(dim=1))
    similarity = total @ total.T - torch.diag(with_itself)
    pairs = torch.outer(count, count) - torch.diag(count)
    return torch.where(pairs > 0, similarity / pairs.clamp_min(1), torch.nan).float()


def similarity_histogram(features: Tensor, label: Tensor) -> Tensor:
    """int64 [2, 200]: cosine similarities of pairs of different images in equal bins on [-1, 1] (Fig. 7); row 0 counts
    pairs of the same class, row 1 pairs of different classes. Every pair counts once."""
    chosen = fixed_subset(len(features), HISTOGRAM_IMAGES)
    unit = functional.normalize(features[chosen.to(features.device)].float(), dim=1)
    label = label[chosen].to(unit.device)
    counts = torch.zeros(2 * HISTOGRAM_BINS, dtype=torch.int64)
    for start in range(0, len(unit), HISTOGRAM_ROWS):
        rows = unit[start : start + HISTOGRAM_ROWS]
        with full_precision(), torch.autocast(unit.device.type, enabled=False):
            similarity = rows @ unit[start:].T
        place = similarity.add_(1).mul_(HISTOGRAM_BINS / 2).clamp_(0, HISTOGRAM_BINS - 1).int()
        place.add_(label[start : start + len(rows), None] != label[start:], alpha=HISTOGRAM_BINS)
        triangle, rest = place.split([len(rows), place.shape[1] - len(rows)], dim=1)
        once = torch.ones_like(triangle, dtype=torch.bool).triu(diagonal=1)
        for pairs in (triangle[once], rest.flatten()):
            counts += torch.bincount(pairs, minlength=2 * HISTOGRAM_BINS).cpu()
    return counts.view(2, HISTOGRAM_BINS)


def projection(bank: Tensor, test: Tensor) -> tuple[Tensor, Tensor]:
    """(indices int32 [n], float32 [n, 2]): some test images on the two main axes of the bank's normalised features.

    The sign of an axis is arbitrary; here its largest coordinate is positive.
    """
    chosen = fixed_subset(len(test), PROJECTED_IMAGES)
    unit = functional.normalize(bank.float(), dim=1).cpu()
    mean = unit.mean(dim=0)
    axes = _main_axes((unit - mean).double())
    largest = axes.abs().argmax(dim=0, keepdim=True)
    axes = axes * torch.where(axes.gather(0, largest) < 0, -1.0, 1.0)
    points = (functional.normalize(test[chosen.to(test.device)].float(), dim=1).cpu() - mean).double() @ axes
    points = functional.pad(points, (0, 2 - points.shape[1]))
    return chosen.int(), points.float().contiguous()


def _main_axes(centred: Tensor) -> Tensor:
    """float64 [D, at most 2]: the two main axes of rows [N, D]. Of wide rows not all axes are computed, which would
    take longer than the method `smt` learns."""
    images, width = centred.shape
    if width <= WIDE:
        return torch.linalg.eigh(centred.T @ centred)[1].flip(1)[:, :2]
    if images <= WIDE:
        axes = centred.T @ torch.linalg.eigh(centred @ centred.T)[1].flip(1)[:, :2]
        return functional.normalize(axes, dim=0)
    if not centred.any():
        return centred.new_zeros(width, 2)
    rows, start = centred.numpy(), torch.randn(width, generator=generator(0, "projection"), dtype=torch.float64).numpy()
    square = LinearOperator((width, width), matvec=lambda one: rows.T @ (rows @ one), dtype=rows.dtype)  # pyright: ignore
    return torch.from_numpy(eigsh(square, k=2, v0=start)[1]).flip(1)


def neighbours_of_some(bank: Tensor, test: Tensor | None) -> tuple[Tensor, Tensor]:
    """(indices int32 [n], int32 [n, 5]): some test images and their nearest bank images, nearest first. Without test
    images: some bank images and the nearest others."""
    queries = bank if test is None else test
    chosen = fixed_subset(len(queries), NEIGHBOUR_IMAGES)
    own = chosen if test is None else None
    return chosen.int(), neighbours_of(bank, queries[chosen.to(queries.device)], NEIGHBOURS, own)[1].int()
