"""The files of an index: parts, maps, and manifest.json, which is written last and decides what belongs to it.

A kill at any moment leaves the index as it was before or after an update. Readers need no lock: parts never change.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.compute as compute

from osiris.data.looks import FACTS, PIXELS, Look
from osiris.errors import UserError
from osiris.files import write_json
from osiris.index.parts import Part, Rows, joined, open_part, write_part
from osiris.index.records import FORMAT, Manifest, MapRecord, PartRecord, Version, read_manifest, to_ranges
from osiris.runs.lock import lock_directory, unlock

MANIFEST = "manifest.json"
MERGED = 10_000
"""Small parts are merged into one of at most so many rows: updating often does not leave thousands of files."""
ATTEMPTS = 10
"""To open an index that another process changes meanwhile."""


class Index:
    """The parts of an index as they were when it was opened. Inside `with index:`, this process alone changes them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock: int | None = None
        self._load()

    @property
    def exists(self) -> bool:
        return (self.folder / MANIFEST).exists()

    def _load(self) -> None:
        self.parts, self.maps, self.counter, self.dimension = list[Part](), list[MapRecord](), 0, 0
        self.seconds_per_image: float | None = None
        if self.folder.is_symlink():
            raise UserError(f"{self.folder} is a link; an index is a folder in its state. Remove the link.")
        for attempt in range(ATTEMPTS):
            if not self.exists:
                return
            manifest = read_manifest(self.folder / MANIFEST)
            try:
                self.parts = [open_part(self.folder, record, manifest.dimension) for record in manifest.parts]
            except FileNotFoundError as error:  # perhaps replaced between reading the manifest and now
                if attempt + 1 < ATTEMPTS and manifest != read_manifest(self.folder / MANIFEST):
                    continue
                raise UserError(
                    f"{error.filename or self.folder}: a part of the index is missing. Remove the folder {self.folder} "
                    "and make the index again with osiris index."
                ) from None
            self.maps, self.counter, self.dimension = [*manifest.maps], manifest.counter, manifest.dimension
            self.seconds_per_image = manifest.seconds_per_image
            return

    def __enter__(self) -> Index:
        self._lock = lock_directory(self.folder)
        self._load()
        self._remove_what_the_manifest_does_not_name()
        self.where: dict[str, tuple[Part, int]] = {}
        """The row of every file, gone or not."""
        for part in self.parts:
            kept = np.flatnonzero(~part.superseded)
            names = part.rows.paths.take(pyarrow.array(kept)).to_pylist()
            self.where.update((name, (part, row)) for name, row in zip(names, kept.tolist()))
        return self

    def __exit__(self, *_: object) -> None:
        assert self._lock is not None
        unlock(self._lock)
        self._lock = None

    def _remove_what_the_manifest_does_not_name(self) -> None:
        named = {one.name for one in (*self.parts, *self.maps)}
        for pattern in ("part-*.arrow", "map-*.safetensors", ".*.tmp"):
            for file in self.folder.glob(pattern):
                if file.name not in named:
                    file.unlink(missing_ok=True)

    def new_name(self, kind: str) -> str:
        self.counter += 1
        ending = {"part": "arrow", "map": "safetensors"}[kind]
        return f"{kind}-{self.counter:06d}.{ending}"

    def commit(self) -> None:
        """Write the manifest, then remove what it does not name any more."""
        assert self._lock is not None, "only inside `with index:`"
        self.parts = [part for part in self.parts if not part.superseded.all()]
        parts = [part.record() for part in self.parts]
        manifest = Manifest(
            format=FORMAT,
            dimension=max(1, self.dimension),
            counter=self.counter,
            parts=parts,
            maps=self.maps,
            seconds_per_image=self.seconds_per_image,
        )
        write_json(self.folder / MANIFEST, manifest.plain())
        self._remove_what_the_manifest_does_not_name()

    def append(
        self,
        version: Version,
        paths: Sequence[str],
        stats: np.ndarray,
        vectors: np.ndarray,
        looks: Sequence[Look] | None = None,
    ) -> None:
        """Add rows, in place of those that the files had before. `stats`: int64 [n, 2], size and time. `looks`: None
        means not known."""
        facts, thumbnails = np.zeros(len(paths), FACTS), np.zeros((len(paths), PIXELS), np.uint8)
        if looks is not None:
            facts, thumbnails = np.array([one.facts for one in looks]), np.stack([one.thumbnail for one in looks])
        size, mtime = stats[:, 0].copy(), stats[:, 1].copy()
        self.add(version, Rows(pyarrow.array(paths, pyarrow.string()), size, mtime, facts, thumbnails, vectors))

    def add(self, version: Version, rows: Rows) -> None:
        vectors = rows.vectors
        if self.dimension and self.parts and vectors.shape[1] != self.dimension:
            raise UserError(
                f"{self.folder} has vectors of {self.dimension} numbers, this encoder gives {vectors.shape[1]}: they "
                "belong to different encoders. Remove the folder and make the index again."
            )
        self.dimension = vectors.shape[1]
        for path in rows.paths.to_pylist():
            self.supersede(path)
        gone = np.zeros(len(rows), dtype=bool)
        while self.parts and self._worth_merging(self.parts[-1], version, len(rows)):
            last = self.parts.pop()
            kept = np.flatnonzero(~last.superseded)
            rows, gone = joined([last.take(kept), rows]), np.concatenate([last.gone[kept], gone])
        self.parts.append(self._write(version, rows, gone))
        self.commit()

    def supersede(self, path: str) -> None:
        """The row of a file, if it has one, does not count any more. The caller commits."""
        if path in self.where:
            part, row = self.where.pop(path)
            part.superseded[row] = True

    def _worth_merging(self, part: Part, version: Version, rows: int) -> bool:
        count = int((~part.superseded).sum())
        return part.version.digest == version.digest and count <= rows and count + rows <= MERGED

    def _write(self, version: Version, rows: Rows, gone: np.ndarray) -> Part:
        name = self.new_name("part")
        record = PartRecord(
            name=name,
            rows=len(rows),
            version=version,
            digest=write_part(self.folder / name, version, rows),
            gone=to_ranges(gone),
        )
        part = open_part(self.folder, record, self.dimension)
        self.where.update((path, (part, row)) for row, path in enumerate(part.rows.paths.to_pylist()))
        return part

    def forget(self, places: Sequence[str]) -> int:
        """Remove all rows of files, given by absolute paths, or of all files below a folder; returns how many files it
        knew. The caller commits."""
        found = 0
        for part in self.parts:
            hit = np.any([below(part.rows.paths, place) for place in places], axis=0)
            found += int((hit & ~part.superseded).sum())
            part.superseded |= hit
            part.doomed = bool(hit.any())
        self.compact()
        return found

    def compact(self) -> None:
        """Write parts again without superseded rows, where these are more than half or must go. The caller commits."""
        for at, part in enumerate(self.parts):
            if (part.doomed or part.superseded.mean() > 0.5) and not part.superseded.all():
                kept = np.flatnonzero(~part.superseded)
                self.parts[at] = self._write(part.version, part.take(kept), part.gone[kept])


def absolute(place: Path) -> str:
    """One file has one name: without `..`, links are not resolved."""
    return os.path.abspath(place.expanduser())  # noqa: PTH100


def is_text(path: str) -> bool:
    """Whether a name is UTF-8, as all names in an index are."""
    try:
        return bool(path.encode())
    except UnicodeEncodeError:
        return False


def below(paths: pyarrow.StringArray, place: str) -> np.ndarray:
    """bool [n]: the file `place` itself, and all files below the folder `place`."""
    if not is_text(place):
        return np.zeros(len(paths), dtype=bool)
    inside = compute.call_function("starts_with", [paths], compute.MatchSubstringOptions(place.rstrip("/") + "/"))
    same = compute.call_function("equal", [paths, pyarrow.scalar(place)])
    return inside.to_numpy(zero_copy_only=False) | same.to_numpy(zero_copy_only=False)
