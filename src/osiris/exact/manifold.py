"""A feature layer learned from scratch by sums: the sparse manifold transform (Chen et al. 2022, arXiv 2209.15261).

A patch of an image becomes a code of K zeros and ones: 1 where its cosine with a patch of the dictionary is above a
threshold. Two sums over codes are all that is learned: alpha alpha^T over patches, and s s^T over images, where s is
the sum of alpha over the patches of one image. The features (`spectrum.py`) are the directions that vary most between
images, compared with how much they vary between patches.

- Codes are counted, so the sums are integers and exact: their order and division into parts do not change a bit.
- The dictionary holds patches and, as its second half, their mirror images. The code of a mirrored patch is therefore
  the code of the patch with its halves exchanged, and sums over all images and their mirror images follow from those of
  the images alone. They are two blocks: of the sums of both halves of a code (even), and of the differences (odd).
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from osiris.errors import UserError
from osiris.randomness import generator

CHUNK = 2**23
"""Entries of patches x K that are computed at a time."""
SMALLEST_NORM = 1e-6
"""A patch below it is flat: it has no direction, and its code is zero."""
WHITENING_PATCHES = 200_000
THRESHOLD_PATCHES = 2000
"""Patches whose cosines decide the threshold."""
HIGHEST = 0.99
"""The highest threshold, for images with so few different patches that more cosines than the density are 1."""
GREY = 0.299, 0.587, 0.114
"""Weights of the channels."""


@dataclass(frozen=True)
class ManifoldConfig:
    """Patches, codes and features."""

    codes: int = 1024
    """K: patches in the dictionary, half of them mirrored."""
    side: int = 32
    """Images are scaled to this side."""
    patch: int = 6
    """Side of a patch in pixels of the scaled image."""
    stride: int = 2
    """Pixels between patches."""
    grey: bool = False
    """Whether images lose their colours first."""
    density: float = 0.03
    """Share of ones in a code, on average; it decides the threshold of the cosines."""
    whitening: float = 0.1
    """Added to the variances of patches, in units of their mean."""
    sampled: int = 16
    """One patch in so many counts for the sums over patches (all of them count for the sums over images)."""
    ridge: float = 1e-3
    """Added to the diagonal of the sums over patches, in units of its mean."""
    dimensions: int = 128
    """Numbers per place."""
    grid: int = 4
    """Patches are averaged over grid x grid places."""
    seed: int = 0
    """Of the choice of patches for the dictionary."""

    def __post_init__(self) -> None:
        if self.codes < 2 or self.codes % 2:
            raise UserError(
                f"{self.codes} codes are not possible: half of them are mirrored, so choose an even number."
            )
        if not 2 <= self.patch <= self.side or self.stride < 1 or self.sampled < 1:
            raise UserError(f"patches of {self.patch} pixels at every {self.stride} do not fit {self.side} pixels.")
        if not 0 < self.density < 0.5:
            raise UserError(f"the density of codes is between 0 and a half, not {self.density}.")
        if not 0 < self.dimensions < self.codes:
            raise UserError(
                f"{self.codes} codes have less than {self.codes} dimensions; {self.dimensions} were asked for."
            )
        if not 1 <= self.grid <= self.places:
            raise UserError(f"{self.places}x{self.places} patches cannot be averaged over a grid of {self.grid}.")

    @property
    def places(self) -> int:
        """Patches along each axis of an image."""
        return (self.side - self.patch) // self.stride + 1

    @property
    def numbers(self) -> int:
        """In a patch."""
        return (1 if self.grey else 3) * self.patch**2

    @property
    def half(self) -> int:
        return self.codes // 2

    @property
    def features(self) -> int:
        """Of an image. The right half of the grid repeats the left one, since mirror images have the same features."""
        return self.dimensions * self.grid * ((self.grid + 1) // 2)

    @property
    def bytes_needed(self) -> int:
        """Memory for the sums, those of an episode beside them, and the equations."""
        return 3 * 4 * self.half**2 * 8 + 4 * CHUNK


LAYERS = (4, False), (8, False), (4, True), (10, True)
"""(patch, grey) of layers whose features are better side by side than those of one layer with as many codes."""


def layers(config: ManifoldConfig) -> tuple[ManifoldConfig, ...]:
    """The same settings for each of `LAYERS`."""
    return tuple(replace(config, patch=patch, grey=grey) for patch, grey in LAYERS)


def averaging(size: int, parts: int) -> Tensor:
    """float32 [parts, size]: averages over equal parts of `size` pixels; pixels on a border count for both sides."""
    edges = torch.arange(parts + 1, dtype=torch.float64) * size / parts
    pixels = torch.arange(size, dtype=torch.float64)
    upper, lower = torch.minimum(edges[1:, None], pixels + 1), torch.maximum(edges[:-1, None], pixels)
    return ((upper - lower).clamp(min=0) * parts / size).float()


def cut(images: Tensor, config: ManifoldConfig) -> Tensor:
    """float [B * places^2, numbers] from [B, 3, H, W]: the patches of the scaled images, without the mean of each
    channel."""
    if config.grey:
        images = images.mul(images.new_tensor(GREY)[:, None, None]).sum(1, keepdim=True)
    for axis in (2, 3):
        if images.shape[axis] != config.side:
            scaling = averaging(images.shape[axis], config.side).to(images)
            images = (images.movedim(axis, 3) @ scaling.T).movedim(3, axis)
    grid = images.unfold(2, config.patch, config.stride).unfold(3, config.patch, config.stride)
    patches = grid.permute(0, 2, 3, 1, 4, 5).flatten(4).flatten(0, 2)
    return (patches - patches.mean(2, keepdim=True)).flatten(1)


def mirrored(config: ManifoldConfig) -> Tensor:
    """int64 [numbers]: where each pixel of a patch lies in its mirror image."""
    return torch.arange(config.numbers).view(-1, config.patch, config.patch).flip(2).flatten()


def directions(patches: Tensor, whitening: Tensor) -> Tensor:
    """Whitened patches of norm 1; zero for flat ones."""
    white = patches @ whitening
    norm = torch.linalg.vector_norm(white, dim=1, keepdim=True)
    return torch.where(norm > SMALLEST_NORM, white / norm.clamp(min=SMALLEST_NORM), torch.zeros_like(white))


class Active(NamedTuple):
    """The ones in the codes of some patches, patch by patch."""

    counts: np.ndarray
    """int64 [patches]: ones in each code."""
    columns: np.ndarray
    """int64 [sum of counts]: their positions, increasing within a patch."""


@dataclass(frozen=True)
class PatchCodes:
    """Patch whitening and dictionary: they turn patches into codes, and are fixed before anything is summed."""

    config: ManifoldConfig
    whitening: Tensor
    """float32 [numbers, numbers]"""
    dictionary: Tensor
    """float32 [K, numbers], rows of norm 1; the second half mirrors the first."""
    threshold: float
    """Cosine above which an entry of a code is 1."""

    @staticmethod
    def of(images: Tensor, config: ManifoldConfig) -> PatchCodes:
        """From uint8 images [N, 3, H, W], of which some hundred are enough."""
        draws = generator(config.seed, "manifold.dictionary")
        wanted = max(WHITENING_PATCHES, 4 * config.half)
        chosen = torch.randperm(len(images), generator=draws)[: 1 + wanted // config.places**2]
        patches = torch.cat([cut(part.float() / 255, config) for part in images[chosen].split(256)])
        mirror = mirrored(config)
        covariance = patches.T.double() @ patches.double() / len(patches)
        covariance = (covariance + covariance[mirror][:, mirror]) / 2
        variances, axes = torch.linalg.eigh(covariance)
        mean = variances.mean()
        if mean <= SMALLEST_NORM**2:
            raise UserError("the images are flat: no patch of them has a pattern to learn.")
        whitening = ((axes * (variances.clamp(min=0) + config.whitening * mean).rsqrt()) @ axes.T).float()
        white = directions(patches[torch.randperm(len(patches), generator=draws)], whitening)
        white = white[white.any(1)]
        if len(white) <= config.half:
            raise UserError(
                f"{len(images)} images have {len(white)} patches with a pattern; {config.codes} codes need more than "
                f"{config.half}. Begin with more images or with fewer codes."
            )
        chosen, others = white[: config.half], white[config.half :][:THRESHOLD_PATCHES]
        cosines = (others @ chosen.T).flatten()
        threshold = float(cosines.kthvalue(1 + int(len(cosines) * (1 - config.density))).values)
        threshold = min(max(threshold, SMALLEST_NORM), HIGHEST)
        return PatchCodes(config, whitening, torch.cat([chosen, chosen[:, mirror]]), threshold)

    def active(self, pixels: Tensor) -> Iterator[Active]:
        """The codes of images [B, 3, H, W] with values in [0, 1], some images at a time."""
        places = self.config.places**2
        low = fast_bfloat16()
        dictionary = self.dictionary.T.contiguous().to(torch.bfloat16 if low else torch.float32)
        with ThreadPoolExecutor(torch.get_num_threads()) as pool:
            for part in pixels.split(max(1, CHUNK // (places * self.config.codes))):
                white = directions(cut(part, self.config), self.whitening)
                yield _above(white.to(dictionary.dtype) @ dictionary, self.threshold, pool)


def fast_bfloat16() -> bool:
    """Whether products in bfloat16 are faster than in float32; they round cosines to three digits."""
    return torch.backends.cpu.get_cpu_capability() == "AVX512" and torch.cpu._is_avx512_bf16_supported()


def _above(cosines: Tensor, threshold: float, pool: ThreadPoolExecutor) -> Active:
    """Where `cosines` [patches, K] are above the threshold."""
    values = cosines
    if cosines.dtype == torch.bfloat16:  # positive floats are in the order of their bits
        values = cosines.view(torch.int16)
        threshold = int(torch.tensor(threshold).bfloat16().view(torch.int16))

    def find(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        places = np.flatnonzero(np.greater(rows, threshold))
        row, column = np.divmod(places, rows.shape[1])
        return np.bincount(row, minlength=len(rows)), column

    parts = values.numpy()
    found = list(pool.map(find, np.array_split(parts, torch.get_num_threads())))
    return Active(np.concatenate([counts for counts, _ in found]), np.concatenate([columns for _, columns in found]))
