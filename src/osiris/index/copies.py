"""Copies of a picture, found without an encoder, and without comparing all pairs of files.

The same bytes have the same digest. The same picture, compressed again, resized or turned by EXIF, has a hash that
differs in few bits (`near_hashes`) and a thumbnail that agrees with it. Every copy is compared with the best file of
its group itself: there are no chains.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from osiris.data.looks import CELLS, SIDE

Kind = Literal["the same bytes", "the same picture", "a series", "look-alikes"]
BANDS, BAND = 4, 16
"""A hash has four bands of 16 bits: of two hashes that differ in at most `DISTANCE` bits, one band differs in one or
none."""
DISTANCE = 2 * BANDS - 1
SMALLEST = 16
"""Pixels of the shorter side: smaller pictures are not recognised."""
LIMITS, SMALL_LIMITS, SMALL = (9.0, 32.0, 0.96), (14.0, 42.0, 0.85), 32
"""The largest difference of grey and of colour in a cell, and the least correlation of grey in 16 x 16; where the
shorter side of one picture has fewer than `SMALL` pixels, the second. benchmarks/copies.py measures them."""
CONTRAST = 4.0
"""Least deviation of the grey values of a thumbnail: an empty page is not recognised."""
CHUNK = 1 << 20
SECONDS = 10
"""Between two pictures of a series."""
NUMBERED = re.compile(r"(.*?)(\d{1,18})(\D*)", re.DOTALL)
"""A name, its last number, and what follows it."""


@dataclass(frozen=True)
class Group:
    kind: Kind
    members: np.ndarray
    """int64 [n]: positions of files, the best first."""


def best_first(facts: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Positions of files by pixels, then bytes, then the earlier date."""
    pixels, dates = facts["width"].astype(np.int64) * facts["height"], facts["taken"]
    return np.lexsort((np.where(dates == 0, np.iinfo(np.int64).max, dates), -sizes, -pixels))


def look_alikes(left: np.ndarray, right: np.ndarray) -> list[Group]:
    """From pairs of positions: groups around one picture, with which each other is paired itself; the pictures with the
    most pairs first."""
    near: dict[int, list[int]] = {}
    for one, other in zip(left.tolist(), right.tolist()):
        near.setdefault(one, []).append(other)
        near.setdefault(other, []).append(one)
    groups, taken = list[Group](), set[int]()
    for leader in sorted(near, key=lambda one: (-len(near[one]), one)):
        members = [] if leader in taken else [one for one in near[leader] if one not in taken]
        if members:
            taken |= {leader, *members}
            groups.append(Group("look-alikes", np.array([leader, *members])))
    return groups


def runs_in_time(paths: Sequence[str], taken: np.ndarray) -> list[np.ndarray]:
    """Positions of pictures of one folder that were taken one after the other: at most `SECONDS` apart, or, where no
    camera has written a time, with consecutive numbers in their names. In that order."""
    keys = list[tuple[str, str, int]]()
    for path, time in zip(paths, taken.tolist()):
        folder, _, name = path.rpartition("/")
        found = NUMBERED.fullmatch(name)
        if time > 0 or found is None:
            keys.append((folder, "" if time > 0 else f"/{name}", time))
        else:
            keys.append((folder, f"{found[1]}/{found[3]}", int(found[2])))
    runs = list[list[int]]()
    for at in sorted(range(len(keys)), key=lambda at: (keys[at], paths[at])):
        before = keys[runs[-1][-1]] if runs else ("", "", 0)
        most = 1 if keys[at][1] else SECONDS
        if runs and before[:2] == keys[at][:2] and keys[at][2] - before[2] <= most:
            runs[-1].append(at)
        else:
            runs.append([at])
    return [np.array(run) for run in runs if len(run) > 1]


def series(runs: Sequence[np.ndarray], vectors: Callable[[np.ndarray], np.ndarray], cosine: float) -> list[Group]:
    """Of each run, pictures that are at least so similar to the first of their series. `vectors`: float32 [n, d] of
    positions in ascending order."""
    groups = list[Group]()
    for run in runs:
        order = np.sort(run)
        known = vectors(order)[np.searchsorted(order, run)]
        start = 0
        for end in range(1, len(run) + 1):
            if end == len(run) or known[start] @ known[end] < cosine:
                if end - start > 1:
                    groups.append(Group("a series", run[start:end]))
                start = end
    return groups


def same_bytes(facts: np.ndarray, sizes: np.ndarray, positions: np.ndarray) -> list[Group]:
    order = positions[best_first(facts[positions], sizes[positions])]
    order = order[facts["digest"][order].any(axis=1)]
    keys = np.ascontiguousarray(facts["digest"][order]).view("V16").ravel()
    _, inverse, counts = np.unique(keys, return_inverse=True, return_counts=True)
    return [Group("the same bytes", order[inverse == one]) for one in np.flatnonzero(counts > 1)]


