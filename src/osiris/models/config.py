"""The shapes of the networks, as plain data (no torch here: `--help` must be fast)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Family = Literal["resnet", "fast"]
Norm = Literal["gn", "bn"]
Stem = Literal["small", "large"]


@dataclass(frozen=True)
class EncoderConfig:
    """The encoder: the paper's ResNet-18 and smaller members of its family, or the `fast` encoder for CPUs."""

    family: Family = "resnet"
    """`resnet`: the paper's; `fast`: whitening stem, no normalisation layers, fitted on the first task's images."""
    width: int = 64
    """Channels of the first stage; later stages have twice the one before (64: ResNet-18)."""
    blocks: tuple[int, ...] = (2, 2, 2, 2)
    """Residual blocks per stage (2 2 2 2: ResNet-18)."""
    norm: Norm = "gn"
    """Of `resnet`. `gn`: GroupNorm with Mish, the paper's choice for continual learning; `bn`: BatchNorm with ReLU."""
    stem: Stem = "small"
    """Of `resnet`. `small`: 3x3, no pooling, for 32 to 64 pixels; `large`: 7x7 stride 2 and max-pool, for photos."""
    stem_stride: int = 1
    """Of `resnet`: stride of the small stem; 2 makes everything four times cheaper."""

    @property
    def batch_norm(self) -> bool:
        return self.family == "resnet" and self.norm == "bn"

    @property
    def features(self) -> int:
        channels = self.width * 2 ** (len(self.blocks) - 1)
        return 4 * channels if self.family == "fast" else channels


@dataclass(frozen=True)
class ProjectorConfig:
    """The projectors g and h: Linear - ReLU - Linear without bias."""

    projector_hidden: int = 2048
    """Hidden units of a projector."""
    projector_output: int = 128
    """Dimensions of the embedding space."""
