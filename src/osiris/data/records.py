"""Own data before it is decoded: where each image is, and what is known of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from osiris.data.decode import Encoded, UndecodableImage, image_dimensions
from osiris.data.ingest import Row
from osiris.errors import UserError

LARGEST_DEFAULT = 224
SAMPLE = 200
READ_AT_ONCE = 64


@dataclass(frozen=True)
class Records:
    """The images of one part (train or test), to be read by number."""

    count: int
    read: Callable[[Sequence[int]], list[Encoded]]
    origin: Callable[[int], str]
    """What to call an image in a message."""
    label: np.ndarray | None = None
    episode: np.ndarray | None = None

    def __len__(self) -> int:
        return self.count

    def rows(self) -> Iterator[Row]:
        for start in range(0, self.count, READ_AT_ONCE):
            numbers = range(start, min(start + READ_AT_ONCE, self.count))
            for number, encoded in zip(numbers, self.read(numbers)):
                label = None if self.label is None else int(self.label[number])
                episode = None if self.episode is None else int(self.episode[number])
                yield Row(encoded, self.origin(number), label, episode)


@dataclass(frozen=True)
class Catalogue:
    """A data set of the user's own: its images still as files, bytes or rows."""

    name: str
    source: str
    """Where it came from, for the manifest."""
    train: Records
    test: Records | None
    class_names: tuple[str, ...]
    episode_names: tuple[str, ...]
    content: str
    """Changes when the images change: the checksum of what is decoded on the fly."""
    notices: tuple[str, ...] = ()


def choose_size(records: Records, image_size: int | None) -> tuple[int, list[str]]:
    """The side of the square that all images are brought to: as asked, else the usual short side up to 224."""
    if image_size is not None:
        return image_size, []
    step = max(1, len(records) // SAMPLE)
    short_sides: list[int] = []
    shapes: set[tuple[int, int]] = set()
    for encoded in records.read(range(0, len(records), step)):
        try:
            width, height = image_dimensions(encoded)
        except UndecodableImage:
            continue
        shapes.add((width, height))
        short_sides.append(min(width, height))
    if not short_sides:
        raise UserError(f"none of the first images can be decoded, such as {records.origin(0)}. Are these images?")
    size = max(8, min(LARGEST_DEFAULT, int(np.median(short_sides))))
    if shapes == {(size, size)}:
        return size, []
    return size, [
        f"images are scaled and cropped to {size}x{size} (the median short side, at most {LARGEST_DEFAULT}); "
        "--image-size changes it."
    ]


def natural(name: str) -> list[tuple[int, int, str]]:
    """Sorting key by which `day2` comes before `day10`."""
    pieces = re.split(r"(\d+)", name)
    return [(0, int(piece), "") if piece.isdecimal() else (1, 0, piece) for piece in pieces if piece]


def number_names(names: Sequence[str]) -> tuple[tuple[str, ...], np.ndarray]:
    """The different names, sorted, and for each entry which one it is."""
    distinct = tuple(sorted(set(names), key=natural))
    number = {name: position for position, name in enumerate(distinct)}
    return distinct, np.asarray([number[name] for name in names], dtype=np.int64)
