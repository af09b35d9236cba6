"""Decoded images, read by index: from one array, through a selection, or decoded on demand."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np

from osiris.cores import core_count
from osiris.data.decode import Encoded, UndecodableImage, decode
from osiris.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

AHEAD_BYTES = 256 << 20
"""Upper bound on decoded images that wait for `take`."""


class Images:
    """A sequence of RGB images of one size."""

    shape: tuple[int, int, int]
    """(3, height, width)"""
    count: int
    decoded: bool = True
    """Whether taking an image costs no decoding."""

    def __len__(self) -> int:
        return self.count

    def take(self, indices: Tensor) -> Tensor:
        """uint8 [len(indices), 3, height, width] on the CPU, in the order of `indices` (int64)."""
        raise NotImplementedError

    def prefetch(self, indices: Tensor) -> None:
        """Hint that these images will be taken soon, so that decoding can start if they are not decoded yet."""


class ArrayImages(Images):
    """Images stored decoded in one uint8 array [N, 3, H, W], in memory or memory-mapped."""

    def __init__(self, array: np.ndarray) -> None:
        assert array.dtype == np.uint8 and array.ndim == 4 and array.shape[1] == 3, array.shape
        self.array, self.count, self.shape = array, len(array), (3, *array.shape[2:])

    def take(self, indices: Tensor) -> Tensor:
        import torch

        return torch.from_numpy(self.array[indices.numpy()])


class Subset(Images):
    """A selection of other images, without copying them."""

    def __init__(self, source: Images, indices: Tensor) -> None:
        self.source, self.indices, self.count, self.shape = source, indices, len(indices), source.shape
        self.decoded = source.decoded

    def take(self, indices: Tensor) -> Tensor:
        return self.source.take(self.indices[indices])

    def prefetch(self, indices: Tensor) -> None:
        self.source.prefetch(self.indices[indices])


class LazyImages(Images):
    """Images that are too many to keep decoded: threads decode them while the device works on the previous batch.

    `read` returns the encoded images of some rows, `describe` names a row in an error message. The pixels are the ones
    that the cache would hold: `checks` has the CRC-32 of each row, as it was when the data was first read.
    """

    decoded = False

    def __init__(
        self,
        count: int,
        size: int,
        read: Callable[[Sequence[int]], list[Encoded]],
        describe: Callable[[int], str],
        ahead: int | None = None,
        checks: np.ndarray | None = None,
    ) -> None:
        self.count, self.shape, self.read, self.describe = count, (3, size, size), read, describe
        self.checks = checks
        self.ahead = max(1, AHEAD_BYTES // (3 * size * size)) if ahead is None else ahead
        self.pending: dict[int, Future[np.ndarray]] = {}
        """Oldest first. Only the caller's thread uses it."""
        self.pool = ThreadPoolExecutor(core_count(), thread_name_prefix="osiris-decode")

    def prefetch(self, indices: Tensor) -> None:
        """Start decoding. At most `ahead` images wait; newer hints replace the oldest ones."""
        for index in indices.tolist()[: self.ahead]:
            self.pending[index] = self.pending.pop(index, None) or self.pool.submit(self._decode, index)
            while len(self.pending) > self.ahead:
                self.pending.pop(next(iter(self.pending))).cancel()

    def take(self, indices: Tensor) -> Tensor:
        rows = indices.tolist()
        futures = {row: self.pending.pop(row, None) or self.pool.submit(self._decode, row) for row in set(rows)}
        pixels = [futures[row].result() for row in rows]
        import torch

        return torch.from_numpy(np.stack(pixels) if pixels else np.empty((0, *self.shape), dtype=np.uint8))

    def _decode(self, index: int) -> np.ndarray:
        if not 0 <= index < self.count:
            raise IndexError(f"image {index} of {self.count}")
        try:
            pixels = decode(self.read([index])[0], self.shape[1])
        except UndecodableImage as error:
            raise UserError(
                f"{self.describe(index)} was readable when the data was first read and is not any more ({error}). "
                "Restore the file, or start a new run without it."
            ) from None
        if self.checks is not None and zlib.crc32(pixels.data) != self.checks[index]:
            raise UserError(
                f"{self.describe(index)} has changed since the data was first read. Restore the file, or start a new "
                "run."
            )
        return pixels