def same_picture(
    facts: np.ndarray, sizes: np.ndarray, thumbnails: Callable[[np.ndarray], np.ndarray], positions: np.ndarray
) -> list[Group]:
    """`thumbnails`: uint8 [n, PIXELS] of files at these positions. Of files with the same bytes,
    `positions` has one."""
    rank = np.empty(len(facts), np.int64)
    rank[positions[best_first(facts[positions], sizes[positions])]] = np.arange(len(positions))
    near: dict[int, list[int]] = {}
    known = positions[np.minimum(facts["width"], facts["height"])[positions] >= SMALLEST]
    for left, right in near_hashes(facts["hash"][known]):
        for one, other in zip(known[left].tolist(), known[right].tolist()):
            near.setdefault(one, []).append(other)
            near.setdefault(other, []).append(one)
    groups, taken = list[Group](), set[int]()
    for leader in sorted(near, key=lambda one: rank[one]):
        others = np.array([one for one in near[leader] if one not in taken])
        if leader in taken or not len(others):
            continue
        same = others[one_picture(leader, others, facts, thumbnails)]
        if len(same):
            same = same[np.argsort(rank[same])]
            taken |= {leader, *same.tolist()}
            groups.append(Group("the same picture", np.array([leader, *same])))
    return groups


def near_hashes(hashes: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Pairs of positions whose hashes differ in at most `DISTANCE` bits, each once."""
    flips = np.array([0, *(1 << bit for bit in range(BAND))], np.uint64)
    for band in range(BANDS):
        keys = (hashes >> np.uint64(BAND * band)) & np.uint64((1 << BAND) - 1)
        order = np.argsort(keys, kind="stable")
        ordered = keys[order]
        for flip in flips:
            first, last = (np.searchsorted(ordered, keys ^ flip, side) for side in ("left", "right"))
            yield from _pairs(hashes, band, order, first, last - first)


def _pairs(
    hashes: np.ndarray, band: int, order: np.ndarray, first: np.ndarray, count: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Position i goes with the `count[i]` positions from `order[first[i]]` on."""
    ends = np.cumsum(count)
    cuts = np.searchsorted(ends, np.arange(CHUNK, ends[-1] + CHUNK, CHUNK), side="left") + 1 if len(ends) else []
    for start, stop in zip([0, *cuts[:-1]], cuts):
        part = slice(start, stop)
        left = np.repeat(np.arange(len(hashes))[part], count[part])
        inner = np.arange(len(left)) - np.repeat(np.cumsum(count[part]) - count[part], count[part])
        right = order[np.repeat(first[part], count[part]) + inner]
        apart = hashes[left] ^ hashes[right]
        found = (left < right) & (np.bitwise_count(apart) <= DISTANCE)
        for earlier in range(band):  # bands before this one have found the others
            bits = (apart >> np.uint64(BAND * earlier)) & np.uint64((1 << BAND) - 1)
            found &= np.bitwise_count(bits) > 1
        yield left[found], right[found]


def one_picture(
    leader: int, others: np.ndarray, facts: np.ndarray, thumbnails: Callable[[np.ndarray], np.ndarray]
) -> np.ndarray:
    """bool: which files show the picture of the leader, by their pixels."""
    chosen, thumbs = facts[np.array([leader, *others])], thumbnails(np.array([leader, *others]))
    shape, side = np.log(chosen["width"] / chosen["height"]), np.minimum(chosen["width"], chosen["height"])
    rounding = 0.01 + 1 / side
    fits = np.abs(shape[1:] - shape[0]) <= rounding[1:] + rounding[0]
    grey, fine, colour = (part.astype(np.float32) for part in scales(thumbs))
    small = np.minimum(side[1:], side[0]) < SMALL
    most_grey, most_colour, least = (np.where(small, few, usual) for usual, few in zip(LIMITS, SMALL_LIMITS))
    fits &= np.abs(grey[1:] - grey[0]).max(axis=1) <= most_grey
    fits &= np.abs(colour[1:] - colour[0]).max(axis=1) <= most_colour
    return fits & (correlation(fine) >= least) & (fine[1:].std(axis=1) >= CONTRAST) & (fine[0].std() >= CONTRAST)


def scales(thumbnails: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of uint8 [n, PIXELS]: grey in cells and in 16 x 16, and colour in cells, each [n, values]."""
    count, grey = len(thumbnails), thumbnails[:, : SIDE**2].astype(np.float32)
    cells, fine = (
        grey.reshape(count, side, SIDE // side, side, SIDE // side).mean(axis=(2, 4)).reshape(count, -1)
        for side in (CELLS, 2 * CELLS)
    )
    return cells, fine, thumbnails[:, SIDE**2 :]


def correlation(rows: np.ndarray) -> np.ndarray:
    """float32 [n - 1]: of each row but the first with the first."""
    centred = rows - rows.mean(axis=1, keepdims=True)
    unit = centred / np.linalg.norm(centred, axis=1, keepdims=True).clip(min=1e-6)
    return unit[1:] @ unit[0]
