"""The `fast` encoder: learns on a CPU in minutes what a ResNet-18 needs hours for.

- The stem sees whitened patches (filters from the principal components of the first task's images) and reduces 32x32
  pixels to 8x8 places, so that all later convolutions are cheap.
- There are no normalisation layers. Filters are standardised (zero mean, unit norm), and each output channel has a
  gain and a bias that are fitted to the first task's images, so that it starts with zero mean and unit variance.
  Results do not depend on the number of processes or on micro-batches, as they would with BatchNorm, and the contrast
  between images is kept, which GroupNorm removes.
- Features are averaged over each quarter of the image instead of the whole image, so they keep coarse positions.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from osiris.models import standalone
from osiris.models.config import EncoderConfig
from osiris.models.standalone import ScaledConv

PLACES = 10
"""Patches are cut at about this many places along each axis of an image."""
REGULARISATION = 1e-2
"""Added to the variances, so that directions without variance are not blown up to noise."""


def patches(images: Tensor, size: int) -> Tensor:
    """float32 [N, 3 * size * size]: patches of size x size pixels on a regular grid of normalised images."""
    stride = max(1, (min(images.shape[2:]) - size) // (PLACES - 1))
    grid = images.unfold(2, size, stride).unfold(3, size, stride)
    return grid.permute(0, 2, 3, 1, 4, 5).reshape(-1, images.shape[1] * size * size)


def principal_components(vectors: Tensor) -> tuple[Tensor, Tensor]:
    """(variances [d], directions [d, d] in rows) of [N, d], largest variance first, the largest entry positive."""
    centred = vectors.double() - vectors.double().mean(0)
    variances, directions = torch.linalg.eigh(centred.T @ centred / len(vectors))
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


class FastEncoder(standalone.FastEncoder):
    """Images [B, 3, H, W] to features [B, 4 * channels of the last stage]."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__(vars(config))
        self.config = config
        nn.init.zeros_(self.conv1.get_parameter("bias"))

    @property
    def features(self) -> int:
        return self.config.features

    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images.contiguous(memory_format=torch.channels_last))

    @torch.no_grad()
    def fit(self, images: Tensor) -> None:
        """Fit the stem, then gain and bias of each layer in turn, to normalised images [N, 3, H, W]. No labels."""
        self.conv1.weight.copy_(whitening_filters(images, self.conv1.kernel_size[0], self.conv1.out_channels))

        def fit_layer(layer: nn.Module, inputs: tuple[Tensor]) -> None:
            """Choose gain and bias such that the outputs for these inputs have zero mean and unit variance."""
            assert isinstance(layer, ScaledConv)
            outputs = F.conv2d(*inputs, layer.filters(), None, layer.stride, layer.padding)
            std, mean = torch.std_mean(outputs, (0, 2, 3))
            layer.gain.copy_(1 / (std + 1e-3))
            layer.bias.copy_(-mean * layer.gain)

        layers = [layer for layer in self.modules() if isinstance(layer, ScaledConv)]
        hooks = [layer.register_forward_pre_hook(fit_layer) for layer in layers]
        self(images)
        for hook in hooks:
            hook.remove()
