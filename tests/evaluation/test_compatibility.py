import numpy as np
import pytest
import torch

from osiris.evaluation.compatibility import PENALTIES, apply_map, fit_map, recall_at


def unit(features: torch.Tensor) -> np.ndarray:
    rows = features.numpy().astype(np.float64)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def naive_map(rows: np.ndarray, target: np.ndarray, penalty: float) -> np.ndarray:
    inverse = np.linalg.inv(rows @ rows.T + penalty * np.eye(len(rows)))
    return np.eye(rows.shape[1]) + rows.T @ inverse @ (target - rows)


def naive_error(rows: np.ndarray, target: np.ndarray, penalty: float) -> float:
    """Each pair is left out of a fit of its own."""
    error = 0.0
    for i in range(len(rows)):
        others = np.arange(len(rows)) != i
        weight = naive_map(rows[others], target[others], penalty)
        error += float(((rows[i] @ weight - target[i]) ** 2).sum())
    return error


def pairs(n: int, d: int, noise: float) -> tuple[torch.Tensor, torch.Tensor]:
    old = torch.randn(n, d) * torch.linspace(2, 0.2, d)
    return old, old @ (torch.eye(d) + 0.3 * torch.randn(d, d)) + noise * torch.randn(n, d)


@pytest.mark.parametrize(("n", "d"), [(12, 20), (40, 8), (8, 8), (2, 5), (1, 3)])
@pytest.mark.parametrize("noise", [0.0, 0.3, 30.0])
def test_the_map_is_the_ridge_with_the_least_leave_one_out_error(n: int, d: int, noise: float):
    old, new = pairs(n, d, noise)
    rows, target = unit(old), unit(new)
    errors = [naive_error(rows, target, penalty) for penalty in PENALTIES]
    expected = naive_map(rows, target, PENALTIES[int(np.argmin(errors))])
    np.testing.assert_allclose(fit_map(old, new).numpy(), expected, atol=1e-5)


def test_the_noise_decides_the_penalty():
    """The cases above are no test of the choice if it is always the same."""
    chosen = set()
    for noise in (0.0, 0.3, 30.0):
        old, new = pairs(40, 8, noise)
        chosen.add(int(np.argmin([naive_error(unit(old), unit(new), penalty) for penalty in PENALTIES])))
    assert len(chosen) > 1


def test_the_map_ignores_lengths_and_undoes_a_rotation():
    old = torch.randn(200, 16)
    rotation, _ = torch.linalg.qr(torch.randn(16, 16))
    new = old @ rotation
    weight = fit_map(old, new)
    assert torch.allclose(weight, rotation, atol=1e-3)
    assert torch.allclose(fit_map(old * torch.rand(200, 1), 3 * new), weight, atol=1e-5)
    unseen = torch.randn(10, 16)
    mapped = apply_map(7 * unseen, weight).numpy()
    np.testing.assert_allclose(mapped, unit(unseen @ weight), atol=1e-5)
    np.testing.assert_allclose(mapped, unit(unseen @ rotation), atol=1e-2)


def test_equal_vectors_give_the_identity():
    old = torch.randn(5, 9)
    assert torch.equal(fit_map(old, old), torch.eye(9))


def test_recall_is_the_share_of_true_neighbours():
    found = torch.stack([torch.randperm(30)[:12] for _ in range(25)])
    truth = torch.stack([torch.randperm(30)[:11] for _ in range(25)])
    shares = [len(set(a[:10]) & set(b[:10])) / 10 for a, b in zip(found.tolist(), truth.tolist())]
    assert recall_at(10, found, truth) == pytest.approx(np.mean(shares))
    assert recall_at(3, torch.tensor([[1, 2, 3, 4]]), torch.tensor([[3, 2, 9, 1]])) == pytest.approx(2 / 3)
    assert recall_at(2, torch.tensor([[5, 6]]), torch.tensor([[6, 5]])) == 1
