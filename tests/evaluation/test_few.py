"""Tags from few examples: leaving one out against doing it, and images that are like no example."""

import pytest
import torch
from torch import Tensor

from osiris.evaluation.few import RIDGES, fit_means, fit_ridge


def examples(per_class: int, size: int = 30, classes: int = 4, noise: float = 0.7) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(per_class)
    centres = torch.randn(classes, size, generator=torch.Generator().manual_seed(0))
    label = torch.arange(classes).repeat_interleave(per_class)
    return centres[label] + noise * torch.randn(len(label), size, generator=random), label


def test_left_out_scores_are_those_of_class_means_without_the_example() -> None:
    features, label = examples(5)
    found = fit_means(features, label).left_out
    for row in range(len(label)):
        others = torch.arange(len(label)) != row
        rest = torch.nn.functional.normalize(features[others].double(), dim=1)
        means = torch.stack([rest[label[others] == one].sum(0) for one in range(4)])
        expected = torch.nn.functional.cosine_similarity(features[row].double()[None], means)
        torch.testing.assert_close(found[row], expected)


def test_left_out_scores_are_those_of_ridge_without_the_example() -> None:
    """With the same weights and ridge: the solution without the example, with its own intercept."""
    features, label = examples(6)
    tagger = fit_ridge(features, label)
    rows = torch.nn.functional.normalize(features.double(), dim=1)
    targets = torch.nn.functional.one_hot(label).double()
    centred = rows - rows.mean(0)
    penalties = [ridge * float(torch.linalg.eigvalsh(centred @ centred.T).mean()) for ridge in RIDGES]

    def solved(kept: Tensor, penalty: float) -> tuple[Tensor, Tensor, Tensor]:
        mean, bias = rows[kept].mean(0), targets[kept].mean(0)
        x = rows[kept] - mean
        gram = x.T @ x + penalty * torch.eye(rows.shape[1], dtype=torch.float64)
        return mean, bias, torch.linalg.solve(gram, x.T @ (targets[kept] - bias))

    everything = torch.arange(len(label))
    errors = []
    for penalty in penalties:
        worst = 0.0
        for row in range(len(label)):
            mean, bias, weight = solved(everything[everything != row], penalty)
            worst = max(worst, float(((rows[row] - mean) @ weight + bias - tagger.left_out[row]).abs().max()))
        errors.append(worst)
    assert min(errors) < 1e-9, "of one of the ridges"
    mean, bias, weight = solved(everything, penalties[errors.index(min(errors))])
    torch.testing.assert_close((rows - tagger.centre) @ tagger.weight + tagger.bias, (rows - mean) @ weight + bias)


def test_leaving_out_shows_that_there_is_nothing_to_learn() -> None:
    label = torch.arange(4).repeat_interleave(5)
    features = torch.randn(20, 50, generator=torch.Generator().manual_seed(3))
    for fit in (fit_means, fit_ridge):
        tagger = fit(features, label)
        assert tagger.hits.double().mean() < 0.6
        _, confidence, _ = tagger(torch.randn(200, 50, generator=torch.Generator().manual_seed(4)))
        assert confidence.mean() < 0.6


@pytest.mark.parametrize("fit", [fit_means, fit_ridge])
def test_tags_and_strangers(fit) -> None:
    features, label = examples(8)
    tagger = fit(features, label)
    assert tagger.hits.double().mean() > 0.9
    more, truth = examples(40)
    tag, confidence, like = tagger(more)
    assert (tag == truth).double().mean() > 0.95 and like.double().mean() > 0.5
    right = (tag == truth).double().mean()
    assert abs(float(confidence.mean() - right)) < 0.2
    strange = torch.randn(200, 30, generator=torch.Generator().manual_seed(9))
    _, confidence, like = tagger(strange)
    assert (like & (confidence >= 0.5)).double().mean() < 0.1


def test_tags_weigh_the_same_whatever_their_number_of_examples() -> None:
    features, label = examples(40, noise=1.5)
    kept = torch.cat([torch.arange(40), torch.arange(40, 160, 10)])  # 40 of the first, 4 of each other one
    more, truth = examples(100, noise=1.5)
    tag, _, _ = fit_ridge(features[kept], label[kept])(more)
    assert (tag == 0).double().mean() < 0.4 and (tag == truth).double().mean() > 0.6
