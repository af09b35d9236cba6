"""Each loss against a double loop over anchors, in float64, value and gradient, for any shape."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import normalize

import naive
from osiris.framework import losses

images = st.integers(1, 5)
dimensions = st.integers(2, 6)
seeds = st.integers(0, 2**31)
temperatures = st.sampled_from([0.05, 0.1, 0.5, 2.0])
few = settings(max_examples=25, deadline=None)


def vectors(count: int, dimension: int, seed: int) -> Tensor:
    """[2, N, d], unit length, leaf."""
    random = torch.Generator().manual_seed(seed)
    z = torch.randn(2, count, dimension, generator=random, dtype=torch.float64)
    return normalize(z, dim=-1).requires_grad_()


def agree(fast: Callable[[], Tensor], slow: Callable[[], Tensor], leaves: list[Tensor]) -> None:
    """Value and gradient with respect to every leaf, to 1e-6 (they agree to about 1e-12)."""
    one, two = fast(), slow()
    torch.testing.assert_close(one, two, rtol=1e-6, atol=1e-9)
    for fast_gradient, slow_gradient in zip(
        torch.autograd.grad(one, leaves, allow_unused=True), torch.autograd.grad(two, leaves, allow_unused=True)
    ):
        zero = torch.zeros((), dtype=torch.float64)
        fast_gradient = zero if fast_gradient is None else fast_gradient
        slow_gradient = zero if slow_gradient is None else slow_gradient
        torch.testing.assert_close(fast_gradient, slow_gradient, rtol=1e-6, atol=1e-9)


@few
@given(images, dimensions, temperatures, seeds)
def test_contrast(count: int, dimension: int, tau: float, seed: int) -> None:
    z = vectors(count, dimension, seed)
    agree(lambda: losses.contrast(z, tau), lambda: naive.contrast(z, tau=tau), [z])


@few
@given(images, st.integers(0, 4), dimensions, temperatures, seeds)
def test_contrast_with_negatives(count: int, others: int, dimension: int, tau: float, seed: int) -> None:
    z, y = vectors(count, dimension, seed), vectors(others, dimension, seed + 1)
    agree(lambda: losses.contrast_with_negatives(z, y, tau), lambda: naive.contrast(z, y, tau), [z, y])


@few
@given(images, images, dimensions, temperatures, seeds)
def test_cross(count: int, others: int, dimension: int, tau: float, seed: int) -> None:
    a, b = vectors(count, dimension, seed), vectors(others, dimension, seed + 1)
    agree(lambda: losses.cross(a, b, tau), lambda: naive.cross(a, b, tau), [a, b])


@few
@given(images, dimensions, temperatures, st.sampled_from(["same", "other"]), st.booleans(), seeds)
def test_distil(count: int, dimension: int, tau: float, positive: str, keep_other: bool, seed: int) -> None:
    p, q = vectors(count, dimension, seed), vectors(count, dimension, seed + 1)
    agree(
        lambda: losses.distil(p, q, tau, positive, keep_other),
        lambda: naive.distil(p, q, tau, positive, keep_other),
        [p, q],
    )


@few
@given(images, dimensions, seeds)
def test_match(count: int, dimension: int, seed: int) -> None:
    p, stored = vectors(count, dimension, seed), vectors(count, dimension, seed + 1)[0].detach()
    agree(lambda: losses.match(p, stored), lambda: naive.match(p, [list(stored), list(stored)]), [p])


@few
@given(st.lists(st.integers(1, 4), min_size=1, max_size=3), seeds)
def test_elastic(sizes: list[int], seed: int) -> None:
    random = torch.Generator().manual_seed(seed)

    def draw() -> list[Tensor]:
        return [torch.randn(size, 2, generator=random, dtype=torch.float64) for size in sizes]

    parameters, anchors = [value.requires_grad_() for value in draw()], draw()
    fisher = [value.square() for value in draw()]
    agree(
        lambda: losses.elastic(parameters, anchors, fisher),
        lambda: naive.elastic(parameters, anchors, fisher),
        parameters,
    )


def test_by_hand() -> None:
    """Two images on the axes of the plane, both views equal: everything can be written down."""
    z = torch.tensor([[[1.0, 0.0], [0.0, 1.0]]] * 2, dtype=torch.float64)
    e, tau = torch.tensor(1.0, dtype=torch.float64).exp(), 1.0
    # The positive has similarity 1, the two views of the other image have 0.
    assert losses.contrast(z, tau).item() == pytest.approx(-(e / (e + 2)).log().item())
    # Two more negatives, one of them the anchor's own direction: similarities 1 and 0, in both views.
    assert losses.contrast_with_negatives(z, z, tau).item() == pytest.approx(-(e / (e + 2 + 2 * e + 2)).log().item())
    # Cross: the anchor's image is not compared with the other image of its own batch.
    assert losses.cross(z, -z, tau).item() == pytest.approx(-(e / (e + 2 / e + 2)).log().item())
    # Distillation with equal networks is the contrast without the other view.
    assert losses.distil(z, z, tau).item() == pytest.approx(-(e / (e + 2)).log().item())
    assert losses.distil(z, z, tau, keep_other=True).item() == pytest.approx(-(e / (2 * e + 2)).log().item())
    assert losses.match(z, torch.zeros_like(z)).item() == pytest.approx(1.0)


@pytest.mark.parametrize("tau", [1e-3, 0.1])
def test_extreme_similarities_stay_finite(tau: float) -> None:
    """Identical images everywhere, in float32: exp(1 / tau) alone would overflow."""
    z = torch.ones(2, 8, 4) / 2
    for value in (losses.contrast(z, tau), losses.cross(z, z, tau), losses.distil(z, z, tau)):
        assert torch.isfinite(value)
    assert losses.contrast(z, tau).item() == pytest.approx(torch.tensor(15.0).log().item(), rel=1e-4)


def test_er_plus_aligns_no_memory_images() -> None:
    """Sec. 3.3: L^ER+ pushes memory images away from X, and no more; L^ER++ also draws their views together."""
    x, y = torch.zeros(2, 3, 6, dtype=torch.float64), torch.zeros(2, 1, 6, dtype=torch.float64)
    x[..., :3], y[..., 3:] = vectors(3, 3, seed=3).detach(), vectors(1, 3, seed=4).detach()  # orthogonal to each other
    y.requires_grad_()
    (plus,) = torch.autograd.grad(losses.contrast_with_negatives(x, y), y)
    (union,) = torch.autograd.grad(losses.contrast(torch.cat([x, y], dim=1)), y)
    assert plus[..., :3].abs().max() > 0 and plus[..., 3:].abs().max() == 0
    together = -(union * y.detach().flip(0)).sum(-1)  # a step against the gradient, along the other view
    assert (together > 0).all()
