"""The encoder is the paper's ResNet-18, down to parameter names and initial values; its gradients are right."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from osiris.errors import UserError
from osiris.models.activation import Mish
from osiris.models.config import EncoderConfig
from osiris.models.encoder import CHANNEL_BLOCK, build_encoder
from osiris.models.normalisation import BatchNorm, group_norm
from osiris.models.standalone import Block
from osiris.presets import PRESETS, configure

TIMM_RESNET18 = ["conv1.weight", "bn1.weight", "bn1.bias"] + [
    f"layer{stage}.{block}.{name}"
    for stage in (1, 2, 3, 4)
    for block in (0, 1)
    for name in (
        "conv1.weight",
        "bn1.weight",
        "bn1.bias",
        "conv2.weight",
        "bn2.weight",
        "bn2.bias",
        *(("downsample.0.weight", "downsample.1.weight", "downsample.1.bias") if stage > 1 and block == 0 else ()),
    )
]
"""timm.create_model("resnet18", num_classes=0), parameters in order."""


def parameter_count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def test_parameter_count_of_the_paper() -> None:
    with torch.device("meta"):
        assert parameter_count(build_encoder(EncoderConfig())) == 11_168_832
        assert parameter_count(build_encoder(EncoderConfig(norm="bn"))) == 11_168_832


@pytest.mark.parametrize("norm", ["gn", "bn"])
def test_parameter_names_are_those_of_timm(norm: str) -> None:
    with torch.device("meta"):
        encoder = build_encoder(EncoderConfig(norm=norm))  # pyright: ignore[reportArgumentType]
    assert [name for name, _ in encoder.named_parameters()] == TIMM_RESNET18
    shapes = {name: tuple(value.shape) for name, value in encoder.named_parameters()}
    assert shapes["conv1.weight"] == (64, 3, 3, 3), "3x3 stem: timm's is 7x7, every other tensor has timm's shape"
    assert shapes["layer2.0.downsample.0.weight"] == (128, 64, 1, 1)
    assert shapes["layer4.1.conv2.weight"] == (512, 512, 3, 3)
    buffers = {name for name, _ in encoder.named_buffers()}
    expected = {
        f"{n[:-7]}.{b}"
        for n in TIMM_RESNET18
        if ("bn" in n or "downsample.1" in n) and n.endswith("weight")
        for b in ("running_mean", "running_var", "num_batches_tracked")
    }
    assert buffers == (expected if norm == "bn" else set())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_reaches_through_the_whole_encoder(dtype: torch.dtype) -> None:
    """Convolutions, norms (all arguments of one dtype, as the kernel on CUDA wants them), activations and residuals;
    features and the gradients of parameters are float32."""
    layers = {"convolution", "native_group_norm", "mish", "add"}
    seen: dict[str, set[torch.dtype]] = {}

    class Dtypes(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            name = func.overloadpacket.__name__.removesuffix("_backward")
            seen.setdefault(name, set()).update(value.dtype for value in args if isinstance(value, Tensor))
            return func(*args, **(kwargs or {}))

    encoder, images = build_encoder(EncoderConfig(width=8), zero_init_last=False), torch.randn(2, 3, 16, 16)
    expected = encoder(images)
    with Dtypes(), torch.autocast("cpu", dtype):
        features = encoder(images)
        features.sum().backward()
    assert all(seen[name] == {dtype} for name in layers), seen
    assert features.dtype == torch.float32 and functional.cosine_similarity(features, expected).min() > 0.999
    assert {parameter.grad.dtype for parameter in encoder.parameters() if parameter.grad is not None} == {torch.float32}


def test_the_large_stem_is_torchvisions() -> None:
    with torch.device("meta"):
        encoder = build_encoder(EncoderConfig(stem="large", norm="bn"))
    assert parameter_count(encoder) == 11_176_512, "torchvision's resnet18 without its classifier"


def test_activations_and_norms() -> None:
    grouped, batched = build_encoder(EncoderConfig(width=8)), build_encoder(EncoderConfig(width=8, norm="bn"))

    def count(module: nn.Module, kind: type) -> int:
        return sum(isinstance(part, kind) for part in module.modules())

    assert count(grouped, Mish) == 9 and count(grouped, nn.ReLU) == 0
    assert count(batched, nn.ReLU) == 9 and count(batched, Mish) == 0
    assert count(grouped, nn.GroupNorm) == count(batched, BatchNorm) == 20
    assert all(module.bias is None for module in grouped.modules() if isinstance(module, nn.Conv2d))


def test_the_last_norm_of_each_block_starts_at_zero() -> None:
    encoder = build_encoder(EncoderConfig(width=8), seed=3)
    blocks = [module for module in encoder.modules() if isinstance(module, Block)]
    assert len(blocks) == 8
    for block in blocks:
        assert (block.bn2.get_parameter("weight") == 0).all() and (block.bn1.get_parameter("weight") == 1).all()
    plain = build_encoder(EncoderConfig(width=8), seed=3, zero_init_last=False)
    assert all((m.bn2.get_parameter("weight") == 1).all() for m in plain.modules() if isinstance(m, Block))
    assert torch.equal(plain.get_parameter("conv1.weight"), encoder.get_parameter("conv1.weight"))


def test_kaiming_fan_out() -> None:
    encoder = build_encoder(EncoderConfig(width=16), seed=0)
    for name, value in encoder.named_parameters():
        if value.ndim == 4 and value.numel() > 5000:
            expected = (2 / (value.shape[0] * value.shape[2] * value.shape[3])) ** 0.5
            assert value.std().item() == pytest.approx(expected, rel=0.05), name


def test_a_block_by_hand() -> None:
    """conv - norm - Mish - conv - norm, plus the shortcut, then Mish."""
    block = Block(8, 16, 2, group_norm, Mish).double()
    nn.init.normal_(block.bn2.get_parameter("weight"))
    images = torch.randn(2, 8, 6, 6, dtype=torch.float64)
    weights = dict(block.named_parameters())

    def norm(value: Tensor, name: str) -> Tensor:
        parts = value.view(2, 4, 4, *value.shape[2:])  # 16 channels: 4 groups of 4
        mean, variance = parts.mean((2, 3, 4), keepdim=True), parts.var((2, 3, 4), unbiased=False, keepdim=True)
        plain = ((parts - mean) / (variance + 1e-5).sqrt()).view_as(value)
        return plain * weights[f"{name}.weight"].view(1, -1, 1, 1) + weights[f"{name}.bias"].view(1, -1, 1, 1)

    def mish(value: Tensor) -> Tensor:
        return value * torch.tanh(torch.log(1 + value.exp()))

    hidden = mish(norm(functional.conv2d(images, weights["conv1.weight"], stride=2, padding=1), "bn1"))
    main = norm(functional.conv2d(hidden, weights["conv2.weight"], padding=1), "bn2")
    shortcut = norm(functional.conv2d(images, weights["downsample.0.weight"], stride=2), "downsample.1")
    torch.testing.assert_close(block(images), mish(main + shortcut))


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("size", [8, 32])
def test_features_are_the_mean_over_places(size: int, stride: int) -> None:
    config = EncoderConfig(width=8, blocks=(1, 2, 1, 1), stem_stride=stride)
    encoder = build_encoder(config)
    places: list[Tensor] = []
    encoder.get_submodule("layer4").register_forward_hook(lambda module, inputs, output: places.append(output.detach()))
    features = encoder(torch.randn(2, 3, size, size))
    assert features.shape == (2, 64) == (2, config.features)
    assert places[0].shape[2] == -(-size // (8 * stride)), "no pooling after the stem, three strides of two"
    torch.testing.assert_close(features, places[0].mean((2, 3)))


@pytest.mark.parametrize(
    ("config", "word"),
    [
        (EncoderConfig(width=0), "--width"),
        (EncoderConfig(width=7), "GroupNorm"),
        (EncoderConfig(blocks=(1, 1, 1, 0)), "--blocks"),
        (EncoderConfig(stem_stride=3), "--stem-stride"),
    ],
)
def test_impossible_encoders_are_refused(config: EncoderConfig, word: str) -> None:
    with pytest.raises(UserError, match=word):
        build_encoder(config)


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


@pytest.mark.whole
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
