"""The shapes of the networks, as plain data (no torch here: `--help` must be fast)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Norm = Literal["gn", "bn"]
Stem = Literal["small", "large"]


@dataclass(frozen=True)
class EncoderConfig:
    """The encoder family: the paper's ResNet-18 and smaller members of it."""

    width: int = 64
    """Channels of the first stage; later stages have twice the one before (64: ResNet-18)."""
    blocks: tuple[int, int, int, int] = (2, 2, 2, 2)
    """Residual blocks per stage (2 2 2 2: ResNet-18)."""
    norm: Norm = "gn"
    """`gn`: GroupNorm with Mish, the paper's choice for continual learning; `bn`: BatchNorm with ReLU."""
    stem: Stem = "small"
    """`small`: 3x3, no pooling, for 32 to 64 pixels; `large`: 7x7 stride 2 and max-pool, for photographs."""
    stem_stride: int = 1
    """Stride of the small stem; 2 makes everything four times cheaper."""

    @property
    def features(self) -> int:
        return self.width * 8


@dataclass(frozen=True)
class ProjectorConfig:
    """The projectors g and h: Linear - ReLU - Linear without bias."""

    projector_hidden: int = 2048
    """Hidden units of a projector."""
    projector_output: int = 128
    """Dimensions of the embedding space."""
