"""Our Mish is that of torch."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from osiris.models import activation
from osiris.models.activation import Mish


def value_and_gradient(function, x: Tensor, outer: Tensor) -> tuple[Tensor, Tensor]:
    leaf = x.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    output = function(leaf)
    output.backward(outer)
    assert leaf.grad is not None
    return output.detach(), leaf.grad


@pytest.mark.parametrize("chunk", [7, 1 << 17])
def test_mish_is_torchs_in_double_precision(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activation, "CHUNK", chunk)
    x = torch.cat([torch.linspace(-30, 30, 1001), torch.tensor([-1e4, 1e4, 0.0])]).double()
    outer = torch.randn_like(x)
    for ours, theirs in zip(value_and_gradient(Mish(), x, outer), value_and_gradient(functional.mish, x, outer)):
        torch.testing.assert_close(ours, theirs, rtol=1e-13, atol=1e-13)
    assert torch.autograd.gradcheck(Mish(), (x[480:520].clone().requires_grad_(),))


@pytest.mark.parametrize("layout", ["plain", "channels_last", "strided", "transposed gradient"])
def test_mish_in_any_memory_layout(layout: str) -> None:
    x = torch.randn(3, 8, 5, 6)
    if layout == "channels_last":
        x = x.contiguous(memory_format=torch.channels_last)
    if layout == "strided":
        x = torch.randn(3, 8, 5, 12)[..., ::2]
    outer = torch.randn(3, 5, 6, 8).permute(0, 3, 1, 2) if layout == "transposed gradient" else torch.randn_like(x)
    for ours, theirs in zip(value_and_gradient(Mish(), x, outer), value_and_gradient(functional.mish, x, outer)):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_mish_in_single_precision_has_the_error_of_rounding() -> None:
    x = torch.linspace(-30, 30, 200_001)
    assert (Mish()(x) - functional.mish(x.double())).abs().max() < 3e-6
