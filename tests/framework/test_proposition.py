"""Proposition 1 (Appendix A): what LUMP's loss does to the representations of x and y.

For one anchor and unnormalised mixtures z~ = nu z + (1 - nu) u, the gradient of the loss by z_i at one nu is

    (p_i - 1) nu^2 z_i' + (p_i - 1) nu (1 - nu) u_i' + sum_j p_j nu^2 z_j + sum_j p_j nu (1 - nu) u_j

and with respect to u_i the same with nu and 1 - nu exchanged. Here p are softmax probabilities, which depend on nu: the
expectation of a product is not the product of expectations. The paper's proof takes p out of the expectation; the
*signs* hold without that step, the factorised coefficients are an approximation whose error is measured below.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import special
from torch import Tensor
from torch.nn.functional import normalize

ALPHA = 0.4
IMAGES, DIMENSION = 6, 8


def representations(seed: int, tau: float = 1.0) -> dict[str, Tensor]:
    """z, u: the anchors and, for j != i, the comparands; z', u': the other view of the anchor's images.

    Similarities are products of two vectors, so that a temperature is a factor 1 / sqrt(tau) on all of them."""
    random = torch.Generator().manual_seed(seed)

    def draw(count: int) -> Tensor:
        return normalize(torch.randn(count, DIMENSION, generator=random, dtype=torch.float64), dim=1) / tau**0.5

    return {"z": draw(IMAGES), "u": draw(IMAGES), "z'": draw(1)[0], "u'": draw(1)[0]}


def lump_loss(z: Tensor, u: Tensor, r: dict[str, Tensor], nu: float) -> Tensor:
    """Eq. of the proof for the anchor i = 0, whose representation is nu z + (1 - nu) u; tau = 1 as there."""
    anchor = nu * z + (1 - nu) * u
    positive = nu * r["z'"] + (1 - nu) * r["u'"]
    negatives = nu * r["z"][1:] + (1 - nu) * r["u"][1:]
    logits = torch.cat([(anchor @ positive)[None], negatives @ anchor])
    return logits.logsumexp(0) - logits[0]


def probabilities(r: dict[str, Tensor], nu: float) -> Tensor:
    """p_i first, then p_j, by hand."""
    anchor = nu * r["z"][0] + (1 - nu) * r["u"][0]
    scores = [float(anchor @ (nu * r["z'"] + (1 - nu) * r["u'"]))]
    scores += [float(anchor @ (nu * r["z"][j] + (1 - nu) * r["u"][j])) for j in range(1, IMAGES)]
    exponentials = np.exp(scores)
    return torch.from_numpy(exponentials / exponentials.sum())


def coefficients(r: dict[str, Tensor], nu: float) -> dict[str, Tensor]:
    """a (on z' and z_j), b (on u' and u_j) of d/dz; c (on u' and u_j), d (on z' and z_j) of d/du; i first, then j."""
    p = probabilities(r, nu)
    weight = torch.cat([1 - p[:1], p[1:]])  # the sign of the first is written out in `expansion`
    one, two = nu, 1 - nu
    return {"a": one * one * weight, "b": one * two * weight, "c": two * two * weight, "d": one * two * weight}


def expansion(r: dict[str, Tensor], k: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """The right-hand sides of Proposition 1."""
    z, u = r["z"][1:], r["u"][1:]
    by_z = -k["a"][0] * r["z'"] + k["a"][1:] @ z + k["b"][1:] @ u - k["b"][0] * r["u'"]
    by_u = -k["c"][0] * r["u'"] + k["c"][1:] @ u + k["d"][1:] @ z - k["d"][0] * r["z'"]
    return by_z, by_u


def autograd(r: dict[str, Tensor], nu: float) -> tuple[Tensor, Tensor]:
    z, u = r["z"][0].clone().requires_grad_(), r["u"][0].clone().requires_grad_()
    by_z, by_u = torch.autograd.grad(lump_loss(z, u, r, nu), [z, u])
    return by_z, by_u


def quadrature() -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights of E over Beta(alpha, alpha): Gauss-Jacobi, exact for polynomials of degree 79."""
    nodes, weights = special.roots_jacobi(40, ALPHA - 1, ALPHA - 1)
    return (nodes + 1) / 2, weights / weights.sum()


def expected_coefficients(r: dict[str, Tensor]) -> dict[str, Tensor]:
    total: dict[str, Tensor] = {}
    for nu, weight in zip(*quadrature()):
        for name, value in coefficients(r, float(nu)).items():
            total[name] = total.get(name, torch.zeros(IMAGES, dtype=torch.float64)) + float(weight) * value
    return total


@pytest.mark.parametrize("nu", [0.0, 0.03, 0.4, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("seed", range(3))
def test_autograd_equals_the_expansion_at_each_nu(seed: int, nu: float) -> None:
    r = representations(seed)
    for found, written in zip(autograd(r, nu), expansion(r, coefficients(r, nu))):
        torch.testing.assert_close(found, written, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_the_expected_gradient_has_the_stated_form_and_signs(seed: int) -> None:
    """E of the gradient is the expansion with E of the coefficients, and those are all positive."""
    r = representations(seed)
    expected = expected_coefficients(r)
    gradients = [torch.zeros(DIMENSION, dtype=torch.float64) for _ in range(2)]
    for nu, weight in zip(*quadrature()):
        for total, found in zip(gradients, autograd(r, float(nu))):
            total += float(weight) * found
    for found, written in zip(gradients, expansion(r, expected)):
        torch.testing.assert_close(found, written, rtol=1e-9, atol=1e-12)
    assert all((value > 0).all() for value in expected.values())


def test_moments_of_the_beta_distribution() -> None:
    """E[nu] = 1/2, E[nu^2] = (alpha + 1) / (2 (2 alpha + 1)): what the factorised form uses."""
    nodes, weights = quadrature()
    assert (weights * nodes).sum() == pytest.approx(0.5)
    assert (weights * nodes**2).sum() == pytest.approx((ALPHA + 1) / (2 * (2 * ALPHA + 1)))


def factorised_error(seed: int, tau: float) -> float:
    """The paper's last step: E[p nu^2] as p(1/2) E[nu^2], and so on. Relative error of the gradient by z."""
    r = representations(seed, tau)
    second = (ALPHA + 1) / (2 * (2 * ALPHA + 1))
    p = probabilities(r, 0.5)
    weight = torch.cat([1 - p[:1], p[1:]])
    product = 0.5 - second
    approximate = {"a": second * weight, "b": product * weight, "c": second * weight, "d": product * weight}
    exact, factorised = expansion(r, expected_coefficients(r))[0], expansion(r, approximate)[0]
    return float((exact - factorised).norm() / exact.norm())


@pytest.mark.parametrize(("tau", "low", "high"), [(1.0, 0.05, 0.15), (0.1, 0.4, 0.8)])
def test_the_factorised_form_is_an_approximation(tau: float, low: float, high: float) -> None:
    """p depends on nu. The mean error (docs/methods/lump.md) is small where p is flat and large at tau = 0.1."""
    errors = [factorised_error(seed, tau) for seed in range(50)]
    assert min(errors) > 1e-3, "an equality would be within rounding"
    assert low < float(np.mean(errors)) < high, float(np.mean(errors))
