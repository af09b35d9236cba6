"""Tags from few examples: ridge regression or class means on L2-normalised features, judged by leaving one out."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize, one_hot

RIDGES = (3.0, 1.0, 0.3, 0.1, 0.03, 0.01)
"""Relative to the mean square of the centred features; the first of the best counts."""
TEMPERATURES = tuple(0.02 * 1.25**power for power in range(24))
STRANGE = 0.15
"""An image gets a tag only if it is more like the tag's examples, and has a higher score, than this part of the
examples themselves."""


@dataclass(frozen=True)
class Tagger:
    """Classifies features [N, d]; every tag has two examples or more."""

    examples: Tensor
    """float64 [n, d], of length 1."""
    label: Tensor
    centre: Tensor
    weight: Tensor
    """float64 [d, tags]"""
    bias: Tensor
    temperature: float
    least: tuple[float, float]
    """Score of its tag, and cosine to the tag's most similar example, that an image needs."""
    left_out: Tensor
    """float64 [n, tags]: the scores of each example by a classifier of the others."""

    @property
    def hits(self) -> Tensor:
        """bool [n]: examples whose tag was found without them."""
        return self.left_out.argmax(dim=1) == self.label

    def __call__(self, features: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(tag, its probability, whether the image is like the examples of the tag), each [N]."""
        rows = normalize(features.double(), dim=1)
        scores = (rows - self.centre) @ self.weight + self.bias
        confidence, tag = (scores / self.temperature).softmax(dim=1).max(dim=1)
        like = torch.stack([(rows @ self.examples[self.label == one].T).amax(dim=1) for one in range(scores.shape[1])])
        known = (scores.amax(dim=1) >= self.least[0]) & (like[tag, torch.arange(len(rows))] >= self.least[1])
        return tag, confidence, known


def fit_ridge(features: Tensor, label: Tensor) -> Tagger:
    """The ridge is that with most hits among examples that were left out. Every tag weighs the same."""
    rows, targets = normalize(features.double(), dim=1), one_hot(label).double()
    weights = 1 / targets.sum(dim=0)[label]
    weights *= len(rows) / weights.sum()
    centre, bias = (weights[:, None] * rows).mean(dim=0), (weights[:, None] * targets).mean(dim=0)
    root = weights.sqrt()[:, None]
    scaled, wanted = root * (rows - centre), root * (targets - bias)
    values, vectors = torch.linalg.eigh(scaled @ scaled.T)
    values, turned = values.clamp_min(0), vectors.T @ wanted
    best: tuple[int, Tensor, Tensor] | None = None
    for ridge in RIDGES:
        shrink = 1 / (values + ridge * values.mean())
        own = (vectors.square() @ (values * shrink))[:, None] + weights[:, None] / len(rows)  # of the hat matrix
        fitted = vectors @ (turned * (values * shrink)[:, None]) + root * bias
        left_out = (fitted / root - own * targets) / (1 - own).clamp_min(1e-9)
        hits = int((left_out.argmax(dim=1) == label).sum())
        if best is None or hits > best[0]:
            best = hits, scaled.T @ (vectors @ (turned * shrink[:, None])), left_out
    assert best is not None
    return _judged(rows, label, centre, best[1], bias, best[2])


def fit_means(features: Tensor, label: Tensor) -> Tagger:
    """The cosine to the mean of each tag's examples."""
    rows, targets = normalize(features.double(), dim=1), one_hot(label).double()
    sums = targets.T @ rows
    means = normalize(sums, dim=1)
    left_out = rows @ means.T
    own = normalize(sums[label] - rows, dim=1)
    left_out[torch.arange(len(rows)), label] = (own * rows).sum(dim=1)
    zero = torch.zeros(rows.shape[1], dtype=torch.float64)
    return _judged(rows, label, zero, means.T, zero.new_zeros(len(means)), left_out)


def _judged(rows: Tensor, label: Tensor, centre: Tensor, weight: Tensor, bias: Tensor, left_out: Tensor) -> Tagger:
    losses = [(-(left_out / one).log_softmax(dim=1)[torch.arange(len(rows)), label]).mean() for one in TEMPERATURES]
    temperature = TEMPERATURES[int(torch.stack(losses).argmin())]
    cosines = rows @ rows.T
    cosines[(label[:, None] != label) | torch.eye(len(rows), dtype=torch.bool)] = -1
    score = left_out[torch.arange(len(rows)), label][left_out.argmax(dim=1) == label]
    least = float(score.quantile(STRANGE)) if len(score) else torch.inf, float(cosines.amax(dim=1).quantile(STRANGE))
    return Tagger(rows, label, centre, weight, bias, temperature, least, left_out)
