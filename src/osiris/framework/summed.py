"""What a method learns by sums over images: one pass, without gradients, in any order.

A `Summed` has an encoder and makes it from sums. `training/summing.py` passes over the images of an episode with it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from osiris.augment.operations import upload
from osiris.augment.views import normalise
from osiris.data.tinyworld import CLASS_NAMES, render
from osiris.errors import UserError
from osiris.exact.manifold import PatchCodes
from osiris.exact.moments import Moments
from osiris.exact.readout import Fitted, layer_scales, own_share, with_drawings
from osiris.exact.spectrum import CodeSums, episode_sums, solve
from osiris.framework.readouts import fitted
from osiris.models.external import Architecture, architecture_of
from osiris.models.joined import LAYERS, JoinedEncoder
from osiris.models.manifold import MANIFOLD, JoinedManifold, Manifold
from osiris.models.normalisation import evaluating

DRAWN = 400
"""Drawings of tinyworld, the same number of each class, by which a readout is steadied."""
BATCH = 64
"""Images per pass of the network."""


def image_digests(images: Tensor) -> Tensor:
    """uint8 [N, 16]: a digest of each image, uint8 [N, 3, H, W], by which it is known without being kept."""
    digests = [hashlib.blake2b(image.numpy().tobytes(), digest_size=16).digest() for image in images]
    return torch.tensor([list(digest) for digest in digests], dtype=torch.uint8).view(-1, 16)


class Sums(Protocol):
    """Sums over images; a value."""

    def __add__(self, other: Any, /) -> Any: ...

    def __sub__(self, other: Any, /) -> Any: ...

    def tensors(self) -> dict[str, Tensor]: ...


class Summed(Protocol):
    """What the engine needs of it."""

    @property
    def encoder(self) -> nn.Module: ...

    @property
    def architecture(self) -> Architecture:
        """What a checkpoint must record to build the encoder again."""
        ...

    @property
    def images_before(self) -> int:
        """Images that `begin` embeds."""
        ...

    @property
    def bytes_needed(self) -> int:
        """Memory for the sums and the solution."""
        ...

    def begin(self, images: Tensor) -> None:
        """Before the first episode: `images` are the first of it, uint8 [N, 3, H, W]."""
        ...

    def zero(self) -> Any: ...

    def over(self, images: Tensor) -> Any:
        """The sums over images, uint8 [N, 3, H, W]."""
        ...

    def set(self, total: Any) -> None:
        """Make the encoder from the sums over all images."""
        ...

    def constants(self) -> dict[str, Tensor]:
        """What `begin` has made."""
        ...

    def restore(self, constants: Mapping[str, Tensor]) -> None: ...

    def from_tensors(self, tensors: Mapping[str, Tensor]) -> Any:
        """Sums from what they said as `tensors`; raises ValueError for others."""
        ...


class SummedReadout:
    """The method `readout`: a frozen network, and a map of its layers from their moments (`exact/readout.py`)."""

    def __init__(
        self,
        encoder: JoinedEncoder,
        name: str | None,
        readout: str,
        mean: Sequence[float],
        std: Sequence[float],
        side: int,
    ) -> None:
        """`name`: of a network that osiris does not define; `mean`, `std`, `side`: of images."""
        self.encoder, self.name = encoder, name
        self.readout = readout
        self.mean, self.std, self.side = mean, std, side
        self.drawings = Moments.zero(self.dimension)

    @property
    def architecture(self) -> Architecture:
        return architecture_of(self.name, self.encoder.network) | {LAYERS: self.encoder.record}

    images_before = DRAWN

    @property
    def bytes_needed(self) -> int:
        return 8 * 8 * self.dimension**2  # total, part and drawings; covariance and what the eigenproblem needs

    @property
    def dimension(self) -> int:
        return sum(self.encoder.layers.sizes)

    @property
    def size(self) -> int:
        """Numbers that the readout gives."""
        return self.encoder.readout.projection.shape[1]

    def begin(self, images: Tensor) -> None:
        """The drawings are the same for all images, so that the states of two machines can be joined."""
        drawn = torch.from_numpy(render("train", DRAWN // len(CLASS_NAMES))[0])
        sums = Moments.zero(self.dimension)
        for part in drawn.split(BATCH):
            scaled = interpolate(part.float(), (self.side, self.side), mode="bicubic", antialias=True)
            sums += self.over(scaled.round().clamp(0, 255).to(torch.uint8))
        self.drawings = sums

    def zero(self) -> Moments:
        return Moments.zero(self.dimension)

    def over(self, images: Tensor) -> Moments:
        return Moments.of(self.embed(images))

    @torch.no_grad()
    def embed(self, images: Tensor) -> Tensor:
        """float32 [N, D] on the CPU: the joined layers of uint8 images."""
        device, layers = self.encoder.readout.centre.device, self.encoder.layers
        with evaluating(layers):
            parts = [layers(normalise(upload(part, device), self.mean, self.std)).cpu() for part in images.split(BATCH)]
        rows = torch.cat(parts)
        if not bool(rows.isfinite().all()):
            raise UserError("the network gives infinite or undefined numbers for some images; use another one.")
        return rows

    def set(self, total: Moments) -> None:
        self.encoder.readout.set(self.map(total, self.readout))

    def map(self, total: Moments, readout: str) -> Fitted:
        return fitted(readout, total, self.drawings, self.encoder.layers.sizes, self.size)

    def share(self, total: Moments) -> float:
        """Of the start in the readout `joined`."""
        scale = layer_scales(with_drawings(total, self.drawings), self.encoder.layers.sizes)
        return own_share(total, self.drawings, scale)

    def constants(self) -> dict[str, Tensor]:
        return self.drawings.tensors()

    def restore(self, constants: Mapping[str, Tensor]) -> None:
        self.drawings = self.from_tensors(constants)

    def from_tensors(self, tensors: Mapping[str, Tensor]) -> Moments:
        moments = Moments.from_tensors(tensors)
        if moments.dimension != self.dimension:
            raise ValueError("they are of another network")
        return moments


@dataclass(frozen=True)
class Several:
    """Sums of several layers."""

    parts: tuple[CodeSums, ...]

    def __add__(self, other: Several) -> Several:
        return Several(tuple(one + another for one, another in zip(self.parts, other.parts, strict=True)))

    def __sub__(self, other: Several) -> Several:
        return Several(tuple(one - another for one, another in zip(self.parts, other.parts, strict=True)))

    def tensors(self) -> dict[str, Tensor]:
        return {f"{at}/{name}": value for at, one in enumerate(self.parts) for name, value in one.tensors().items()}


class SummedManifold:
    """The method `smt`: a feature layer from scratch, from sums over codes of patches (`exact/manifold.py`)."""

    images_before = 0

    def __init__(self, encoder: JoinedManifold, std: Sequence[float]) -> None:
        """`std`: of the channels, by which normalised images were divided."""
        self.encoder, self.std = encoder, std

    @property
    def layers(self) -> list[Manifold]:
        return [layer for layer in self.encoder.parts if isinstance(layer, Manifold)]

    @property
    def architecture(self) -> Architecture:
        return {MANIFOLD: [asdict(layer.config) for layer in self.layers]}

    @property
    def bytes_needed(self) -> int:
        return sum(layer.config.bytes_needed for layer in self.layers)

    @torch.no_grad()
    def begin(self, images: Tensor) -> None:
        """Whitening and dictionary, from images of the first episode."""
        for layer in self.layers:
            codes = PatchCodes.of(images, layer.config)
            layer.whitening.copy_(codes.whitening)
            layer.dictionary.copy_(codes.dictionary)
            layer.threshold.fill_(codes.threshold)
            layer.scale.copy_(torch.tensor(self.std)[:, None, None])

    def zero(self) -> Several:
        return Several(tuple(CodeSums.zero(layer.config) for layer in self.layers))

    def over(self, images: Tensor) -> Several:
        return Several(tuple(episode_sums(layer.codes, images) for layer in self.layers))

    @torch.no_grad()
    def set(self, total: Several) -> None:
        for layer, sums in zip(self.layers, total.parts, strict=True):
            projection = solve(sums, layer.config)
            layer.projection.copy_(projection.weight)
            layer.sign.copy_(projection.sign)

    def constants(self) -> dict[str, Tensor]:
        return {}  # the dictionary is part of the encoder

    def restore(self, constants: Mapping[str, Tensor]) -> None:
        pass

    def from_tensors(self, tensors: Mapping[str, Tensor]) -> Several:
        parts = []
        for at, layer in enumerate(self.layers):
            named = {name.partition("/")[2]: value for name, value in tensors.items() if name.startswith(f"{at}/")}
            parts.append(CodeSums.from_tensors(named))
            if parts[-1].even_patches.dimension != layer.config.half:
                raise ValueError("they are of another dictionary")
        return Several(tuple(parts))
