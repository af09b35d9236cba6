"""The encoder f: ResNet-18 with a small stem, and smaller members of its family. `standalone.py` has the network.

Parameter names are those of timm's and torchvision's resnet18 (conv1, bn1, layer1.0.conv1, ..., downsample.1).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from osiris.errors import UserError
from osiris.models.activation import Mish
from osiris.models.config import EncoderConfig
from osiris.models.external import Architecture, build_external
from osiris.models.fast import FastEncoder
from osiris.models.manifold import JoinedManifold, Manifold
from osiris.models.normalisation import BatchNorm, evaluating, group_norm
from osiris.models.standalone import Block, ResNet
from osiris.randomness import scoped

CHANNEL_BLOCK = 16 if torch.backends.cpu.get_cpu_capability() == "AVX512" else 8
"""oneDNN handles channels in blocks of this size. With fewer input channels, its weight gradient of a strided 1x1
convolution in channels_last is wrong or corrupts memory (oneDNN issue 6035); narrower encoders use the contiguous
format. The three channels of the stem take another path, which is correct: see tests/models/test_encoder.py."""


class Encoder(ResNet):
    """The ResNet of a config, with the fast implementations of its layers and the paper's initialisation."""

    def __init__(self, config: EncoderConfig, zero_init_last: bool = True) -> None:
        """Mish follows GroupNorm, to avoid dying units (Appendix B); ReLU follows BatchNorm."""
        layers = (BatchNorm, partial(nn.ReLU, inplace=True)) if config.norm == "bn" else (group_norm, Mish)
        super().__init__(vars(config), layers)
        self.config = config
        self._initialise(zero_init_last)
        self.memory_format = torch.channels_last if config.width >= CHANNEL_BLOCK else torch.contiguous_format

    @property
    def features(self) -> int:
        return self.config.features

    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images.contiguous(memory_format=self.memory_format))

    def _initialise(self, zero_init_last: bool) -> None:
        """Kaiming fan-out; the last norm of each block starts at zero, except in random baselines."""
        for module in self.modules():
            if isinstance(module, nn.Conv2d) and not module.weight.is_meta:  # there, torch would import its compiler
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        if zero_init_last:
            for module in self.modules():
                if isinstance(module, Block):
                    nn.init.zeros_(module.bn2.get_parameter("weight"))


def build_encoder(
    config: EncoderConfig,
    seed: int = 0,
    zero_init_last: bool = True,
    images: Tensor | None = None,
    architecture: Architecture | None = None,
) -> nn.Module:
    """An encoder whose weights depend on the seed and, in the family `fast`, on normalised images of the first task.

    Without `images` the `fast` encoder is not fitted: enough to load weights into it. With `architecture` (what a
    checkpoint records), a pretrained encoder is built without its weights: they come from the checkpoint.
    """
    if config.encoder is not None:
        with scoped(seed, "init.encoder"):
            return build_external(config.encoder, architecture)
    config.check()
    with scoped(seed, "init.encoder"):
        encoder = FastEncoder(config) if config.family == "fast" else Encoder(config, zero_init_last)
    if images is not None and isinstance(encoder, FastEncoder):
        encoder.fit(images)
    return encoder


class _NoInitialValues(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__module__", None) == "torch.nn.init":
            return args[0] if args else kwargs["tensor"]
        return func(*args, **(kwargs or {}))


@contextmanager
def without_memory() -> Iterator[None]:
    """Modules built inside have shapes but no values. On the meta device alone, drawing initial values imports the
    compiler of torch, which takes two seconds, and loading weights warns about each of them."""
    with warnings.catch_warnings(), torch.device("meta"), _NoInitialValues():
        warnings.filterwarnings("ignore", ".*copying from a non-meta parameter", UserWarning)
        yield


def is_external(encoder: nn.Module) -> bool:
    """Whether it is not one of the encoders that osiris defines itself."""
    return not isinstance(encoder, Encoder | FastEncoder | Manifold | JoinedManifold)


def feature_count(encoder: nn.Module, image_shape: tuple[int, int, int]) -> int:
    """D of an encoder from images [B, 3, H, W] to features [B, D]. External encoders are tried on two black images."""
    if isinstance(encoder, Encoder | FastEncoder | Manifold | JoinedManifold):
        return encoder.features
    parameter = next(encoder.parameters(), None)
    if parameter is None:
        raise UserError("the encoder has no parameters, so there is nothing to train.")
    try:
        with evaluating(encoder):
            features = encoder(torch.zeros(2, *image_shape, device=parameter.device, dtype=parameter.dtype))
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UserError(
            f"the encoder fails for images of {image_shape[1]}x{image_shape[2]} pixels ({type(error).__name__}: "
            f"{reason}). Choose a size that it accepts with --image-size and --view-size."
        ) from error
    if not isinstance(features, Tensor) or features.ndim != 2 or len(features) != 2:
        got = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
        raise UserError(f"an encoder turns images [B, 3, H, W] into features [B, D]; for two images it returned {got}.")
    return features.shape[1]
