"""The one form that every source takes before decoding: a table of (image, label, episode, split)."""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from osiris.data.decode import Encoded
from osiris.data.names import KnownDataset
from osiris.errors import UserError

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


@dataclass(frozen=True)
class Table:
    """One row per image, training rows first, then test rows. Labels and episodes are positions in their names."""

    name: str
    read: Callable[[Sequence[int]], list[Encoded]]
    describe: Callable[[int], str]
    train_count: int
    test_count: int
    label: np.ndarray | None
    episode: np.ndarray | None
    class_names: tuple[str, ...] = ()
    episode_names: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()

    def __len__(self) -> int:
        return self.train_count + self.test_count

    def as_one_episode(self, name: str) -> Table:
        """The training images without labels."""
        zeros = np.zeros(self.train_count, dtype=np.int64)
        return replace(self, test_count=0, label=None, class_names=(), episode=zeros, episode_names=(name,))


@dataclass(frozen=True)
class Source:
    """A data set that was found but not read yet."""

    name: str
    read_table: Callable[[], Table]
    fingerprint: tuple[str, ...] | None
    """Identifies the content without reading it; None for data in memory, which is not cached."""
    known: KnownDataset | None = None
    local: bool = True
    """False: the data comes from the hub, and any complete cached copy of it may serve instead."""
    origin: str = ""
    """Path of the user's own data."""
    episode: bool = False
    """All images are one episode of a learner, which reads them once."""


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
    told = list(notices)
    if not train.count:
        raise UserError(f"{name} has no training images.")
    if test is not None and train.labels is None:
        told.append("there are no labels: the test images are not used.")
        test = None
    label, classes = _number(train.labels, train.count, f"{name}: labels", class_names)
    episode, episodes = _number(train.episodes, train.count, f"{name}: episodes")
    if len(episodes) == train.count > 10:
        raise UserError(f"{name}: every image has its own episode. Use a coarser value, such as a date or a place.")
    if episode is None:
        episode, episodes = np.zeros(train.count, dtype=np.int64), ("all",)
    if test is None:
        return Table(name, train.read, train.describe, train.count, 0, label, episode, classes, episodes, tuple(told))
    assert label is not None
    test_label = _number_like(test.labels, test.count, classes, f"{name}: test labels", class_names is not None)
    if test.episodes is not None:
        test_episode = _number_like(test.episodes, test.count, episodes, f"{name}: test episodes")
    else:
        test_episode = _episode_of_class(name, label, episode, test_label, classes)
    return Table(
        name,
        _join(train.read, test.read, train.count),
        lambda row: train.describe(row) if row < train.count else test.describe(row - train.count),
        train.count,
        test.count,
        np.concatenate([label, test_label]),
        np.concatenate([episode, test_episode]),
        classes,
        episodes,
        tuple(told),
    )


def natural(text: str) -> list[tuple[int, int, str]]:
    """Sorting key by which `day2` comes before `day10`."""
    pieces = re.split(r"(\d+)", text)
    return [(0, int(piece), "") if piece.isdecimal() else (1, 0, piece) for piece in pieces if piece]


def _join(first: Callable, second: Callable, border: int) -> Callable[[Sequence[int]], list[Encoded]]:
    def read(rows: Sequence[int]) -> list[Encoded]:
        before, after = [row for row in rows if row < border], [row - border for row in rows if row >= border]
        assert list(rows[: len(before)]) == before, "training rows come first"
        return (first(before) if before else []) + (second(after) if after else [])

    return read


def _plain(values: Values, count: int, what: str) -> list[Any]:
    """`values` as Python numbers, strings or dates; a moment becomes its day."""
    try:
        array = np.asarray(values)
    except ValueError:
        raise UserError(f"{what} must be one value per image.") from None
    if array.shape != (count,):
        raise UserError(f"{what} have the shape {array.shape}; expected one value for each of the {count} images.")
    plain = (array.astype("datetime64[D]") if array.dtype.kind == "M" else array).tolist()
    if any(value is None for value in plain):
        raise UserError(f"{what}: some images have none. Give a value for every image, or leave them out.")
    kinds = {type(value) for value in plain}
    if not kinds <= {int, bool, str, datetime.date, datetime.datetime} or len(kinds) > 1:
        raise UserError(f"{what} must be whole numbers, strings or dates, not {plain[0]!r}.")
    return [value.date() if isinstance(value, datetime.datetime) else value for value in plain]


def _number(
    values: Values | None, count: int, what: str, names: Sequence[str] | None = None
) -> tuple[np.ndarray | None, tuple[str, ...]]:
    """For each image the position of its value, and the distinct values in order, as text."""
    if values is None:
        return None, ()
    plain = _plain(values, count, what)
    if names is not None:
        if len(set(names)) < len(names):
            raise UserError(f"{what}: class_names contains the same name twice.")
        if type(plain[0]) is not int or min(plain) < 0 or max(plain) >= len(names):
            raise UserError(f"{what} must be whole numbers from 0 to {len(names) - 1}, one for each class name.")
        return np.asarray(plain, dtype=np.int64), tuple(names)
    distinct = sorted(set(plain), key=natural if isinstance(plain[0], str) else None)
    position = {value: number for number, value in enumerate(distinct)}
    return np.asarray([position[value] for value in plain], dtype=np.int64), tuple(str(value) for value in distinct)


def _number_like(
    values: Values | None, count: int, names: tuple[str, ...], what: str, positions: bool = False
) -> np.ndarray:
    """Number the values of the test images as those of the training images were numbered."""
    if values is None:
        raise UserError(f"{what} are missing: give one for each test image, as for the training images.")
    known = {str(position) if positions else name: position for position, name in enumerate(names)}
    texts = [str(value) for value in _plain(values, count, what)]
    for text in texts:
        if text not in known:
            raise UserError(f"{what} contain {text!r}, which has no training images.")
    return np.asarray([known[text] for text in texts], dtype=np.int64)


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
