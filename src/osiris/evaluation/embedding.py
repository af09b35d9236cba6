"""Features of images of any kind by the encoder of a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from osiris.data.benchmarks import episode_source
from osiris.data.decode import UndecodableImage, decode_all
from osiris.data.images import ArrayImages
from osiris.errors import UserError
from osiris.evaluation.encoder_files import load_checkpoint
from osiris.evaluation.features import embed

BATCH = 128
"""Images per pass of the encoder. Threads decode the next ones meanwhile."""


@dataclass(frozen=True)
class Embedded:
    """Features and what they belong to."""

    rows: list[int]
    """The position of each image among those that were given."""
    features: Tensor
    """float32 [N, D] on the CPU."""
    notices: list[str]
    """What was left out."""


class Embedder:
    """An encoder with the image size and normalisation that it was trained on."""

    def __init__(self, checkpoint: Path, device: torch.device | str = "cpu") -> None:
        loaded = load_checkpoint(checkpoint)
        assert loaded.mean is not None and loaded.std is not None and loaded.image_size is not None
        self.encoder, self.device = loaded.module.eval().to(device), device
        self.mean, self.std, self.image_size = loaded.mean, loaded.std, loaded.image_size

    def __call__(self, images: Any, strict: bool = True) -> Embedded:
        """Embed anything that `benchmark_from` takes, a folder with images at any depth, or one image file.

        All cores decode while the encoder computes. An image that cannot be decoded is an error; without `strict`, it
        is left out and named in the notices.
        """
        source, notices = episode_source(images, "images")
        table = source.read_table()
        rows: list[int] = []

        def decoded() -> Iterator[np.ndarray]:
            for row, image in enumerate(decode_all(table.read, len(table), self.image_size)):
                if not isinstance(image, UndecodableImage):
                    rows.append(row)
                    yield image
                elif strict:
                    raise UserError(f"{table.describe(row)} cannot be decoded: {image}. Repair it or leave it out.")
                else:
                    notices.append(f"{table.describe(row)} was left out: {image}")

        features = [self.embed_batch(batch) for batch in _batches(decoded())]
        if not features:
            raise UserError(f"there are no images that can be decoded. {' '.join(notices[:3])}".rstrip())
        return Embedded(rows, torch.cat(features), notices)

    def embed_batch(self, images: np.ndarray) -> Tensor:
        """Features of uint8 images [N, 3, H, W] of the encoder's size."""
        return embed(self.encoder, ArrayImages(images), self.mean, self.std, self.device, BATCH).cpu()


def _batches(images: Iterator[np.ndarray]) -> Iterator[np.ndarray]:
    batch: list[np.ndarray] = []
    for image in images:
        batch.append(image)
        if len(batch) == BATCH:
            yield np.stack(batch)
            batch = []
    if batch:
        yield np.stack(batch)
