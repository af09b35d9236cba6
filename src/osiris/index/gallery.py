"""The vectors of an index as one gallery of one version: exact search by matrix products, block by block.

Vectors that are mapped, because they are of an earlier version or are compared through a readout, are not copied: the
cosine of a query q and a mapped vector (x - c)W / |(x - c)W| is q W' . (x - c) / |(x - c)W|. The lengths are computed
with the map, or once for a readout.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np
import torch

from osiris.console import Ticker
from osiris.errors import UserError
from osiris.evaluation.knn import nearest
from osiris.index.maps import read_map
from osiris.index.newest import View
from osiris.index.parts import Part
from osiris.index.records import Version
from osiris.index.store import Index, below

BLOCK = 1 << 14
"""Rows of the index in one product."""
QUERIES = 512
"""Queries in one product."""


@dataclass(frozen=True)
class Segment:
    """A part, and how its vectors are compared with those of the gallery's version."""

    part: Part
    start: int
    """The number of its first row in the gallery."""
    shown: np.ndarray
    """bool [n]: the rows that are searched."""
    weight: np.ndarray | None
    """The map [d, p]; None: vectors are compared as they are."""
    length: np.ndarray | None
    """float32 [n]: the lengths of its mapped vectors."""
    centre: np.ndarray | None = None
    """float32 [d]: subtracted before the map."""

    def rows(self, chosen: slice | np.ndarray) -> np.ndarray:
        """float32 [n, d], before the map."""
        vectors = self.part.vectors[chosen]
        return vectors if self.centre is None else vectors.astype(np.float32, copy=False) - self.centre


