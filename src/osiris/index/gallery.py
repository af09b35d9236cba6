"""The vectors of an index as one gallery of one version: exact search by matrix products, block by block.

Vectors of an earlier version are not copied: the cosine of a query q and a mapped vector xW / |xW| is that of the
mapped query, q W' . x / |xW|, and the lengths |xW| were computed with the map.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from osiris.console import Ticker
from osiris.errors import UserError
from osiris.evaluation.knn import nearest
from osiris.index.maps import read_map
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
    """The map [d, d]; None: the part has the version of the gallery."""
    length: np.ndarray | None
    """float32 [n]: the lengths of its mapped vectors."""


class Gallery:
    """All files of an index, or those below some folders, as vectors of one version."""

    def __init__(self, index: Index, version: Version, folders: Sequence[str] | None = None) -> None:
        maps = {one.source: one for one in index.maps if one.target == version.digest}
        _refuse_mixture(index, version, maps.keys() | {version.digest})
        read = {part.version.digest: None for part in index.parts} | {
            source: read_map(index, one) for source, one in maps.items()
        }
        self.segments, self.maps, start = list[Segment](), [*maps.values()], 0
        for part in index.parts:
            shown = part.live
            if folders is not None:
                shown &= np.any([np.zeros_like(shown), *(below(part.rows.paths, one) for one in folders)], axis=0)
            known = read[part.version.digest] if part.version.digest != version.digest else None
            weight, length = (None, None) if known is None else (known.weight, known.lengths[part.name])
            self.segments.append(Segment(part, start, shown, weight, length))
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
            chosen = one.part.rows.vectors[inside]
            parts.append(chosen if one.weight is None else chosen @ one.weight / one.length[inside, None])  # pyright: ignore
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
                block = mapped @ one.part.rows.vectors[rows].T
                if one.length is not None:
                    block /= one.length[rows]
                block[:, ~one.shown[rows]] = -np.inf
                np.copyto(block, -np.inf, where=np.isnan(block))
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

    def groups(self, cosine: float, ticker: Ticker | None = None) -> list[np.ndarray]:
        """Rows that are connected by cosines of at least `cosine`; the largest groups first."""
        shown = np.concatenate([one.start + np.flatnonzero(one.shown) for one in self.segments] or [np.empty(0, int)])
        label = np.arange(self.rows)
        for start in range(0, len(shown), QUERIES):
            own = shown[start : start + QUERIES]
            for first, block in self.similarities(self.vectors(own), int(own[0])):
                at, place = np.nonzero(block >= cosine)
                pairs = own[at], place + first
                apart = label[pairs[0]] != label[pairs[1]]
                if apart.any():
                    ends = label[pairs[0][apart]], label[pairs[1][apart]]
                    graph = coo_array((np.ones(len(ends[0]), bool), ends), shape=(self.rows, self.rows))
                    label = connected_components(graph, directed=False)[1][label]
            if ticker is not None:
                ticker.advance(len(own))
        order = shown[np.argsort(label[shown], kind="stable")]
        groups = np.split(order, np.flatnonzero(np.diff(label[order])) + 1)
        return sorted((group for group in groups if len(group) > 1), key=lambda group: (-len(group), group[0]))


def _refuse_mixture(index: Index, version: Version, comparable: set[str]) -> None:
    strange = [part for part in index.parts if part.version.digest not in comparable and part.live.any()]
    if strange:
        count = sum(int(part.live.sum()) for part in strange)
        episodes = sorted({part.version.episode for part in strange})
        raise UserError(
            f"{count:,} vectors of the index are of the encoder after episode {', '.join(map(str, episodes))}, which "
            f"cannot be compared with those after episode {version.episode}. `osiris index STATE FOLDER...` embeds a "
            "sample of their files again and maps the others; if their folder is gone, `osiris observe STATE --forget "
            "FOLDER` removes them."
        )
