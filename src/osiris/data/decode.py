"""From the bytes of one image file to uint8 [3, H, W]. Anything that Pillow cannot read to the end is refused."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

Encoded = bytes | Path | np.ndarray
"""An image before decoding: the file's content, its path, or pixels [H, W], [H, W, C]."""


class UndecodableImage(Exception):
    """Not an image, truncated, or absurdly large."""


def decode(encoded: Encoded, size: int | None) -> np.ndarray:
    """uint8 [3, H, W] in RGB. With `size`: the short side is scaled to it and the middle square kept."""
    return decode_and_measure(encoded, size)[0]


def decode_and_measure(encoded: Encoded, size: int | None) -> tuple[np.ndarray, tuple[int, int]]:
    """Also the width and height that the image had."""
    try:
        with _open(encoded) as image:
            original = image.size
            if size is not None:
                # JPEG can be decoded at a fraction of its size; twice the wanted size leaves the quality alone.
                image.draft("RGB", (2 * size, 2 * size))
            image.load()
            rgb = _to_rgb(ImageOps.exif_transpose(image))
    except MemoryError:
        raise
    except Exception as error:  # Pillow's plugins raise what they like: OSError, SyntaxError, struct.error, zlib.error
        raise UndecodableImage(str(error) or type(error).__name__) from None
    if size is not None and rgb.size != (size, size):
        rgb = _square(rgb, size)
    return np.ascontiguousarray(np.asarray(rgb).transpose(2, 0, 1)), original


def _open(encoded: Encoded) -> Image.Image:
    if isinstance(encoded, np.ndarray):
        return Image.fromarray(encoded)
    return Image.open(io.BytesIO(encoded) if isinstance(encoded, bytes) else encoded)


def _to_rgb(image: Image.Image) -> Image.Image:
    """Grey becomes RGB; 16-bit greys keep their high byte, which Pillow's own conversion would clip."""
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


def image_dimensions(encoded: Encoded) -> tuple[int, int]:
    """(width, height) from the header alone; raises UndecodableImage."""
    try:
        with _open(encoded) as image:
            return image.size
    except Exception as error:
        raise UndecodableImage(str(error) or type(error).__name__) from None


Reader = Callable[[int], Encoded]
"""Gives the i-th image of a source, not yet decoded."""
