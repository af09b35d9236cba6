import numpy as np
import pytest
import torch

from osiris.evaluation.config import PROTOCOLS
from osiris.evaluation.features import Features
from osiris.evaluation.probe import L2_GRID, fit, fit_with, probe


def test_the_minimum_is_the_minimum():
    """The gradient of the objective, written out in NumPy, vanishes at the solution."""
    random = torch.Generator().manual_seed(0)
    features, label = torch.randn(120, 5, generator=random), torch.randint(0, 3, (120,), generator=random)
    fitted = fit_with(features, label, 3, l2=0.01)
    inputs = (features.numpy() - features.numpy().mean(0)) / features.numpy().std(0)
    logits = inputs @ fitted.weight.numpy().T + fitted.bias.numpy()
    share = np.exp(logits) / np.exp(logits).sum(1, keepdims=True) - np.eye(3)[label.numpy()]
    assert np.abs(share.T @ inputs / 120 + 0.01 * fitted.weight.numpy()).max() < 1e-4
    assert np.abs(share.mean(0)).max() < 1e-4


def test_the_start_changes_nothing_but_the_time():
    features, label = torch.randn(100, 4), torch.arange(100) % 3
    cold = fit_with(features, label, 3, 0.01)
    warm = fit_with(features, label, 3, 0.01, fit_with(features, label, 3, 1.0))
    torch.testing.assert_close(cold.weight, warm.weight, atol=2e-3, rtol=0)


def test_l2_is_chosen_on_held_out_images():
    """200 noise features for 100 images: only strong regularisation generalises. Few features: weak is as good."""
    random = torch.Generator().manual_seed(1)
    label = torch.arange(100) % 2
    noisy = torch.randn(100, 200, generator=random)
    noisy[:, 0] += 2 * label
    assert fit(noisy, label, 2).l2 >= 1e-2
    narrow = torch.randn(4000, 2, generator=random) * torch.tensor([0.02, 1.0])
    mixed = (narrow[:, 0] > 0.0).long()
    assert fit(narrow, mixed, 2).l2 < max(L2_GRID)


def test_all_protocols_on_separable_features(make_benchmark):
    bank_label, test_label = torch.arange(240) % 6, torch.arange(60) % 6
    benchmark = make_benchmark(bank_label, test_label, ((4, 1), (0, 5), (3, 2)))
    centres = 4 * torch.randn(6, 10, generator=torch.Generator().manual_seed(0))
    features = Features(centres[bank_label] + torch.randn(240, 10), centres[test_label] + torch.randn(60, 10))
    numbers = probe(features, benchmark, PROTOCOLS)
    for name in PROTOCOLS:
        assert min(value or 0 for value in numbers[name].accuracy) > 95, name
    assert len(numbers["task-aware"].l2) == 3 and len(numbers["class-agnostic"].l2) == 1


def test_tiny_banks_and_constant_features():
    fitted = fit(torch.tensor([[1.0, 7.0], [2.0, 7.0], [3.0, 7.0]]), torch.tensor([0, 0, 1]), 2)
    assert torch.isfinite(fitted.logits(torch.tensor([[2.5, 7.0]]))).all()
    assert fitted.scale[1] == 0 and fitted.l2 == pytest.approx(1e-3)
