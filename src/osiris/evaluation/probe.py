"""Linear probe: multinomial logistic regression on frozen, standardised features, under the same protocols as the KNN.

The loss is mean cross-entropy + L2 / 2 * |W|^2, minimised on the full batch by L-BFGS. L2 is the value of the grid with
the best accuracy on a held-out fifth of the bank (ties: the stronger); the probe is then fitted on the whole bank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as functional
from torch import Tensor

from osiris.data.benchmark import Benchmark
from osiris.evaluation.features import Features
from osiris.evaluation.metrics import percent_by
from osiris.evaluation.protocols import labels_of_test, membership
from osiris.evaluation.scores import ProbeScores
from osiris.randomness import generator

L2_GRID = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5)
"""From strong to weak: each fit starts from the one before."""
ITERATIONS = 100


@dataclass(frozen=True)
class LinearProbe:
    mean: Tensor
    scale: Tensor
    weight: Tensor
    bias: Tensor
    l2: float

    def logits(self, features: Tensor) -> Tensor:
        return functional.linear((features.float() - self.mean) * self.scale, self.weight, self.bias)


def fit(features: Tensor, label: Tensor, class_count: int) -> LinearProbe:
    """The probe with the L2 that is best on the held-out fifth."""
    order = torch.randperm(len(features), generator=generator(0, "probe", len(features))).to(features.device)
    held_out, fitted = order[: len(order) // 5], order[len(order) // 5 :]
    best, best_hits = L2_GRID[len(L2_GRID) // 2], -1
    if len(held_out):
        start = None
        for l2 in L2_GRID:
            start = fit_with(features[fitted], label[fitted], class_count, l2, start)
            hits = int((start.logits(features[held_out]).argmax(dim=1) == label[held_out]).sum())
            if hits > best_hits:
                best, best_hits = l2, hits
    return fit_with(features, label, class_count, best)


def fit_with(
    features: Tensor, label: Tensor, class_count: int, l2: float, start: LinearProbe | None = None
) -> LinearProbe:
    """The minimum for one L2. The problem is convex: `start` changes the time, not the result."""
    features = features.float()
    mean = features.mean(dim=0)
    deviation = features.std(dim=0, correction=0)
    scale = torch.where(deviation > 1e-6 * deviation.max().clamp_min(1e-12), 1 / deviation, 0.0)
    inputs = (features - mean) * scale
    shape = (class_count, features.shape[1])
    weight = (torch.zeros(shape, device=features.device) if start is None else start.weight.clone()).requires_grad_()
    bias = (torch.zeros(class_count, device=features.device) if start is None else start.bias.clone()).requires_grad_()
    optimiser = torch.optim.LBFGS(
        [weight, bias], max_iter=ITERATIONS, history_size=10, tolerance_grad=1e-5, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        optimiser.zero_grad()
        loss = functional.cross_entropy(functional.linear(inputs, weight, bias), label)
        loss = loss + l2 / 2 * weight.square().sum()
        loss.backward()
        return loss

    with torch.enable_grad():
        optimiser.step(closure)  # pyright: ignore[reportArgumentType]
    return LinearProbe(mean, scale, weight.detach(), bias.detach(), l2)


def probe(features: Features, benchmark: Benchmark, protocols: Sequence[str]) -> dict[str, ProbeScores]:
    """By protocol: `accuracy` per task in percent (None without test images) and the chosen `l2` of each classifier.

    class-agnostic: one classifier of all classes. task-aware: one for each task, fitted on the images of its classes.
    task-aware-masked: the classifier of all classes, its answers masked to the task's classes.
    """
    assert features.test is not None
    label, task = labels_of_test(benchmark)
    everything = torch.zeros(len(task), dtype=torch.int64)
    scores, whole = {}, None
    for name in protocols:
        if name == "task-aware":
            logits, l2 = _group_logits(features, benchmark, benchmark.tasks, task)
        else:
            whole = whole or _group_logits(features, benchmark, [range(benchmark.class_count)], everything)
            logits, l2 = whole
        if name == "task-aware-masked":
            allowed = membership(benchmark.tasks, benchmark.class_count)[task]
            logits = logits.masked_fill(~allowed, -torch.inf)
        accuracy = percent_by(logits.argmax(dim=1) == label, task, benchmark.task_count)
        scores[name] = ProbeScores(accuracy=accuracy, l2=l2)
    return scores


def _group_logits(
    features: Features, benchmark: Benchmark, groups: Sequence[Sequence[int]], group: Tensor
) -> tuple[Tensor, list[float | None]]:
    """(logits [test images, classes] of one classifier per group of classes, -inf for classes of other groups; L2 of
    each classifier). `group`: the group of each test image."""
    label, device = benchmark.bank.label, features.bank.device
    assert features.test is not None and label is not None
    logits = torch.full((len(group), benchmark.class_count), -torch.inf)
    chosen: list[float | None] = []
    for number, classes in enumerate(groups):
        known = torch.tensor(sorted(classes), dtype=torch.int64)
        rows = torch.isin(label, known).nonzero().squeeze(1)
        queries = (group == number).nonzero().squeeze(1)
        if len(rows) == 0 or len(queries) == 0:
            chosen.append(None)
            continue
        classifier = fit(features.bank[rows.to(device)], torch.searchsorted(known, label[rows]).to(device), len(known))
        logits[queries.unsqueeze(1), known] = classifier.logits(features.test[queries.to(device)]).cpu()
        chosen.append(classifier.l2)
    return logits, chosen
