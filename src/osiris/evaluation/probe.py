"""Linear probe: ridge regression of one-hot classes on frozen features, in closed form; it answers the same questions
as the KNN.

Features are centred and scaled to unit variance over the bank images that vote. The weights minimise

    |Y - X W|^2 / n + ridge |W|^2

and a class is predicted by its largest output. The ridge is the value of `RIDGES` with most hits on a held-out fifth of
these bank images (ties: the largest); the probe is then fitted on all of them. In float64, on the CPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as functional
from torch import Tensor

from osiris.evaluation.knn import DEPTH, Question, Ranking
from osiris.exact.moments import ROWS, Moments
from osiris.exact.whitening import narrowed
from osiris.randomness import generator

RIDGES = (10.0, 1.0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5)
"""Relative to the variance of a feature, which is one."""
USUAL = 1e-2
"""Of a bank that is too small to hold a fifth out."""
SMALLEST = 1e-12
"""Variance as a part of the mean square: a feature with less is constant up to the rounding of float32."""


@dataclass(frozen=True)
class Probe:
    """A linear classifier of features [N, d]."""

    mean: Tensor
    weight: Tensor
    """float64 [d, classes], for features from which the mean was taken."""
    bias: Tensor
    ridge: float

    def outputs(self, features: Tensor) -> Tensor:
        """float64 [N, classes]"""
        parts = (part.to("cpu", torch.float64) - self.mean for part in features.split(ROWS))
        return torch.cat([part @ self.weight + self.bias for part in parts])


def fit(features: Tensor, label: Tensor, class_count: int) -> Probe:
    """The probe with the ridge that is best on the held-out fifth."""
    order = torch.randperm(len(features), generator=generator(0, "probe", len(features)))
    held_out, fitted = order[: len(order) // 5], order[len(order) // 5 :]
    best = USUAL
    if len(held_out):
        tried = solutions(features[fitted.to(features.device)], label[fitted], class_count, RIDGES)
        queries, truth = features[held_out.to(features.device)], label[held_out]
        hits = [int((one.outputs(queries).argmax(dim=1) == truth).sum()) for one in tried]
        best = tried[hits.index(max(hits))].ridge
    return solutions(features, label, class_count, [best])[0]


def solutions(features: Tensor, label: Tensor, class_count: int, ridges: Sequence[float]) -> list[Probe]:
    """The minimum for each ridge: normal equations of the features, or of the images if these are fewer."""
    (images, dimension), rows = features.shape, None
    targets = functional.one_hot(label, class_count)
    bias = targets.double().mean(dim=0)
    if images >= dimension:
        moments = Moments.of(torch.cat([features, targets.to(features)], dim=1))
        mean, covariance = moments.mean[:dimension], moments.covariance[:dimension]
        scale = _scale(mean, covariance.diagonal())
        matrix, right = covariance[:, :dimension] * scale * scale[:, None], covariance[:, dimension:] * scale[:, None]
    else:
        rows = features.to("cpu", torch.float64)
        mean = rows.mean(dim=0)
        scale = _scale(mean, rows.var(dim=0, correction=0))
        rows = (rows - mean) * scale
        matrix, right = rows @ rows.T / images, targets - bias
    found = []
    for ridge in ridges:
        root = torch.linalg.cholesky(matrix + ridge * torch.eye(len(matrix), dtype=torch.float64))
        weight = torch.cholesky_solve(right, root)
        weight = weight if rows is None else rows.T @ weight / images
        found.append(Probe(mean, scale[:, None] * weight, bias, ridge))
    return found


def _scale(mean: Tensor, variance: Tensor) -> Tensor:
    """One over the deviation of each feature; 0 for one that is constant."""
    return torch.where(variance > SMALLEST * mean.square(), variance.clamp_min(1e-300).rsqrt(), 0.0)


def ask(bank: Tensor, test: Tensor, questions: Sequence[Question]) -> dict[str, Ranking]:
    """Question -> answer, as `osiris.evaluation.knn.ask`. A question with a part of the bank for each group of test
    images is answered by one probe for each group; those about the whole bank share one."""
    bank, test = narrowed(bank, test)
    answers, whole = {}, None
    for question in questions:
        if question.columns is None:
            whole = whole or _outputs(bank, test, question)
        outputs, ridges = whole if whole is not None and question.columns is None else _outputs(bank, test, question)
        if question.allowed is not None:
            assert question.group is not None
            outputs = outputs.masked_fill(~question.allowed[question.group], -torch.inf)
        answers[question.name] = Ranking(_ranked(outputs), (), ridges)
    return answers


def _outputs(bank: Tensor, test: Tensor, question: Question) -> tuple[Tensor, tuple[float | None, ...]]:
    """(float64 [test, classes], -inf for classes that no image of the bank votes for; the ridge of each probe)"""
    outputs = torch.full((len(test), question.class_count), -torch.inf, dtype=torch.float64)
    columns = question.columns or (torch.arange(len(bank)),)
    group = torch.zeros(len(test), dtype=torch.int64) if question.columns is None else question.group
    assert group is not None
    ridges: list[float | None] = []
    for number, rows in enumerate(columns):
        queries = (group == number).nonzero().squeeze(1)
        if len(rows) == 0 or len(queries) == 0:
            ridges.append(None)
            continue
        known, label = question.bank_class[rows].unique(return_inverse=True)
        probe = fit(bank[rows.to(bank.device)], label, len(known))
        outputs[queries.unsqueeze(1), known] = probe.outputs(test[queries.to(test.device)])
        ridges.append(probe.ridge)
    return outputs, tuple(ridges)


def _ranked(outputs: Tensor) -> Tensor:
    """int64 [rows, 5]: classes by decreasing output, equal ones by increasing index, -1 for those without one."""
    values, classes = outputs.sort(dim=1, descending=True, stable=True)
    ranking = torch.full((len(outputs), DEPTH), -1, dtype=torch.int64)
    kept = classes[:, :DEPTH].masked_fill(values[:, :DEPTH] == -torch.inf, -1)
    ranking[:, : kept.shape[1]] = kept
    return ranking
