"""Whitening against its definition, and what it must survive."""

import torch

from osiris.exact import whitening
from osiris.exact.moments import Moments
from osiris.exact.whitening import Spectrum, whitened


def stretched(count: int, seed: int = 0) -> torch.Tensor:
    """Rows that vary a thousand times as much in one direction as in the last."""
    rows = torch.randn(count, 4, generator=torch.Generator().manual_seed(seed))
    return rows * torch.tensor([30.0, 10.0, 3.0, 1.0]) + torch.tensor([5.0, -2.0, 0.0, 1.0])


def test_all_directions_count_alike() -> None:
    bank, test = whitened(stretched(5000), stretched(50, 1), ridge=1e-9)
    assert torch.allclose(Moments.of(bank).covariance, torch.eye(4, dtype=torch.float64), atol=1e-3)
    assert bank.dtype == torch.float32 and test.shape == (50, 4)
    assert torch.allclose(bank.mean(0), torch.zeros(4), atol=1e-3)


def test_the_ridge_is_a_part_of_the_largest_variance() -> None:
    bank = whitened(stretched(5000), ridge=0.5)[0]
    spectrum = Spectrum.of(Moments.of(stretched(5000)).covariance)
    expected = spectrum.variances / (spectrum.variances + 0.5 * spectrum.variances.max())
    assert torch.allclose(Moments.of(bank).covariance.diagonal(), expected, rtol=1e-4)


def test_rows_that_are_all_the_same() -> None:
    bank, test = whitened(torch.ones(5, 3), torch.zeros(1, 3))
    assert bank.abs().max() == 0 and bool(test.isfinite().all())


def test_many_numbers_are_projected_first(monkeypatch) -> None:
    monkeypatch.setattr(whitening, "LARGEST", 3)
    monkeypatch.setattr(whitening, "RANDOM", 2)
    bank, test = whitened(stretched(100), stretched(7, 1))
    assert bank.shape == (100, 2) and test.shape == (7, 2)
