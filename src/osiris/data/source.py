"""A source of images before decoding: a table of (image, label, episode, split), whatever it is read from."""

from __future__ import annotations

import datetime
import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from osiris.data.catalogue import KnownDataset
from osiris.errors import UserError

NUMBERS = re.compile(r"(\d{1,4300})")  # Python reads no longer ones
Encoded = bytes | Path | np.ndarray
"""An image before decoding: the content of a file, its path, or pixels [H, W] or [H, W, C]."""
Values = Any
"""One value per image (numbers, strings or dates): a sequence, an array or a tensor."""


@dataclass(frozen=True)
class Rows:
    """The images of one split, still encoded, with their labels and episodes as the source spells them."""

    count: int
    read: Callable[[Sequence[int]], list[Encoded]]
    describe: Callable[[int], str]
    """Names a row in a message: its path, or its number."""
    labels: Values | None = None
    episodes: Values | None = None
    key: str | None = None
    """Identifies the images without reading them; None for images in memory, which are not cached."""
    folder: str = ""
    """The folder that holds the files of all images, if they are files."""


@dataclass(frozen=True)
class Table:
    """One row per image, training rows first, then test rows. Labels and episodes are positions in their names."""

    name: str
    train: Rows
    test: Rows | None
    label: np.ndarray | None
    episode: np.ndarray | None
    class_names: tuple[str, ...] = ()
    episode_names: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()

    def __len__(self) -> int:
        return self.train.count + (self.test.count if self.test else 0)

    def read(self, rows: Sequence[int]) -> list[Encoded]:
        """The encoded images of some rows, in ascending order."""
        border = self.train.count
        test_rows = [row - border for row in rows if row >= border]
        train = self.train.read(rows[: len(rows) - len(test_rows)])
        return train + self.test.read(test_rows) if self.test and test_rows else train

    def describe(self, row: int) -> str:
        in_test = self.test is not None and row >= self.train.count
        return self.test.describe(row - self.train.count) if self.test and in_test else self.train.describe(row)

    def as_one_episode(self, name: str) -> Table:
        """The training images without labels."""
        zeros = np.zeros(self.train.count, dtype=np.int64)
        return replace(self, test=None, label=None, class_names=(), episode=zeros, episode_names=(name,))


@dataclass(frozen=True)
class Source:
    """Images that were found but not read yet."""

    name: str
    read_table: Callable[[], Table]
    key: tuple[str, ...] | None
    """Identifies the table without reading it; None for images in memory, which are not cached."""
    known: KnownDataset | None = None
    local: bool = True
    """False: the data comes from the hub, and any complete cached copy of it may serve instead."""
    origin: str = ""
    """Path of the user's own data."""
    episode: bool = False
    """All images are one episode of a learner, which reads them once."""


def make_source(
    name: str,
    train: Rows,
    test: Rows | None = None,
    class_names: Sequence[str] | None = None,
    notices: Sequence[str] = (),
) -> Source:
    """The user's own images, with a key if they are files."""
    parts = [
        None if rows.key is None else (rows.key, _texts(rows.labels), _texts(rows.episodes))
        for rows in (train, test)
        if rows is not None
    ]
    key = None if None in parts else (hash_lines([repr((parts, class_names))]),)
    return Source(name, lambda: make_table(name, train, test, class_names, notices), key, origin=train.folder)


def _texts(values: Values | None) -> list[str] | None:
    return None if values is None else [str(value) for value in values]


def stamp(path: Path) -> str:
    """Size and time of a file: changes when the file does."""
    try:
        status = path.stat()
    except OSError:
        return "missing"
    return f"{status.st_size} {status.st_mtime_ns}"


def hash_lines(lines: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode(errors="surrogateescape")).hexdigest()


