"""Features of images of any kind by the encoder of a checkpoint."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from osiris.data.images import ArrayImages, Encoded, UndecodableImage, decode, decode_all
from osiris.data.load import episode_source
from osiris.errors import UserError
from osiris.evaluation.encoder_files import load_checkpoint
from osiris.evaluation.features import embed
from osiris.models.joined import JoinedEncoder

BATCH = 128
"""Images per pass of the encoder. Threads decode the next ones meanwhile."""


@dataclass(frozen=True)
class Embedded:
    """Features of images, and which images they are."""

    rows: list[int]
    """The position of each image among those that were given."""
    features: Tensor
    """float32 [N, D] on the CPU."""
    notices: list[str]
    """One sentence for each image that was left out."""


@dataclass(frozen=True)
class EmbeddedBatch:
    """The features of consecutive images."""

    rows: list[int]
    """The positions of the images that could be decoded."""
    features: Tensor
    """float32 [len(rows), D] on the CPU."""
    undecodable: dict[int, UndecodableImage]
    """Position -> why the image could not be decoded."""


class Embedder:
    """An encoder with the image size and normalisation that it was trained on."""

    def __init__(self, checkpoint: Path, device: torch.device | str = "cpu") -> None:
        loaded = load_checkpoint(checkpoint)
        assert loaded.mean is not None and loaded.std is not None and loaded.image_size is not None
        self.encoder, self.device = loaded.module.eval().to(device), device
        self.mean, self.std, self.image_size = loaded.mean, loaded.std, loaded.image_size

    def of(self, part: nn.Module) -> Embedder:
        """The same for a part of the encoder that takes images."""
        other = copy.copy(self)
        other.encoder = part
        return other

    def __call__(self, images: Any, strict: bool = True) -> Embedded:
        """Embed anything that `benchmark_from` takes, a folder with images at any depth, or one image file.

        All cores decode while the encoder computes. An image that cannot be decoded is an error; without `strict`, it
        is left out and named in the notices.
        """
        source, notices = episode_source(images, "images")
        table = source.read_table()
        rows, features = list[int](), list[Tensor]()
        for batch in self.batches(table.read, len(table)):
            for row, error in batch.undecodable.items():
                if strict:
                    raise UserError(f"{table.describe(row)} cannot be decoded: {error}. Repair it or leave it out.")
                notices.append(f"{table.describe(row)} was left out: {error}")
            rows += batch.rows
            features.append(batch.features)
        if not rows:
            raise UserError(f"there are no images that can be decoded. {' '.join(notices[:3])}".rstrip())
        return Embedded(rows, torch.cat([part for part in features if len(part)]), notices)

    def batches(
        self,
        read: Callable[[Sequence[int]], list[Encoded]],
        count: int,
        decode: Callable[[Encoded, int], np.ndarray] = decode,
    ) -> Iterator[EmbeddedBatch]:
        """Embed images 0 to count - 1 in order."""
        decoded = enumerate(decode_all(read, count, self.image_size, decode))
        while batch := list(itertools.islice(decoded, BATCH)):
            bad = {row: image for row, image in batch if isinstance(image, UndecodableImage)}
            good = {row: image for row, image in batch if not isinstance(image, UndecodableImage)}
            features = self.embed_batch(np.stack([*good.values()])) if good else torch.empty(0, 0)
            yield EmbeddedBatch([*good], features, bad)

    def embed_batch(self, images: np.ndarray, memo: dict[int, Tensor] | None = None) -> Tensor:
        """Features of uint8 images [N, 3, H, W] of the encoder's size. `memo`: what the same network with another
        readout has computed of the same array."""
        encoder = self.encoder
        if memo is None or not isinstance(encoder, JoinedEncoder):
            return embed(encoder, ArrayImages(images), self.mean, self.std, self.device, BATCH).cpu()
        if id(images) not in memo:
            memo[id(images)] = embed(encoder.layers, ArrayImages(images), self.mean, self.std, self.device, BATCH)
        return encoder.readout(memo[id(images)]).cpu()
