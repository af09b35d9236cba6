import math

import numpy as np
import pytest
import torch

from osiris.evaluation.health import alignment, collapsed, effective_rank, feature_deviation, health, uniformity


def test_evenly_spread_features_are_healthy():
    numbers = health(torch.randn(3000, 64, generator=torch.Generator().manual_seed(0)))
    assert numbers.feature_deviation == pytest.approx(1 / 8, rel=0.01)
    assert numbers.spread == pytest.approx(1, rel=0.01)
    assert numbers.effective_rank == pytest.approx(64, rel=0.02)
    assert numbers.uniformity == pytest.approx(-3.9, abs=0.15)
    assert numbers.alignment is None
    assert collapsed(numbers) is None


def test_one_point_is_a_collapse():
    features = torch.ones(500, 64) + 1e-3 * torch.randn(500, 64)
    assert "almost the same" in (collapsed(health(features)) or "")
    assert health(torch.ones(500, 64)).uniformity == pytest.approx(0, abs=1e-9)


def test_two_directions_are_a_collapse():
    features = torch.randn(500, 2) @ torch.randn(2, 64)
    numbers = health(features)
    assert numbers.effective_rank == pytest.approx(2, abs=0.1) and numbers.spread > 0.5
    assert "effective dimensions" in (collapsed(numbers) or "")


def test_effective_rank_against_the_singular_values():
    features = torch.randn(50, 8) * torch.arange(1, 9)
    rows = features.numpy().astype(np.float64)
    singular = np.linalg.svd(rows / np.linalg.norm(rows, axis=1, keepdims=True), compute_uv=False)
    share = singular / singular.sum()
    assert effective_rank(features) == pytest.approx(math.exp(-(share * np.log(share)).sum()))


def test_uniformity_and_alignment_against_loops():
    first, second = torch.randn(20, 5), torch.randn(20, 5)
    a, b = (rows.numpy() / np.linalg.norm(rows.numpy(), axis=1, keepdims=True) for rows in (first, second))
    pairs = [math.exp(-2 * ((a[i] - a[j]) ** 2).sum()) for i in range(20) for j in range(20) if i != j]
    assert uniformity(first) == pytest.approx(math.log(np.mean(pairs)), rel=1e-5)
    assert alignment(first, second) == pytest.approx(np.mean([((a[i] - b[i]) ** 2).sum() for i in range(20)]), rel=1e-5)
    assert alignment(first, 3 * first) == pytest.approx(0, abs=1e-12)


def test_edges():
    assert uniformity(torch.randn(1, 4)) is None
    assert effective_rank(torch.zeros(3, 4)) == 0
    assert feature_deviation(torch.randn(1, 4)) == 0
    assert health(torch.randn(30, 4), (torch.ones(2, 4), torch.ones(2, 4))).alignment == 0