class Gallery:
    """All files of an index, or those below some folders, as vectors of one version."""

    def __init__(
        self,
        index: Index,
        version: Version,
        folders: Sequence[str] | None = None,
        view: View | None = None,
        partly: bool = False,
    ) -> None:
        """`view`: the readout through which vectors are compared. `partly`: leave out what cannot be compared, instead
        of refusing it."""
        maps = {one.source: one for one in index.maps if one.target == version.digest}
        if not partly:
            _refuse_mixture(index, version)
        read = {source: read_map(index, one) for source, one in maps.items()}
        self.segments, self.maps, start = list[Segment](), [*maps.values()], 0
        for part in index.parts:
            shown = part.live
            if folders is not None:
                shown &= np.any([np.zeros_like(shown), *(below(part.rows.paths, one) for one in folders)], axis=0)
            known = read.get(part.version.digest) if part.version.digest != version.digest else None
            if known is not None:
                one = Segment(part, start, shown, known.weight, known.lengths[part.name])
            elif part.version.digest != version.digest:
                one = Segment(part, start, np.zeros_like(shown), None, None)
            elif view is None:
                one = Segment(part, start, shown, None, None)
            else:
                lengths = _lengths_through(part, view) if shown.any() else None
                one = Segment(part, start, shown, view.projection, lengths, view.centre)
            self.segments.append(one)
            start += len(part.rows)
        self.rows = start

    def __len__(self) -> int:
        return sum(int(one.shown.sum()) for one in self.segments)

    def path(self, row: int) -> str:
        segment = next(one for one in reversed(self.segments) if one.start <= row)
        return segment.part.rows.paths[row - segment.start].as_py()

    def vectors(self, rows: np.ndarray) -> np.ndarray:
        """float32 [n, d] of some rows, in ascending order, in the version of the gallery."""
        parts = []
        for one in self.segments:
            inside = rows[(rows >= one.start) & (rows < one.start + len(one.part.rows))] - one.start
            chosen = one.rows(inside)
            if one.weight is not None:
                chosen = chosen @ one.weight
            parts.append(chosen if one.length is None else chosen / one.length[inside, None])
        return np.concatenate(parts)

    def similarities(self, queries: np.ndarray, first: int = 0) -> Iterator[tuple[int, np.ndarray]]:
        """(number of the first row, cosines [queries, rows]) block by block, from the block with the row `first` on;
        rows that are not shown have -inf."""
        for one in self.segments:
            if first >= one.start + len(one.part.rows) or not one.shown.any():
                continue
            mapped = queries if one.weight is None else queries @ one.weight.T
            for start in range(0, len(one.part.rows), BLOCK):
                rows = slice(start, start + BLOCK)
                if first >= one.start + min(start + BLOCK, len(one.part.rows)):
                    continue
                block = mapped @ one.rows(rows).T
                if one.length is not None:
                    block /= one.length[rows]
                block[:, ~one.shown[rows]] = -np.inf
                yield one.start + start, block

    def search(self, queries: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
        """(cosines, rows), each [queries, at most count], nearest first, and the lower row first among equals."""
        found = []
        for start in range(0, len(queries), QUERIES):
            values, rows = [np.empty((len(queries[start : start + QUERIES]), 0), np.float32)], []
            rows.append(values[0].astype(np.int64))
            for first, block in self.similarities(queries[start : start + QUERIES]):
                best, places = nearest(torch.from_numpy(block), count)
                values.append(best.numpy())
                rows.append(places.numpy() + first)
            value, row = np.concatenate(values, axis=1), np.concatenate(rows, axis=1)
            order = np.lexsort((row, -value), axis=1)[:, : min(count, len(self))]
            found.append((np.take_along_axis(value, order, 1), np.take_along_axis(row, order, 1)))
        values, rows = zip(*found)
        return np.concatenate(values), np.concatenate(rows)

    @property
    def shown(self) -> np.ndarray:
        """The numbers of the rows that are searched."""
        return np.concatenate([one.start + np.flatnonzero(one.shown) for one in self.segments] or [np.empty(0, int)])

    def column(self, name: str, rows: np.ndarray) -> np.ndarray:
        """Of `Rows`, in the order of `rows`."""
        found = [np.empty(0)] * len(self.segments)
        number = np.searchsorted([one.start for one in self.segments], rows, side="right") - 1
        order = np.argsort(number, kind="stable")
        for at, one in enumerate(self.segments):
            found[at] = getattr(one.part.rows, name)[rows[number == at] - one.start]
        joined = np.concatenate(found)
        result = np.empty_like(joined)
        result[order] = joined
        return result

    def pairs(self, rows: np.ndarray, cosine: float, ticker: Ticker | None = None) -> tuple[np.ndarray, np.ndarray]:
        """The pairs among `rows`, ascending, whose cosine is at least `cosine`; the lower row first."""
        wanted = np.zeros(self.rows, dtype=bool)
        wanted[rows] = True
        found = [(np.empty(0, int), np.empty(0, int))]
        for start in range(0, len(rows), QUERIES):
            own = rows[start : start + QUERIES]
            for first, block in self.similarities(self.vectors(own), int(own[0])):
                at, place = np.nonzero(block >= cosine)
                left, right = own[at], place + first
                kept = (left < right) & wanted[right]
                found.append((left[kept], right[kept]))
            if ticker is not None:
                ticker.advance(len(own))
        left, right = zip(*found)
        return np.concatenate(left), np.concatenate(right)

    def nearest_elsewhere(self, rows: np.ndarray, place: np.ndarray, sample: np.ndarray) -> np.ndarray:
        """float32: for each position in `sample`, the largest cosine of `rows[sample]` with a row in another place."""
        known = np.full(self.rows, -1)
        known[rows] = place
        order = np.sort(sample)
        best = np.full(len(order), -np.inf, np.float32)
        for start in range(0, len(order), QUERIES):
            part = slice(start, start + QUERIES)
            for first, block in self.similarities(self.vectors(rows[order[part]])):
                there = known[first : first + block.shape[1]]
                block[(there[None] == place[order[part]][:, None]) | (there[None] < 0)] = -np.inf
                best[part] = np.maximum(best[part], block.max(axis=1))
        return best[np.isfinite(best)]


_known_lengths: WeakKeyDictionary[View, dict[tuple[str, str], np.ndarray]] = WeakKeyDictionary()


def _lengths_through(part: Part, view: View) -> np.ndarray:
    """float32 [n]; kept as long as the view is."""
    known = _known_lengths.setdefault(view, {})
    key = part.name, part.digest
    if key not in known:
        starts = range(0, len(part.rows), BLOCK)
        rows = (part.vectors[start : start + BLOCK].astype(np.float32) - view.centre for start in starts)
        lengths = [np.linalg.norm(block @ view.projection, axis=1) for block in rows]
        known[key] = np.concatenate(lengths).astype(np.float32).clip(min=1e-12)
    return known[key]


def incomparable(index: Index, version: Version) -> dict[int, int]:
    """Episode -> rows of the encoder after it that count, and that cannot be compared with this version."""
    known = {one.source for one in index.maps if one.target == version.digest} | {version.digest}
    found: dict[int, int] = {}
    for part in index.parts:
        rows = int(part.live.sum())
        if rows and part.version.digest not in known:
            found[part.version.episode] = found.get(part.version.episode, 0) + rows
    return found


def _refuse_mixture(index: Index, version: Version) -> None:
    if found := incomparable(index, version):
        raise UserError(
            f"{sum(found.values()):,} vectors of the index are of the encoder after episode "
            f"{', '.join(map(str, sorted(found)))}, which cannot be compared with those after episode "
            f"{version.episode}. `osiris index STATE FOLDER...` embeds a sample of their files again and maps the "
            "others; if their folder is gone, `osiris forget STATE FOLDER` removes them."
        )
