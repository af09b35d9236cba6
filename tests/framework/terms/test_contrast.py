"""LUMP (`Mixed`): its draws of nu, and Proposition 1 (Appendix A), what its loss does to representations of x and y.

The mixtures are those of `Mixed.make`, for an encoder that is linear: it maps mixtures of images to mixtures of
representations. For one anchor and unnormalised mixtures z~ = nu z + (1 - nu) u, the gradient of the loss by z_i at
one nu is

    (p_i - 1) nu^2 z_i' + (p_i - 1) nu (1 - nu) u_i' + sum_j p_j nu^2 z_j + sum_j p_j nu (1 - nu) u_j

and with respect to u_i the same with nu and 1 - nu exchanged. Here p are softmax probabilities, which depend on nu: the
expectation of a product is not the product of expectations. The paper's proof takes p out of the expectation; the
*signs* hold without that step, the factorised coefficients are an approximation whose error is measured below.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import special
from torch import Tensor
from torch.nn.functional import normalize

from osiris.framework.methods import ZOO
from osiris.framework.terms import Mixed, StepContext, X, Y
from tiny import situation

(LUMP,) = ZOO["lump"].current
assert isinstance(LUMP, Mixed)
ALPHA = LUMP.alpha
IMAGES, DIMENSION = 6, 8
SQUARE = (ALPHA + 1) / (2 * (2 * ALPHA + 1))
"""E[nu^2] over Beta(alpha, alpha); E[nu] = 1/2."""
NODES, WEIGHTS = special.roots_jacobi(40, ALPHA - 1, ALPHA - 1)
NODES, WEIGHTS = (NODES + 1) / 2, WEIGHTS / WEIGHTS.sum()
"""E over Beta(alpha, alpha): Gauss-Jacobi, exact for polynomials of degree 79."""
CONTEXT = StepContext(memory=None, slots=None, seed=0, task=1, step=0)
Representations = tuple[Tensor, Tensor, Tensor, Tensor]
"""z, u: the anchors and, for j != i, the comparands; z', u': the other view of the anchor's images."""


def representations(seed: int, tau: float = 1.0) -> Representations:
    """Similarities are products of two vectors, so that a temperature is a factor 1 / sqrt(tau) on all of them."""
    random = torch.Generator().manual_seed(seed)

    def draw(count: int) -> Tensor:
        return normalize(torch.randn(count, DIMENSION, generator=random, dtype=torch.float64), dim=1) / tau**0.5

    return draw(IMAGES), draw(IMAGES), draw(1)[0], draw(1)[0]


class MixedWith(Mixed):
    """The term of LUMP with a given nu."""

    kind = ""

    def __init__(self, nu: float) -> None:
        super().__init__(ALPHA)
        self.given = nu

    def nu(self, context: StepContext) -> float:
        return self.given


def mixture(z: Tensor, u: Tensor, nu: float) -> Tensor:
    (mixed,) = MixedWith(nu).make({X: z, Y: u}, CONTEXT).values()
    return mixed


def logits(anchor_z: Tensor, anchor_u: Tensor, r: Representations, nu: float) -> Tensor:
    """Of the anchor i = 0 against its positive, which comes first, and the negatives; tau = 1 as in the proof."""
    z, u, other_z, other_u = r
    compared = mixture(torch.cat([other_z[None], z[1:]]), torch.cat([other_u[None], u[1:]]), nu)
    return compared @ mixture(anchor_z, anchor_u, nu)


def weights(r: Representations, nu: float) -> Tensor:
    """1 - p_i first, then p_j, by hand."""
    exponentials = logits(r[0][0], r[1][0], r, nu).exp()
    p = exponentials / exponentials.sum()
    return torch.cat([1 - p[:1], p[1:]])


def coefficients(r: Representations, nu: float) -> Tensor:
    """[3, IMAGES]: a (on z' and z_j) of d/dz, b = d (mixed), c (on u' and u_j) of d/du."""
    return torch.stack([nu * nu * weights(r, nu), nu * (1 - nu) * weights(r, nu), (1 - nu) ** 2 * weights(r, nu)])


