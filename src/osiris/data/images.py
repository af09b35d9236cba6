"""Images: decoded from what a source reads, and taken by index from one array, through a selection, or on demand."""

from __future__ import annotations

import io
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from osiris.cores import core_count
from osiris.data.source import Encoded
from osiris.errors import UserError

BATCH = 64
"""Images per unit of work: for small images, handing over one at a time would cost more than decoding."""
OTHER_PROGRAMS = ("EPS", "IPTC")
"""Formats for which Pillow runs Ghostscript (IPTC may hold EPS), whatever the name of the file says."""
AHEAD_BYTES = 256 << 20
"""Upper bound on decoded images that wait for `take`."""


class UndecodableImage(Exception):
    """Not an image, truncated, or too large."""


Seen = Callable[[Image.Image, tuple[int, int], Image.Exif], object]
"""Takes the whole image, upright and perhaps at a fraction of its size; its size in the file; and its EXIF data."""


def decode(encoded: Encoded, size: int | None, seen: Seen | None = None) -> np.ndarray:
    """uint8 [3, H, W] in RGB. With `size`, the short side is scaled to it and the centre square is kept."""
    if isinstance(encoded, np.ndarray) and encoded.shape == (size, size, 3) and encoded.dtype == np.uint8:
        return np.ascontiguousarray(encoded.transpose(2, 0, 1))
    try:
        with _open(encoded) as image:
            if image.format in OTHER_PROGRAMS:
                raise OSError(f"{image.format} is not read")
            full = image.size
            if size is not None:
                # JPEG can be decoded at a fraction of its size; twice the final size does not affect the quality.
                image.draft("RGB", (2 * size, 2 * size))
            image.load()
            rgb = _to_rgb(ImageOps.exif_transpose(image))
            if seen is not None:
                seen(rgb, full, image.getexif())
    except MemoryError:
        raise
    except Exception as error:  # Pillow's plugins raise many types: OSError, SyntaxError, struct.error, zlib.error
        raise UndecodableImage(str(error) or type(error).__name__) from None
    if size is not None and rgb.size != (size, size):
        side = min(rgb.size)
        left, top = (rgb.width - side) / 2, (rgb.height - side) / 2
        rgb = rgb.resize((size, size), Image.Resampling.BICUBIC, box=(left, top, left + side, top + side))
    return np.ascontiguousarray(np.asarray(rgb).transpose(2, 0, 1))


def image_dimensions(encoded: Encoded) -> tuple[int, int]:
    """(width, height) from the file header; raises UndecodableImage."""
    try:
        with _open(encoded) as image:
            return image.size
    except Exception as error:
        raise UndecodableImage(str(error) or type(error).__name__) from None


def _open(encoded: Encoded) -> Image.Image:
    if isinstance(encoded, np.ndarray):
        return Image.fromarray(encoded)
    if isinstance(encoded, Path) and encoded.exists() and not encoded.is_file():
        raise OSError("it is not a file")  # reading a pipe would take forever
    return Image.open(io.BytesIO(encoded) if isinstance(encoded, bytes) else encoded)


def _to_rgb(image: Image.Image) -> Image.Image:
    """Grey becomes RGB. 16-bit grey keeps its high byte and floats up to 1 are scaled; Pillow would clip both."""
    if image.mode.startswith(("I", "F")):
        values = np.nan_to_num(np.asarray(image).astype(np.float64))
        largest = values.max(initial=0)
        if image.mode.startswith("I;16") or largest > 255:
            values //= 256
        elif image.mode == "F" and largest <= 1:
            values = np.rint(values * 255)
        image = Image.fromarray(values.clip(0, 255).astype(np.uint8))
    return image if image.mode == "RGB" else image.convert("RGB")


def decode_all(
    read: Callable[[Sequence[int]], list[Encoded]],
    count: int,
    size: int,
    decode: Callable[[Encoded, int], np.ndarray] = decode,
) -> Iterator[np.ndarray | UndecodableImage]:
    """Images 0 to count - 1 in order, decoded by threads; only a few batches are in memory at a time."""

    def decode_one(encoded: Encoded) -> np.ndarray | UndecodableImage:
        try:
            return decode(encoded, size)
        except UndecodableImage as error:
            return error

    workers = core_count()  # Pillow releases the GIL
    pending: deque[Future[list[np.ndarray | UndecodableImage]]] = deque()
    with ThreadPoolExecutor(workers) as pool:
        for start in range(0, count, BATCH):
            batch = read(range(start, min(start + BATCH, count)))
            pending.append(pool.submit(lambda batch=batch: [decode_one(encoded) for encoded in batch]))
            if len(pending) > 2 * workers:
                yield from pending.popleft().result()
        while pending:
            yield from pending.popleft().result()


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
