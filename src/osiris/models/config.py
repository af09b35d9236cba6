"""The shapes of the networks, as plain data (no torch here: `osiris list` must be fast)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from msgspec import Meta

from osiris.conversion import converted
from osiris.errors import UserError

Family = Literal["resnet", "fast"]
Norm = Literal["gn", "bn"]
Stem = Literal["small", "large"]
Readout = Literal["joined", "whitened", "start"]


ARCHITECTURES = {"resnet18": (64, (2, 2, 2, 2)), "resnet34": (64, (3, 4, 6, 3))}
"""Width and blocks per stage."""


@dataclass(frozen=True)
class EncoderConfig:
    """The encoder: the paper's ResNet-18 and smaller members of its family, the `fast` encoder for CPUs, or another."""

    encoder: str | None = None
    """`hf:NAME` or `timm:NAME`: start from a pretrained model of the hub or of a local directory, with defaults that
    suit it (docs/encoders.md). `package.module:function`: a module of your own, or a function that builds one.
    `resnet18`, `resnet34`. None means what the following options describe."""
    pretrained: bool = False
    """The encoder has learned before: defaults that suit it, and comparisons with it. Always so for `hf:`, `timm:`, a
    module with weights, and --init."""
    normalise: str | None = None
    """How images are normalised for the encoder: `imagenet`, `half` (mean and deviation 0.5), or the six numbers
    `R,G,B/R,G,B` of mean and deviation. None means as the encoder says, else the statistics of the data."""
    readout: str | None = None
    """What is made of several layers. `joined`: whitened by the images that were seen, with a share of what the encoder
    returns, as the images demand; `whitened`: without that share; `start`: what the encoder returns; `module:name`: a
    map of your own. None: `joined` with the method `readout`, and `start` with others; with them a readout is made
    again after each episode, of images at hand. It may change with every episode."""
    readout_size: Annotated[int, Meta(ge=2, le=8192)] | None = None
    """Numbers that a readout gives, at most; None means as many as the joined layers have. Fewer make smaller files and
    are a little worse (docs/results/readout.md)."""
    codes: Annotated[int, Meta(ge=128, le=65_536, multiple_of=2)] = 1024
    """Of the method `smt`: patches in the dictionary of each of its four layers. Twice as many take up to three times
    as long and are better (docs/results/closed-form.md)."""
    family: Family = "resnet"
    """`resnet`: the paper's; `fast`: whitening stem, no normalisation layers, fitted on the first task's images."""
    width: Annotated[int, Meta(ge=4, le=1024)] = 64
    """Channels of the first stage; each later stage has twice as many (64: ResNet-18)."""
    blocks: Annotated[tuple[Annotated[int, Meta(ge=1, le=1000)], ...], Meta(min_length=1, max_length=8)] = (2, 2, 2, 2)
    """Residual blocks per stage (2 2 2 2: ResNet-18)."""
    norm: Norm = "gn"
    """Normalisation of `resnet`. `gn`: GroupNorm with Mish, as in the paper; `bn`: BatchNorm with ReLU."""
    stem: Stem = "small"
    """First layers of `resnet`. `small`: 3x3 without pooling, for 32 to 64 pixels; `large`: 7x7 with stride 2 and
    max-pooling, for photos."""
    stem_stride: Annotated[int, Meta(ge=1, le=2)] = 1
    """Stride of the small stem of `resnet`; 2 makes everything four times cheaper."""

    def check(self) -> None:
        """Refuse shapes that the family does not have."""
        if self.encoder is not None:
            return
        converted(vars(self), EncoderConfig)
        if self.family == "fast":
            if self.norm == "bn":
                raise UserError(
                    "--norm bn needs --family resnet: the encoder of the family fast has no normalisation layers."
                )
            if self.width < 32 or self.width % 16:
                raise UserError(f"--width {self.width} is not possible with `fast`; use a multiple of 16, at least 32.")
        elif len(self.blocks) != 4:
            raise UserError(f"--blocks needs four numbers, one per stage, such as 2 2 2 2; got {self.blocks}.")

    @property
    def batch_norm(self) -> bool:
        return self.encoder is None and self.family == "resnet" and self.norm == "bn"

    @property
    def description(self) -> dict[str, Any]:
        """JSON-ready, for the protocol fingerprint: the options that describe this encoder, and no others."""
        if self.encoder is not None:
            return {"encoder": self.encoder}
        record = {name: list(value) if isinstance(value, tuple) else value for name, value in vars(self).items()}
        other = (
            "encoder",
            "pretrained",
            "normalise",
            "readout",
            "readout_size",
            "codes",
        )  # what is made of its features
        return {name: value for name, value in record.items() if name not in other}

    @property
    def features(self) -> int:
        """Number of features, for encoders that osiris builds itself."""
        assert self.encoder is None
        channels = self.width * 2 ** (len(self.blocks) - 1)
        return 4 * channels if self.family == "fast" else channels


@dataclass(frozen=True)
class ProjectorConfig:
    """The projectors g and h: Linear - ReLU - Linear without bias."""

    projector_hidden: Annotated[int, Meta(ge=1, le=1_000_000)] = 2048
    """Hidden units of a projector."""
    projector_output: Annotated[int, Meta(ge=2, le=1_000_000)] = 128
    """Dimensions of the embedding space."""
