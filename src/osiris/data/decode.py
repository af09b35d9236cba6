"""Decode image files into uint8 [3, H, W], one at a time or many on all cores."""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from osiris.cores import core_count

Encoded = bytes | Path | np.ndarray
"""An image before decoding: the content of a file, its path, or pixels [H, W] or [H, W, C]."""
BATCH = 64
"""Images per unit of work: for small images, handing over one at a time would cost more than decoding."""


class UndecodableImage(Exception):
    """Not an image, truncated, or too large."""


def decode(encoded: Encoded, size: int | None) -> np.ndarray:
    """uint8 [3, H, W] in RGB. With `size`, the short side is scaled to it and the centre square is kept."""
    if isinstance(encoded, np.ndarray) and encoded.shape == (size, size, 3) and encoded.dtype == np.uint8:
        return np.ascontiguousarray(encoded.transpose(2, 0, 1))
    try:
        with _open(encoded) as image:
            if size is not None:
                # JPEG can be decoded at a fraction of its size; twice the final size does not affect the quality.
                image.draft("RGB", (2 * size, 2 * size))
            image.load()
            rgb = _to_rgb(ImageOps.exif_transpose(image))
    except MemoryError:
        raise
    except Exception as error:  # Pillow's plugins raise many types: OSError, SyntaxError, struct.error, zlib.error
        raise UndecodableImage(str(error) or type(error).__name__) from None
    if size is not None and rgb.size != (size, size):
        rgb = _square(rgb, size)
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


def _square(image: Image.Image, size: int) -> Image.Image:
    width, height = image.size
    side = min(width, height)
    left, top = (width - side) / 2, (height - side) / 2
    return image.resize((size, size), Image.Resampling.BICUBIC, box=(left, top, left + side, top + side))


def decode_all(
    read: Callable[[Sequence[int]], list[Encoded]], count: int, size: int
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
