"""The sums over codes (`manifold.py`), and the features that follow from them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import psutil
import torch
from scipy.sparse import csr_array
from torch import Tensor

from osiris.errors import UserError
from osiris.exact.manifold import Active, ManifoldConfig, PatchCodes
from osiris.exact.moments import Moments

IMAGE_ROWS = 512
"""Images whose outer products are summed at a time."""
COLUMNS = 512
"""Columns of such a product that are computed at a time."""
PATCH_ENTRIES = 2**24
"""Ones in the codes whose outer products are summed at a time."""
EXACT = 2**24
"""Sums of integers up to this value are exact in float32."""
SMALLEST = 1e-9
"""Smaller eigenvalues, relative to the largest, are rounding: there are fewer images than dimensions."""


@dataclass(frozen=True)
class CodeSums:
    """Sums over codes of patches and of images, for the sum of both halves of a code (even) and for the difference."""

    even_patches: Moments
    odd_patches: Moments
    even_images: Moments
    odd_images: Moments

    @staticmethod
    def zero(config: ManifoldConfig) -> CodeSums:
        return CodeSums(*(Moments.zero(config.half) for _ in range(4)))

    def parts(self) -> dict[str, Moments]:
        return dict(vars(self))

    def __add__(self, other: CodeSums) -> CodeSums:
        return CodeSums(*(one + another for one, another in zip(vars(self).values(), vars(other).values())))

    def __sub__(self, other: CodeSums) -> CodeSums:
        return CodeSums(*(one - another for one, another in zip(vars(self).values(), vars(other).values())))

    def tensors(self) -> dict[str, Tensor]:
        return {f"{name}.{key}": value for name, part in self.parts().items() for key, value in part.tensors().items()}

    @staticmethod
    def from_tensors(tensors: Mapping[str, Tensor]) -> CodeSums:
        """The inverse of `tensors`; raises ValueError for what cannot be sums."""
        names = tuple(CodeSums.__dataclass_fields__)
        named = {
            name: {key.partition(".")[2]: tensors[key] for key in tensors if key.startswith(f"{name}.")}
            for name in names
        }
        return CodeSums(*(Moments.from_tensors(named[name]) for name in names))


def check_memory(config: ManifoldConfig) -> None:
    available = psutil.virtual_memory().available
    if config.bytes_needed > available:
        raise UserError(
            f"sums over {config.codes} codes need {config.bytes_needed / 1e9:.1f} GB of memory, and "
            f"{available / 1e9:.1f} GB are free: choose fewer codes."
        )


def episode_sums(codes: PatchCodes, images: Tensor | Iterable[Tensor]) -> CodeSums:
    """Over uint8 images [N, 3, H, W], or batches of them."""
    config = codes.config
    check_memory(config)
    patches, whole = _PatchSums(config), _ImageSums(config)
    for batch in images.split(IMAGE_ROWS) if isinstance(images, Tensor) else images:
        for active in codes.active(batch.float() / 255):
            patches.add(active)
            whole.add(active)
    return CodeSums(*patches.moments(), *whole.moments())


class _Halves:
    """Two sums of outer products that grow: of both halves of rows together, and of their difference."""

    def __init__(self, config: ManifoldConfig) -> None:
        self.config, self.count, half = config, 0, config.half
        self.total = np.zeros(config.codes)
        self.even, self.odd = (torch.zeros(half, half, dtype=torch.float64) for _ in range(2))

    def moments(self) -> tuple[Moments, Moments]:
        first, second = torch.from_numpy(self.total).split(self.config.half)
        return Moments(self.count, first + second, self.even), Moments(self.count, first - second, self.odd)


class _ImageSums(_Halves):
    """s s^T, as a product of matrices, where s counts the ones of an image."""

    def __init__(self, config: ManifoldConfig) -> None:
        super().__init__(config)
        self.rows: list[np.ndarray] = []

    def add(self, active: Active) -> None:
        places, codes = self.config.places**2, self.config.codes
        images = len(active.counts) // places
        image = np.repeat(np.arange(images), active.counts.reshape(images, places).sum(1))
        self.rows.append(np.bincount(image * codes + active.columns, minlength=images * codes).reshape(images, codes))
        if sum(map(len, self.rows)) >= IMAGE_ROWS:
            self.flush()

    def flush(self) -> None:
        rows = torch.from_numpy(np.concatenate(self.rows))
        self.rows = []
        self.count += len(rows)
        self.total += rows.sum(0).numpy()
        first, second = rows.split(self.config.half, dim=1)
        for sums, part in ((self.even, first + second), (self.odd, first - second)):
            largest = int(part.abs().max()) ** 2 * len(part)
            part = part.to(torch.float32 if largest <= EXACT else torch.float64)
            for start in range(0, self.config.half, COLUMNS):  # above the diagonal
                sums[start : start + COLUMNS, start:] += part[:, start : start + COLUMNS].T @ part[:, start:]

    def moments(self) -> tuple[Moments, Moments]:
        if self.rows:
            self.flush()
        for sums in (self.even, self.odd):
            sums.copy_(sums.triu() + sums.triu(1).T)
        return super().moments()


class _PatchSums(_Halves):
    """alpha alpha^T over some patches of each image. Codes are sparse: for each entry, the ones of those patches are
    counted that have it."""

    def __init__(self, config: ManifoldConfig) -> None:
        super().__init__(config)
        self.chosen = np.arange(config.places**2) % config.sampled == 0
        self.counts: list[np.ndarray] = []
        self.columns: list[np.ndarray] = []

    def add(self, active: Active) -> None:
        chosen = np.tile(self.chosen, len(active.counts) // len(self.chosen))
        self.counts.append(active.counts[chosen])
        self.columns.append(active.columns[np.repeat(chosen, active.counts)])
        if sum(map(len, self.columns)) >= PATCH_ENTRIES:
            self.flush()

    def flush(self) -> None:
        counts, columns = np.concatenate(self.counts), np.concatenate(self.columns)
        self.counts, self.columns = [], []
        self.count += len(counts)
        self.total += np.bincount(columns, minlength=self.config.codes)
        ends = np.concatenate([[0], counts.cumsum()])
        codes = csr_array((np.ones(len(columns), np.int8), columns, ends), shape=(len(counts), self.config.codes))
        patches, half = codes.T.tocsr(), self.config.half

        def together(code: int) -> np.ndarray:
            """How often each entry is 1 where `code` is."""
            having = patches.indices[patches.indptr[code] : patches.indptr[code + 1]]
            return np.bincount(codes[having].indices, minlength=self.config.codes)

        def add(rows: np.ndarray) -> None:
            even, odd = self.even.numpy(), self.odd.numpy()
            for row in rows:
                one, mirror = together(row), together(row + half)
                even[row] += (one + mirror)[:half] + (one + mirror)[half:]
                odd[row] += (one - mirror)[:half] - (one - mirror)[half:]

        with ThreadPoolExecutor(torch.get_num_threads()) as pool:
            list(pool.map(add, np.array_split(np.arange(half), torch.get_num_threads())))

    def moments(self) -> tuple[Moments, Moments]:
        if self.counts:
            self.flush()
        return super().moments()


@dataclass(frozen=True)
class Projection:
    """From codes to features."""

    weight: Tensor
    """float32 [K, d], by decreasing eigenvalue."""
    sign: Tensor
    """float32 [d]: what a feature of a mirrored patch is multiplied by, 1 or -1."""
    eigenvalues: Tensor
    """float64 [d]: variance between images in units of that between patches."""


def solve(sums: CodeSums, config: ManifoldConfig) -> Projection:
    """S u = w (V + ridge) u: the directions that vary most between images, without the first: it is nearly constant."""
    if sums.even_images.count < 2:
        raise UserError("one image has nothing to be compared with: learn from two images or more.")
    scale = 2 * sums.even_patches.count * config.half
    ridge = config.ridge * float(sums.even_patches.outer.trace() + sums.odd_patches.outer.trace()) / scale
    if ridge <= 0:
        raise UserError("no patch of these images resembles one of the dictionary: they are flat, such as all black.")
    images = sums.even_images.count * config.places**2
    even, even_directions = _largest(sums.even_images, sums.even_patches, images, ridge, config.dimensions + 1)
    odd, odd_directions = _largest(sums.odd_images, sums.odd_patches, images, ridge, config.dimensions)
    even, even_directions = even[1:], even_directions[:, 1:]
    values = torch.cat([even, odd])
    order = values.argsort(descending=True, stable=True)[: config.dimensions]
    directions = torch.cat([torch.cat([even_directions] * 2), torch.cat([odd_directions, -odd_directions])], dim=1)
    sign = torch.cat([torch.ones(len(even)), -torch.ones(len(odd))])
    values, directions = values[order], directions[:, order]
    directions = directions * (values > SMALLEST * values.max())
    return Projection(directions.float().contiguous(), sign[order], values)


def _largest(images: Moments, patches: Moments, count: int, ridge: float, wanted: int) -> tuple[Tensor, Tensor]:
    """(eigenvalues, directions in columns), largest first; the largest entry of each direction is positive."""
    within = patches.outer / patches.count
    within.diagonal().add_(ridge)
    factor = torch.linalg.cholesky(within)
    between = torch.linalg.solve_triangular(factor, images.outer / count, upper=False)
    between = torch.linalg.solve_triangular(factor, between.T, upper=False)
    values, axes = torch.linalg.eigh(between)
    values, axes = values.flip(0)[:wanted], axes.flip(1)[:, :wanted]
    directions = torch.linalg.solve_triangular(factor.T, axes, upper=True)
    largest = directions.gather(0, directions.abs().argmax(0, keepdim=True))
    return values, directions * largest.sign()
