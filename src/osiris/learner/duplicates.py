"""What the images of an index have twice: the same bytes, the same picture, series, and pictures that look alike."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import torch

from osiris.console import progress
from osiris.index.copies import Group, Kind, look_alikes, runs_in_time, same_bytes, same_picture, series
from osiris.index.gallery import Gallery
from osiris.learner.indexed import Opened
from osiris.randomness import generator

SAMPLE = 1000
"""Images by which it is decided what looks alike."""
RARE, UNUSUAL = 0.99, 0.9
"""These parts of the images are less similar to every image of another folder: look-alikes are as near as the first,
pictures that were taken one after the other are a series if they are as near as the second."""
TENTHS = 10


@dataclass(frozen=True)
class Twin:
    """An image of a group."""

    path: Path
    similarity: float
    """Cosine to the first of its group."""
    width: int
    height: int
    """0: not known."""
    bytes: int
    taken: str | None
    """By the clock of the camera."""
    could_go: bool
    """It is a copy of a picture that stays."""


@dataclass(frozen=True)
class TwinGroup:
    kind: Kind
    images: list[Twin]
    """The best first."""


@dataclass(frozen=True)
class Duplicates:
    groups: list[TwinGroup]
    """The same bytes first, then the same picture, series and look-alikes; the largest first."""
    could_go: int
    """Images that are copies of one that stays."""
    cosine: float | None
    """Images that are more similar than this look alike: as similar as almost no images of different folders are."""
    notices: list[str]


def find_duplicates(opened: Opened) -> Duplicates:
    gallery, rows = opened.gallery, opened.gallery.shown
    facts, sizes = gallery.column("facts", rows), gallery.column("size", rows)
    there, missing = np.arange(len(rows)), 0

    def thumbnails(some: np.ndarray) -> np.ndarray:
        return gallery.column("thumbnails", rows[some])

    while True:
        bytewise = same_bytes(facts, sizes, there)
        first = _without_followers(there, bytewise)
        pictures = same_picture(facts, sizes, thumbnails, first)
        absent, names = _absent(gallery, rows, [*bytewise, *pictures])
        if not absent | names:
            break
        there, missing = np.setdiff1d(there, np.array(sorted(absent | names))), missing + len(absent)
    first = _without_followers(first, pictures)
    absent, names = _absent(gallery, rows, [Group("a series", run) for run in _runs(gallery, rows, facts, first)])
    first = np.setdiff1d(first, np.array(sorted(absent | names), int))
    elsewhere = _nearest_elsewhere(gallery, rows[first])
    level = float(np.quantile(elsewhere, UNUSUAL, method="higher")) if len(elsewhere) else np.inf
    bursts = series(_runs(gallery, rows, facts, first), lambda some: gallery.vectors(rows[some]), level)
    first = _without_followers(first, bursts)
    cosine = float(np.quantile(elsewhere, RARE, method="higher")) if len(elsewhere) else None
    left, right = _alike(gallery, rows[first], cosine)
    alike = look_alikes(np.searchsorted(rows, left), np.searchsorted(rows, right))
    absent, names = _absent(gallery, rows, alike)
    alike = [Group(one.kind, one.members[[at not in absent | names for at in one.members.tolist()]]) for one in alike]
    alike = [one for one in alike if len(one.members) > 1]
    goes = {position for one in (*bytewise, *pictures) for position in one.members[1:].tolist()}

    def described(group: Group) -> TwinGroup:
        order = np.sort(group.members)
        vectors = gallery.vectors(rows[order])[np.searchsorted(order, group.members)]
        cosines = (vectors @ vectors[0]).tolist()
        known = zip(rows[group.members].tolist(), facts[group.members], sizes[group.members].tolist(), cosines)
        twins = [_twin(gallery, *one, at in goes) for at, one in zip(group.members.tolist(), known)]
        return TwinGroup(group.kind, twins)

    kinds = (bytewise, pictures, bursts, alike)
    groups = [described(one) for kind in kinds for one in sorted(kind, key=lambda one: -len(one.members))]
    notices = list(opened.notices)
    if missing:
        notices.append(
            f"{missing:,} files are gone, or changed since they were indexed, and were left out: `osiris index "
            "STATE FOLDER` brings the index up to date."
        )
    return Duplicates(groups, len(goes), cosine, notices)


def _runs(gallery: Gallery, rows: np.ndarray, facts: np.ndarray, positions: np.ndarray) -> list[np.ndarray]:
    paths = [gallery.path(row) for row in rows[positions].tolist()]
    return [positions[run] for run in runs_in_time(paths, facts["taken"][positions])]


def _nearest_elsewhere(gallery: Gallery, rows: np.ndarray) -> np.ndarray:
    """Of some images: the cosine to the most similar one of another folder. Images of one folder are often of one place
    and day: those of different folders show how similar images are that have nothing to do with each other."""
    folders = [gallery.path(int(row)).rpartition("/")[0] for row in rows]
    place = np.unique(folders, return_inverse=True)[1]
    if len(set(folders)) == 1:
        place = np.arange(len(rows)) * TENTHS // max(1, len(rows))
    chosen = torch.randperm(len(rows), generator=generator(0, "index.alike"))[:SAMPLE].numpy()
    return gallery.nearest_elsewhere(rows, place, chosen) if len(rows) else np.empty(0, np.float32)


def _alike(gallery: Gallery, rows: np.ndarray, cosine: float | None) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of rows that are more similar than this."""
    if cosine is None:
        return np.empty(0, int), np.empty(0, int)
    with progress("comparing", len(rows)) as ticker:
        return gallery.pairs(rows, np.nextafter(np.float32(cosine), np.float32(2)).item(), ticker)


def _without_followers(positions: np.ndarray, groups: Sequence[Group]) -> np.ndarray:
    followers = [one.members[1:] for one in groups]
    return np.setdiff1d(positions, np.concatenate(followers)) if followers else positions


def _absent(gallery: Gallery, rows: np.ndarray, groups: Sequence[Group]) -> tuple[set[int], set[int]]:
    """(positions of files that are gone or have changed, positions of further names of a file that has another)."""
    members = np.unique(np.concatenate([one.members for one in groups])) if groups else np.empty(0, int)
    sizes, times = (gallery.column(name, rows[members]).tolist() for name in ("size", "mtime"))
    gone, others, known = set[int](), set[int](), dict[tuple[int, int], int]()
    paths = [gallery.path(row) for row in rows[members].tolist()]
    linked = [os.path.islink(path) for path in paths]  # noqa: PTH114
    for at in sorted(range(len(paths)), key=lambda at: linked[at]):
        try:
            status = os.stat(paths[at])  # noqa: PTH116
        except OSError:
            status = None
        if status is None or (status.st_size, status.st_mtime_ns) != (sizes[at], times[at]):
            gone.add(int(members[at]))
        elif known.setdefault((status.st_dev, status.st_ino), at) != at:
            others.add(int(members[at]))
    return gone, others


def _twin(gallery: Gallery, row: int, facts: np.ndarray, size: int, similarity: float, goes: bool) -> Twin:
    width, height, date = int(facts["width"]), int(facts["height"]), clock(int(facts["taken"]))
    return Twin(Path(gallery.path(row)), similarity, width, height, size, date, goes)


def clock(taken: int) -> str | None:
    return datetime.fromtimestamp(taken, UTC).strftime("%Y-%m-%d %H:%M:%S") if 0 < taken < 2**35 else None
