"""Gradients of every convolution that presets use agree with plain torch kernels (oneDNN switched off)."""

from collections.abc import Iterator

import pytest
import torch
from torch import nn

from osiris.models.config import EncoderConfig
from osiris.models.encoder import CHANNEL_BLOCK, build_encoder
from osiris.presets import PRESETS, configure

SIZE, IMAGES = 32, 4


@pytest.fixture(params=[1, 2], ids=["one-thread", "two-threads"])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def layer_shapes() -> list[tuple[int, int, int, int, int]]:
    """(input channels, output channels, kernel, stride, side of the input) of all presets and of narrow encoders."""
    shapes: dict[tuple[int, int, int, int, int], None] = {}

    def note(layer: nn.Module, inputs: tuple[torch.Tensor], output: torch.Tensor) -> None:
        assert isinstance(layer, nn.Conv2d)
        shape = (layer.in_channels, layer.out_channels, layer.kernel_size[0], layer.stride[0], inputs[0].shape[-1])
        shapes[shape] = None

    configs = [configure("tinyworld", name).encoder for name in PRESETS]
    for config in dict.fromkeys([*configs, EncoderConfig(width=4), EncoderConfig(width=16, stem="large")]):
        encoder = build_encoder(config).eval()
        for layer in encoder.modules():
            if isinstance(layer, nn.Conv2d):
                layer.register_forward_hook(note)
        with torch.no_grad():
            encoder(torch.zeros(1, 3, SIZE, SIZE))
    return list(shapes)


def gradients(layer: nn.Conv2d, images: torch.Tensor) -> list[torch.Tensor]:
    layer.zero_grad()
    images = images.detach().requires_grad_()
    layer(images).square().sum().backward()
    assert layer.weight.grad is not None and images.grad is not None
    return [layer.weight.grad.clone(), images.grad]


@pytest.mark.filterwarnings("ignore:TF32")
def test_weight_and_input_gradients_agree_with_plain_kernels(threads):
    for inputs, outputs, kernel, stride, side in layer_shapes():
        random = torch.Generator().manual_seed(0)
        last = inputs == 3 or inputs >= CHANNEL_BLOCK
        memory_format = torch.channels_last if last else torch.contiguous_format
        layer = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
        layer.to(memory_format=memory_format)  # pyright: ignore[reportCallIssue]
        images = torch.randn(IMAGES, inputs, side, side, generator=random).contiguous(memory_format=memory_format)
        fast = gradients(layer, images)
        with torch.backends.mkldnn.flags(enabled=False):
            plain = gradients(layer, images)
        for found, expected in zip(fast, plain):
            error = float((found - expected).norm() / expected.norm())
            assert error < 1e-5, f"{inputs} -> {outputs}, kernel {kernel}, stride {stride}: relative error {error:.2g}"


@pytest.mark.parametrize("width", [4, CHANNEL_BLOCK // 2, CHANNEL_BLOCK, 2 * CHANNEL_BLOCK])
def test_narrow_encoders_do_not_run_in_channels_last(width):
    """Weight gradients there are wrong on this kind of CPU, or memory is corrupted."""
    encoder = build_encoder(EncoderConfig(width=width, blocks=(1, 1, 1, 1)))
    formats: list[bool] = []
    for layer in encoder.modules():
        if isinstance(layer, nn.Conv2d):
            layer.register_forward_hook(
                lambda layer, inputs, output: formats.append(output.is_contiguous(memory_format=torch.channels_last))
            )
    encoder(torch.randn(16, 3, 32, 32)).sum().backward()
    assert all(formats) if width >= CHANNEL_BLOCK else not any(formats)