def make_table(
    name: str,
    train: Rows,
    test: Rows | None = None,
    class_names: Sequence[str] | None = None,
    notices: Sequence[str] = (),
) -> Table:
    """Number labels and episodes. With `class_names`, labels are positions in it; else the sorted values are names.

    Test images need labels that also occur in training. Without episodes of their own they belong to the episode of
    their class.
    """
    if not train.count:
        raise UserError(f"{name} has no training images.")
    if test is not None and train.labels is None:
        notices = [*notices, "there are no labels: the test images are not used."]
        test = None
    label, label_of = None, {}
    if train.labels is not None:
        label, label_of = numbered(train.labels, train.count, f"{name}: labels", names=class_names)
        if "-1" in label_of:
            raise UserError(
                f"{name}: labels contain -1, which usually means that an image has none. Give a label for every image, "
                "leave such images out, or leave out all labels."
            )
    classes = tuple(class_names or label_of) if label is not None else ()
    episode, episode_of = np.zeros(train.count, dtype=np.int64), {"all": 0}
    if train.episodes is not None:
        episode, episode_of = numbered(train.episodes, train.count, f"{name}: episodes")
    if len(episode_of) == train.count > 10:
        raise UserError(f"{name}: every image has its own episode. Use a coarser value, such as a date or a place.")
    if test is not None and label is not None:
        test_label, _ = numbered(test.labels, test.count, f"{name}: test labels", label_of)
        if test.episodes is not None:
            test_episode, _ = numbered(test.episodes, test.count, f"{name}: test episodes", episode_of)
        else:
            test_episode = _episode_of_class(name, label, episode, test_label, classes)
        label, episode = np.concatenate([label, test_label]), np.concatenate([episode, test_episode])
    return Table(name, train, test, label, episode, classes, tuple(episode_of), tuple(notices))


def natural(text: str) -> list[tuple[int, int, str]]:
    """Sorting key by which `day2` comes before `day10`."""
    pieces = NUMBERS.split(text)
    return [(0, int(piece), "") if piece.isdecimal() else (1, 0, piece) for piece in pieces if piece]


def numbered(
    values: Values | None,
    count: int,
    what: str,
    number_of: dict[str, int] | None = None,
    names: Sequence[str] | None = None,
) -> tuple[np.ndarray, dict[str, int]]:
    """(the number of each value, the number of each distinct value, given as text). Distinct values are numbered in
    order; those of test images as those of training images (`number_of`); with `names`, values are positions in it."""
    if values is None:
        raise UserError(f"{what} are missing: give one for each test image, as for the training images.")
    plain = _plain(values, count, what)
    if names is not None:
        if len(set(names)) < len(names):
            raise UserError(f"{what}: class_names contains the same name twice.")
        if type(plain[0]) is not int or min(plain) < 0 or max(plain) >= len(names):
            raise UserError(f"{what} must be whole numbers from 0 to {len(names) - 1}, one for each class name.")
        number_of = {str(number): number for number in range(len(names))}
    if number_of is None:
        distinct = sorted(set(plain), key=natural if isinstance(plain[0], str) else None)
        number_of = {str(value): number for number, value in enumerate(distinct)}
    unknown = next((value for value in plain if str(value) not in number_of), None)
    if unknown is not None:
        raise UserError(
            f"{what} contain {str(unknown)!r}, which has no training images. Add some, or leave these test images out."
        )
    return np.asarray([number_of[str(value)] for value in plain], dtype=np.int64), number_of


def _plain(values: Values, count: int, what: str) -> list[Any]:
    """`values` as Python numbers, strings or dates; a moment becomes its day."""
    try:
        array = np.asarray(values)
    except ValueError:
        raise UserError(f"{what} must be one value per image.") from None
    if array.shape != (count,):
        raise UserError(f"{what} have the shape {array.shape}; expected one value for each of the {count} images.")
    plain = (array.astype("datetime64[D]") if array.dtype.kind == "M" else array).tolist()
    if any(value is None or value == "" or value != value for value in plain):  # NaN differs from itself
        raise UserError(f"{what}: some images have none. Give a value for every image, or leave them out.")
    kinds = {type(value) for value in plain}
    if not kinds <= {int, bool, str, datetime.date, datetime.datetime} or len(kinds) > 1:
        raise UserError(f"{what} must be whole numbers, strings or dates, not {plain[0]!r}.")
    return [value.date() if isinstance(value, datetime.datetime) else value for value in plain]


def _episode_of_class(
    name: str, label: np.ndarray, episode: np.ndarray, test_label: np.ndarray, classes: tuple[str, ...]
) -> np.ndarray:
    home = np.full(len(classes), -1, dtype=np.int64)
    home[label] = episode
    several = np.flatnonzero(np.bincount(label[home[label] != episode], minlength=len(classes)))
    if len(several):
        raise UserError(
            f"{name}: class {classes[several[0]]!r} occurs in several episodes, so its test images need episodes too. "
            "Give them, or leave out the test images: a fifth of the training images is then held out."
        )
    return home[test_label]
