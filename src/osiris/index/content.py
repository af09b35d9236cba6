"""Files that an index knows by their content: moved, renamed, touched or copied, they need not be embedded again."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow

from osiris.data.looks import file_digest
from osiris.errors import UserError
from osiris.index.store import Index

FileStatus = tuple[int, int]
"""Size, and time in nanoseconds."""
AT_ONCE = 4096
"""Files whose vectors are written again at a time."""


class Recognised:
    """Files that got the vectors of others, and what became of these."""

    def __init__(self, index: Index, listed: dict[str, FileStatus]) -> None:
        self.index, self.listed = index, listed
        self.new = self.changed = self.moved = self.copies = self.back = 0
        """Files that the index did not know by name; that it knew with another status; that were moved, renamed or
        touched; that are copies; and that were gone and are there under another name."""

    def among(self, paths: Sequence[str]) -> list[str]:
        """Give those whose content the index has its vectors; returns the others."""
        if not paths:
            return []
        known = _known_contents(self.index)
        sizes, others, found = {size for size, _ in known}, list[str](), dict[str, str]()
        for path in paths:
            size = self.listed[path][0]
            digest = _digest(path) if size in sizes else None
            old = None if digest is None else known.get((size, digest))
            if old is None:
                others.append(path)
                continue
            found[path] = old
            if len(found) == AT_ONCE:
                self._point(found)
                known = _known_contents(self.index)
        self._point(found)
        return others

    def _point(self, found: dict[str, str]) -> None:
        """New path -> known path with the same content."""
        places = {path: self.index.where[old] for path, old in found.items()}
        for part in {id(part): part for part, _ in places.values()}.values():
            paths = [path for path, (place, _) in places.items() if place is part]
            rows = part.take(np.array([places[path][1] for path in paths]))
            stats = np.array([self.listed[path] for path in paths], dtype=np.int64)
            for path in paths:
                self._count(path, found[path])
            names = pyarrow.array(paths, pyarrow.string())
            self.index.add(part.version, replace(rows, paths=names, size=stats[:, 0], mtime=stats[:, 1]))
        found.clear()

    def _count(self, path: str, old: str) -> None:
        """And let a file that is gone be the new one."""
        if path in self.index.where:
            self.changed += 1
        else:
            self.new += 1
        place = self.index.where.get(old)
        moved = place is not None and path != old and bool(place[0].gone[place[1]])
        if moved:
            self.index.supersede(old)
            self.back += 1
        if moved or path == old:
            self.moved += 1
        else:
            self.copies += 1


def _known_contents(index: Index) -> dict[tuple[int, bytes], str]:
    """Size and digest -> a file that has, or had, this content; one that is gone if there is one."""
    known: dict[tuple[int, bytes], str] = {}
    for path, (part, row) in index.where.items():
        digest = part.rows.facts["digest"][row]
        key = int(part.rows.size[row]), digest.tobytes()
        if digest.any() and (key not in known or part.gone[row]):
            known[key] = path
    return known


def twins_among(paths: Sequence[str], listed: dict[str, FileStatus]) -> list[str]:
    """Files with the content of one before them."""
    sizes, seen, twins = Counter(listed[path][0] for path in paths), set[bytes](), list[str]()
    for path in paths:
        digest = _digest(path) if sizes[listed[path][0]] > 1 else None
        if digest is not None and digest in seen:
            twins.append(path)
        elif digest is not None:
            seen.add(digest)
    return twins


def _digest(path: str) -> bytes | None:
    try:
        return file_digest(Path(path))
    except (OSError, UserError):
        return None


def file_status(path: str) -> FileStatus:
    status = os.stat(path)  # noqa: PTH116
    return status.st_size, status.st_mtime_ns
