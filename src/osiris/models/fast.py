"""The `fast` encoder: learns on a CPU in minutes what a ResNet-18 needs hours for.

- The stem sees whitened patches (filters from the principal components of the first task's images) and reduces 32x32
  pixels to 8x8 places, so that all later convolutions are cheap.
- There are no normalisation layers. Filters are standardised (zero mean, unit norm), and each output channel has a
  gain and a bias that are fitted to the first task's images, so that it starts with zero mean and unit variance.
  Without batch statistics, processes and micro-batches change nothing. GroupNorm removes the contrast between images.
- Features are averaged over 2x2 quarters of the image instead of the whole: coarse places survive.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from osiris.models.config import EncoderConfig

QUARTERS = 2
"""Features are averaged over QUARTERS x QUARTERS parts of the image."""
PLACES = 10
"""Patches are cut at about this many places along each axis of an image."""
REGULARISATION = 1e-2
"""Added to the variances, so that directions without variance are not blown up to noise."""


def patches(images: Tensor, size: int) -> Tensor:
    """float32 [N, 3 * size * size]: patches of size x size pixels on a regular grid of normalised images."""
    stride = max(1, (min(images.shape[2:]) - size) // (PLACES - 1))
    grid = images.unfold(2, size, stride).unfold(3, size, stride)
    return grid.permute(0, 2, 3, 1, 4, 5).reshape(-1, images.shape[1] * size * size)


def principal_components(rows: Tensor) -> tuple[Tensor, Tensor]:
    """(variances [d], directions [d, d] in rows) of [N, d], largest variance first, the largest entry positive."""
    centred = rows.double() - rows.double().mean(0)
    variances, directions = torch.linalg.eigh(centred.T @ centred / len(rows))
    variances, directions = variances.flip(0).clamp(min=0), directions.T.flip(0)
    largest = directions.gather(1, directions.abs().argmax(1, keepdim=True))
    return variances.float(), (directions * largest.sign()).float()


def whitening_filters(images: Tensor, size: int, count: int) -> Tensor:
    """[count, 3, size, size]: the first count / 2 principal components, scaled to unit variance, with both signs.

    Both signs, because the activation that follows would otherwise lose half of each response (as in airbench).
    """
    variances, directions = principal_components(patches(images, size))
    half = directions[: count // 2] / torch.sqrt(variances[: count // 2, None] + REGULARISATION)
    return torch.cat([half, -half]).view(count, images.shape[1], size, size)


class ScaledConv(nn.Conv2d):
    """A convolution whose filters are standardised, with a gain and a bias for each output channel."""

    bias: nn.Parameter

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1) -> None:
        super().__init__(inputs, outputs, kernel, stride, kernel // 2)
        self.gain = nn.Parameter(torch.ones(outputs))
        nn.init.normal_(self.weight)
        nn.init.zeros_(self.bias)

    def filters(self) -> Tensor:
        """Each with zero mean and unit norm."""
        centred = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
        return centred * torch.rsqrt(centred.square().sum((1, 2, 3), keepdim=True) + 1e-4)

    def forward(self, input: Tensor) -> Tensor:
        filters = self.filters() * self.gain[:, None, None, None]
        return F.conv2d(input, filters, self.bias, self.stride, self.padding)

    @torch.no_grad()
    def fit(self, inputs: Tensor) -> None:
        """Choose gain and bias such that the outputs for these inputs have zero mean and unit variance."""
        std, mean = torch.std_mean(F.conv2d(inputs, self.filters(), None, self.stride, self.padding), (0, 2, 3))
        self.gain.copy_(1 / (std + 1e-3))
        self.bias.copy_(-mean * self.gain)


class FastBlock(nn.Module):
    """Two 3x3 convolutions and a residual."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = ScaledConv(inputs, outputs, 3, stride)
        self.conv2 = ScaledConv(outputs, outputs, 3)
        self.downsample = ScaledConv(inputs, outputs, 1, stride) if stride != 1 or inputs != outputs else nn.Identity()

    def forward(self, images: Tensor) -> Tensor:
        hidden = self.conv2(F.silu(self.conv1(images), inplace=True))
        return F.silu(hidden + self.downsample(images), inplace=True)


class FastEncoder(nn.Module):
    """Images [B, 3, H, W] to features [B, 4 * channels of the last stage]."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        channels = config.width // 2
        self.conv1 = nn.Conv2d(3, channels, 5, 2, 2)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        stages = []
        for stage, blocks in enumerate(config.blocks):
            outputs = config.width * 2**stage
            for block in range(blocks):
                stages.append(FastBlock(channels, outputs, stride=2 if stage > 0 and block == 0 else 1))
                channels = outputs
        self.blocks = nn.Sequential(*stages)
        nn.init.zeros_(self.conv1.get_parameter("bias"))

    @property
    def features(self) -> int:
        return self.config.features

    def forward(self, images: Tensor) -> Tensor:
        images = images.contiguous(memory_format=torch.channels_last)
        hidden = self.maxpool(F.silu(self.conv1(images), inplace=True))
        return F.adaptive_avg_pool2d(self.blocks(hidden), QUARTERS).flatten(1)

    @torch.no_grad()
    def fit(self, images: Tensor) -> None:
        """Fit the stem, then gain and bias of each layer in turn, to normalised images [N, 3, H, W]. No labels."""
        self.conv1.weight.copy_(whitening_filters(images, self.conv1.kernel_size[0], self.conv1.out_channels))

        def fit_layer(layer: nn.Module, inputs: tuple[Tensor]) -> None:
            assert isinstance(layer, ScaledConv)
            layer.fit(*inputs)

        layers = [layer for layer in self.modules() if isinstance(layer, ScaledConv)]
        hooks = [layer.register_forward_pre_hook(fit_layer) for layer in layers]
        self(images)
        for hook in hooks:
            hook.remove()
