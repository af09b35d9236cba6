"""The encoder of the sparse manifold transform (`exact/manifold.py`): patches, codes, one linear map, averages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import torch
from torch import Tensor, nn
from torch.nn import functional

from osiris.exact.manifold import ManifoldConfig, PatchCodes, averaging, cut, directions

if TYPE_CHECKING:
    from osiris.exact.spectrum import Projection

CHUNK = 64
"""Images that are embedded at a time."""
MOST_LAYERS, MOST_CODES = 16, 65_536
MANIFOLD = "manifold"
"""The entry of an architecture with the settings of the layers."""


class Manifold(nn.Module):
    """Normalised images [B, 3, H, W] to features [B, D] of norm 1. Mirror images have the same features."""

    dictionary: Tensor
    threshold: Tensor
    whitening: Tensor
    projection: Tensor
    sign: Tensor
    scale: Tensor

    def __init__(self, config: ManifoldConfig) -> None:
        """Without values: they are given by `of` or loaded."""
        super().__init__()
        self.config = config
        self.register_buffer("whitening", torch.zeros(config.numbers, config.numbers))
        self.register_buffer("dictionary", torch.zeros(config.codes, config.numbers))
        self.register_buffer("threshold", torch.zeros(()))
        self.register_buffer("projection", torch.zeros(config.codes, config.dimensions))
        self.register_buffer("sign", torch.ones(config.dimensions))
        self.register_buffer("scale", torch.ones(3, 1, 1))

    @staticmethod
    def of(codes: PatchCodes, projection: Projection, std: tuple[float, float, float]) -> Manifold:
        """`std`: what the channels of normalised images were divided by."""
        encoder = Manifold(codes.config)
        encoder.whitening.copy_(codes.whitening)
        encoder.dictionary.copy_(codes.dictionary)
        encoder.threshold.fill_(codes.threshold)
        encoder.projection.copy_(projection.weight)
        encoder.sign.copy_(projection.sign)
        encoder.scale.copy_(torch.tensor(std)[:, None, None])
        return encoder.eval()

    @property
    def codes(self) -> PatchCodes:
        return PatchCodes(self.config, self.whitening, self.dictionary, float(self.threshold))

    @property
    def features(self) -> int:
        return self.config.features

    def forward(self, images: Tensor) -> Tensor:
        exporting = torch.compiler.is_compiling() or torch.jit.is_tracing()
        if exporting or images.device.type != "cpu":
            return self._pool(self._dense(images * self.scale))
        if not len(images):
            return images.new_zeros(0, self.features)
        return torch.cat([self._pool(self._sparse(part.float() * self.scale)) for part in images.split(CHUNK)])

    def _dense(self, pixels: Tensor) -> Tensor:
        """[B * places^2, d]: the projected codes of all patches."""
        cosines = directions(cut(pixels, self.config), self.whitening) @ self.dictionary.T
        return (cosines > self.threshold).to(self.projection.dtype) @ self.projection

    def _sparse(self, pixels: Tensor) -> Tensor:
        """The same from the ones alone."""
        parts = []
        for active in self.codes.active(pixels):
            starts = torch.from_numpy(active.counts.cumsum() - active.counts)
            parts.append(
                functional.embedding_bag(torch.from_numpy(active.columns), self.projection, starts, mode="sum")
            )
        return torch.cat(parts)

    def _pool(self, codes: Tensor) -> Tensor:
        """Averages over places, then over the image and its mirror image; roots, because a few numbers dominate."""
        places, grid, half = self.config.places, self.config.grid, (self.config.grid + 1) // 2
        maps = functional.normalize(codes, dim=1).view(-1, places, places, self.config.dimensions)
        pooling = averaging(places, grid).to(maps)
        maps = torch.einsum("bhwd,gh,kw->bdgk", maps, pooling, pooling)
        maps = (maps + self.sign[:, None, None] * maps.flip(3))[..., :half]
        return functional.normalize((maps.sign() * maps.abs().sqrt()).flatten(1), dim=1)


class JoinedManifold(nn.Module):
    """Several of them (other patches, without colours) side by side, of norm 1: cosines are the means of theirs."""

    def __init__(self, parts: Sequence[Manifold]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)
        self.features = sum(part.features for part in parts)

    def forward(self, images: Tensor) -> Tensor:
        return torch.cat([part(images) for part in self.parts], dim=1) / len(self.parts) ** 0.5


def manifold(record: Any) -> JoinedManifold:
    """From what a checkpoint records. Raises a `UserError` or ValueError for settings that cannot be."""
    configs = msgspec.convert(record, list[ManifoldConfig])
    if not 1 <= len(configs) <= MOST_LAYERS or max(config.codes for config in configs) > MOST_CODES:
        raise ValueError("it claims to have too many layers or codes")
    return JoinedManifold([Manifold(config) for config in configs])
