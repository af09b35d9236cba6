"""What a file looks like, without an encoder: by this, copies of a picture are recognised.

The thumbnail is the whole picture, upright, in 32 x 32 grey values and 8 x 8 colours. The hash has the signs of its 64
lowest frequencies against their median: pictures that were compressed again, resized or turned by EXIF differ in few of
its bits.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path

import numpy as np
from PIL import Image

from osiris.data.images import decode
from osiris.data.source import Encoded
from osiris.files import open_regular

SIDE, CELLS = 32, 8
"""Of a thumbnail, in grey and in colour."""
PIXELS = SIDE**2 + 2 * CELLS**2
FACTS = np.dtype([("digest", "u1", 16), ("hash", "u8"), ("width", "i4"), ("height", "i4"), ("taken", "i8")])
"""Of a file; all zero: not known. `taken`: seconds since 1970 by the clock of the camera."""
EXIF, ORIGINAL, CHANGED, ORIENTATION = 0x8769, 0x9003, 0x0132, 0x0112


@dataclass(frozen=True)
class Look:
    facts: np.ndarray
    """One of `FACTS`."""
    thumbnail: np.ndarray
    """uint8 [PIXELS]: grey values by row, then the two colours of each cell."""


def looking(looks: dict[Path, Look]) -> Callable[[Encoded, int], np.ndarray]:
    """`decode` of files, which also notes how they look."""

    def decode_and_look(encoded: Encoded, size: int) -> np.ndarray:
        assert isinstance(encoded, Path)
        seen: list[tuple[Image.Image, tuple[int, int], Image.Exif]] = []
        pixels = decode(encoded, size, lambda *of_image: seen.append(of_image))
        looks[encoded] = look_of(file_digest(encoded), *seen[0])
        return pixels

    return decode_and_look


def file_digest(path: Path) -> bytes:
    found = hashlib.blake2b(digest_size=16)
    with open_regular(path) as file:
        while block := file.read(1 << 20):
            found.update(block)
    return found.digest()


def look_of(digest: bytes, upright: Image.Image, full: tuple[int, int], exif: Image.Exif) -> Look:
    """`upright`: the picture, perhaps at a fraction of its size, which is `full`."""
    small = upright.resize((SIDE, SIDE), Image.Resampling.BICUBIC).convert("YCbCr")
    thumbnail, facts = np.asarray(small), np.zeros((), FACTS)
    grey, colours = thumbnail[..., 0], thumbnail[..., 1:].reshape(CELLS, SIDE // CELLS, CELLS, SIDE // CELLS, 2)
    width, height = full
    if exif.get(ORIENTATION, 1) > 4:  # turned by 90 degrees
        width, height = height, width
    facts["digest"] = np.frombuffer(digest, np.uint8)
    facts["hash"], facts["width"], facts["height"], facts["taken"] = hash_of(grey), width, height, taken(exif)
    return Look(facts, np.concatenate([grey.ravel(), colours.mean(axis=(1, 3)).round().astype(np.uint8).ravel()]))


def hash_of(thumbnail: np.ndarray) -> int:
    """64 bits of uint8 [SIDE, SIDE]."""
    wave = _cosines()
    low = (wave @ thumbnail.astype(np.float64) @ wave.T).ravel()
    return int.from_bytes(np.packbits(low > np.median(low[1:])).tobytes(), "big")


@lru_cache
def _cosines() -> np.ndarray:
    """float64 [8, SIDE]: the lowest frequencies of the discrete cosine transform."""
    wave = np.cos(np.pi * np.arange(8)[:, None] * (2 * np.arange(SIDE) + 1) / (2 * SIDE))
    return wave / np.linalg.norm(wave, axis=1, keepdims=True)


def taken(exif: Image.Exif) -> int:
    for place, tag in ((exif.get_ifd(EXIF), ORIGINAL), (exif, CHANGED)):
        with suppress(KeyError, ValueError, TypeError, OverflowError):
            return int(datetime.strptime(place[tag][:19], "%Y:%m:%d %H:%M:%S").replace(tzinfo=UTC).timestamp())
    return 0
