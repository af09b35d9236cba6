"""Decode image files into uint8 [3, H, W], one at a time or many on all cores."""

from __future__ import annotations

import io
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

Encoded = bytes | Path | np.ndarray
"""An image before decoding: the content of a file, its path, or pixels [H, W] or [H, W, C]."""
BATCH = 64
"""Images per unit of work: for small images, handing over one at a time would cost more than decoding."""


class UndecodableImage(Exception):
    """Not an image, truncated, or too large."""


def decode(encoded: Encoded, size: int | None) -> np.ndarray:
    """uint8 [3, H, W] in RGB. With `size`, the short side is scaled to it and the centre square is kept."""
    return decode_and_measure(encoded, size)[0]


def decode_and_measure(encoded: Encoded, size: int | None) -> tuple[np.ndarray, tuple[int, int]]:
    """Also return the original width and height."""
    if isinstance(encoded, np.ndarray) and encoded.shape == (size, size, 3) and encoded.dtype == np.uint8:
        return np.ascontiguousarray(encoded.transpose(2, 0, 1)), (encoded.shape[0], encoded.shape[1])
    try:
        with _open(encoded) as image:
            original = image.size
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
    return np.ascontiguousarray(np.asarray(rgb).transpose(2, 0, 1)), original


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
    """Grey becomes RGB. 16-bit grey keeps its high byte; Pillow's own conversion would clip it."""
    if image.mode.startswith("I"):
        values = np.asarray(image).astype(np.int64)
        shift = 8 if image.mode.startswith("I;16") or values.max(initial=0) > 255 else 0
        image = Image.fromarray((values >> shift).clip(0, 255).astype(np.uint8))
    return image if image.mode == "RGB" else image.convert("RGB")


def _square(image: Image.Image, size: int) -> Image.Image:
    width, height = image.size
    side = min(width, height)
    left, top = (width - side) / 2, (height - side) / 2
    return image.resize((size, size), Image.Resampling.BICUBIC, box=(left, top, left + side, top + side))


def worker_count() -> int:
    """Threads for decoding: one per core that this process may use (Pillow releases the GIL)."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


Decoded = tuple[np.ndarray, bool] | UndecodableImage
"""Pixels and whether the image had another size, or the reason why there are none."""


def decode_all(read: Callable[[Sequence[int]], list[Encoded]], count: int, size: int) -> Iterator[Decoded]:
    """Images 0 to count - 1 in order, decoded by threads; only a few batches are in memory at a time."""

    def decode_batch(batch: Iterable[Encoded]) -> list[Decoded]:
        decoded: list[Decoded] = []
        for encoded in batch:
            try:
                pixels, original = decode_and_measure(encoded, size)
            except UndecodableImage as error:
                decoded.append(error)
            else:
                decoded.append((pixels, original != (size, size)))
        return decoded

    workers = worker_count()
    pending: deque[Future[list[Decoded]]] = deque()
    with ThreadPoolExecutor(workers) as pool:
        for start in range(0, count, BATCH):
            pending.append(pool.submit(decode_batch, read(range(start, min(start + BATCH, count)))))
            if len(pending) > 2 * workers:
                yield from pending.popleft().result()
        while pending:
            yield from pending.popleft().result()
