"""The encoder is the paper's ResNet-18, down to parameter names and initial values; projectors have their shapes."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from osiris.errors import UserError
from osiris.models import activation
from osiris.models.activation import Mish
from osiris.models.config import EncoderConfig
from osiris.models.encoder import build_encoder
from osiris.models.heads import adapter, predictor, projector
from osiris.models.normalisation import BatchNorm, frozen_statistics, group_norm
from osiris.models.standalone import Block

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


@pytest.mark.parametrize(("channels", "groups"), [(4, 1), (8, 2), (16, 4), (64, 16), (128, 32), (256, 32), (512, 32)])
def test_group_norm_has_a_quarter_as_many_groups_as_channels_at_most_32(channels: int, groups: int) -> None:
    assert group_norm(channels).num_groups == groups


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


def shapes(module: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(value.shape) for name, value in module.named_parameters()}


def test_projector_predictor_and_adapter() -> None:
    assert shapes(projector(512, 2048, 128)) == {
        "fc1.weight": (2048, 512),
        "fc1.bias": (2048,),
        "fc2.weight": (128, 2048),
    }
    assert shapes(predictor(128, 2048)) == {
        "fc1.weight": (2048, 128),
        "fc1.bias": (2048,),
        "fc2.weight": (128, 2048),
        "fc2.bias": (128,),
    }
    assert any(isinstance(layer, BatchNorm) for layer in predictor(8, 16, batch_norm=True))
    layers = list(adapter(512))
    assert [type(layer).__name__ for layer in layers] == ["Linear", "ReLU"] * 3 + ["Linear"]
    widths = [(layer.in_features, layer.out_features) for layer in layers if isinstance(layer, nn.Linear)]
    assert widths == [(512, 1024), (1024, 512), (512, 1024), (1024, 512)]


def test_batch_norm_is_torchs_and_its_statistics_can_be_frozen() -> None:
    ours, torchs = BatchNorm(4), nn.BatchNorm2d(4)
    images = torch.randn(3, 4, 5, 5)
    torch.testing.assert_close(ours(images), torchs(images))
    assert ours.running_mean is not None and torchs.running_mean is not None
    torch.testing.assert_close(ours.running_mean, torchs.running_mean)
    before = {name: value.clone() for name, value in ours.state_dict().items()}
    with frozen_statistics(ours):
        torch.testing.assert_close(ours(images * 3 + 1), torchs(images * 3 + 1))
    assert all(torch.equal(value, before[name]) for name, value in ours.state_dict().items())
    ours(images * 3 + 1)
    assert not torch.equal(ours.running_mean, before["running_mean"])


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