def expansion(r: Representations, k: Tensor) -> tuple[Tensor, Tensor]:
    """The right-hand sides of Proposition 1."""
    (z, u, other_z, other_u), (a, b, c) = r, k
    by_z = -a[0] * other_z + a[1:] @ z[1:] + b[1:] @ u[1:] - b[0] * other_u
    by_u = -c[0] * other_u + c[1:] @ u[1:] + b[1:] @ z[1:] - b[0] * other_z
    return by_z, by_u


def gradient(r: Representations, nu: float) -> tuple[Tensor, ...]:
    z, u = r[0][0].clone().requires_grad_(), r[1][0].clone().requires_grad_()
    scores = logits(z, u, r, nu)
    return torch.autograd.grad(scores.logsumexp(0) - scores[0], [z, u])


def expected_coefficients(r: Representations) -> Tensor:
    return sum((float(w) * coefficients(r, float(nu)) for nu, w in zip(NODES, WEIGHTS)), torch.zeros(3, IMAGES))


@pytest.mark.parametrize("nu", [0.0, 0.03, 0.4, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("seed", range(3))
def test_autograd_equals_the_expansion_at_each_nu(seed: int, nu: float) -> None:
    r = representations(seed)
    torch.testing.assert_close(gradient(r, nu), expansion(r, coefficients(r, nu)), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_the_expected_gradient_has_the_stated_form_and_signs(seed: int) -> None:
    """E of the gradient is the expansion with E of the coefficients, and those are all positive."""
    r = representations(seed)
    gradients = [torch.stack(gradient(r, float(nu))) * float(weight) for nu, weight in zip(NODES, WEIGHTS)]
    written = torch.stack(expansion(r, expected_coefficients(r)))
    torch.testing.assert_close(torch.stack(gradients).sum(0), written, rtol=1e-9, atol=1e-12)
    assert (expected_coefficients(r) > 0).all()


@pytest.mark.whole
@pytest.mark.parametrize(("tau", "low", "high"), [(1.0, 0.05, 0.15), (0.1, 0.4, 0.8)])
def test_the_factorised_form_is_an_approximation(tau: float, low: float, high: float) -> None:
    """The paper's last step replaces E[p nu^2] by p(1/2) E[nu^2], and so on, but p depends on nu. The mean error of the
    gradient by z (docs/methods/lump.md) is small where p is flat and large at tau = 0.1."""
    np.testing.assert_allclose([(WEIGHTS * NODES).sum(), (WEIGHTS * NODES**2).sum()], [0.5, SQUARE])
    errors = []
    for seed in range(50):
        r = representations(seed, tau)
        factorised = torch.tensor([[SQUARE], [0.5 - SQUARE], [SQUARE]], dtype=torch.float64) * weights(r, 0.5)
        exact, approximate = expansion(r, expected_coefficients(r))[0], expansion(r, factorised)[0]
        errors.append(float((exact - approximate).norm() / exact.norm()))
    assert min(errors) > 1e-3, "an equality would be within rounding"
    assert low < float(np.mean(errors)) < high, float(np.mean(errors))


def test_nu_is_drawn_from_beta_one_for_each_step() -> None:
    """Beta(0.4, 0.4): mean 1/2, variance 1 / (4 (2 * 0.4 + 1)); keyed by the step, the same for both views."""
    case = situation("lump")
    (mixed,) = [term for _, term, _ in case.model.later]
    assert isinstance(mixed, Mixed)
    draws = torch.tensor([mixed.nu(replace(case.context, step=step)) for step in range(4000)])
    assert draws.mean().item() == pytest.approx(0.5, abs=0.02)
    assert draws.var().item() == pytest.approx(1 / (4 * 1.8), rel=0.05)
    assert mixed.nu(case.context) == mixed.nu(case.context) != mixed.nu(replace(case.context, task=2))
    nu = mixed.nu(case.context)
    made = mixed.make(case.views, case.context)["mix(0.4)"]
    torch.testing.assert_close(made, nu * case.views["X"] + (1 - nu) * case.views["Y"])
