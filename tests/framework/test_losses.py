"""Each loss against a double loop over anchors, in float64, value and gradient, for any shape."""

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import normalize
from torch.utils._python_dispatch import TorchDispatchMode

import naive
from osiris.framework import losses

seeds = st.integers(0, 2**31)
few = settings(max_examples=25, deadline=None)
Loss = Callable[[Tensor, Tensor, float], Tensor]
LOSSES: dict[str, tuple[Loss, Loss]] = {
    "contrast": (lambda z, _, tau: losses.contrast(z, tau), lambda z, _, tau: naive.contrast(z, tau=tau)),
    "negatives": (losses.contrast_with_negatives, naive.contrast),
    "cross": (losses.cross, naive.cross),
    "match": (
        lambda p, stored, _: losses.match(p, stored[0].detach()),
        lambda p, stored, _: naive.match(p, [list(stored[0].detach())] * 2),
    ),
    **{
        f"distil {positive} {keep}": (
            lambda p, q, tau, positive=positive, keep=keep: losses.distil(p, q, tau, positive, keep),
            lambda p, q, tau, positive=positive, keep=keep: naive.distil(p, q, tau, positive, keep),
        )
        for positive, keep in product(("same", "other"), (False, True))
    },
}
"""The loss and its reference, as functions of two batches and tau."""


def vectors(count: int, dimension: int, seed: int) -> Tensor:
    """[2, N, d], unit length, leaf."""
    random = torch.Generator().manual_seed(seed)
    z = torch.randn(2, count, dimension, generator=random, dtype=torch.float64)
    return normalize(z, dim=-1).requires_grad_()


def agree(one: Tensor, two: Tensor, leaves: list[Tensor]) -> None:
    """Value and gradient with respect to every leaf, to 1e-6 (they agree to about 1e-12)."""
    torch.testing.assert_close(one, two, rtol=1e-6, atol=1e-9)
    ours, theirs = (
        torch.autograd.grad(value, leaves, allow_unused=True, materialize_grads=True) for value in (one, two)
    )
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", LOSSES)
@few
@given(
    st.integers(1, 5), st.integers(0, 5), st.integers(2, 6), st.sampled_from([0.05, 0.1, 0.5, 2.0]), st.integers(0, 999)
)
def test_any_shape(name: str, count: int, others: int, dimension: int, tau: float, seed: int) -> None:
    others = {"cross": max(1, others), "negatives": others}.get(name, count)
    a, b = vectors(count, dimension, seed), vectors(others, dimension, seed + 1)
    ours, theirs = (loss(a, b, tau) for loss in LOSSES[name])
    agree(ours, theirs, [a, b])


@few
@given(st.lists(st.integers(1, 4), min_size=1, max_size=3), seeds)
def test_elastic(sizes: list[int], seed: int) -> None:
    random = torch.Generator().manual_seed(seed)

    def draw() -> list[Tensor]:
        return [torch.randn(size, 2, generator=random, dtype=torch.float64) for size in sizes]

    parameters, anchors = [value.requires_grad_() for value in draw()], draw()
    fisher = [value.square() for value in draw()]
    ours, theirs = (elastic(parameters, anchors, fisher) for elastic in (losses.elastic, naive.elastic))
    agree(ours, theirs, parameters)


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


@pytest.mark.parametrize("loss", LOSSES)
def test_no_value_is_written_by_index(loss: str) -> None:
    """On CUDA that would sort the indices, to be deterministic."""
    seen: list[str] = []

    class Names(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(func.overloadpacket.__name__)
            return func(*args, **(kwargs or {}))

    z, others = vectors(4, 3, 0), vectors(4, 3, 1)
    with Names():
        LOSSES[loss][0](z, others, 0.1).backward()
    assert seen and not any("index" in name for name in seen), seen
