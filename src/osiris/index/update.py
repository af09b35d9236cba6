"""`osiris index`: embed what is new or changed, mark what is gone, and keep vectors of earlier versions usable."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from osiris.console import duration, notice, progress
from osiris.data.folder import Listing
from osiris.data.looks import Look, looking
from osiris.errors import Stopped, UserError
from osiris.evaluation.embedder import Embedder
from osiris.index.content import FileStatus, Recognised, file_status, twins_among
from osiris.index.maps import FEWEST, SAMPLE, add_map, keep_needed_maps
from osiris.index.newest import as_compared
from osiris.index.parts import Part
from osiris.index.places import forget_places
from osiris.index.records import MapRecord, Version
from osiris.index.store import Index, absolute, below, is_text
from osiris.randomness import generator

COMMIT_ROWS, COMMIT_SECONDS = 4096, 30.0
"""Vectors are written after so many, or after so much time: a kill loses no more than that."""
FEW, PATIENCE = 2000, 60.0
"""Files, and seconds: a search embeds as many again by itself."""
WORTH_SAYING = 10.0
"""Seconds: a step that takes longer is announced, after its first batch."""
MOST_NAMED = 5
"""Files that were left out and are named one by one."""

Pairs = tuple[np.ndarray, np.ndarray]
"""L2-normalised vectors [n, d] of the same images by an earlier encoder and by the current one."""


@dataclass
class Updated:
    """What an update did."""

    new: int = 0
    changed: int = 0
    unchanged: int = 0
    found: int = 0
    """Files that were moved, renamed or touched: they have the content of a file that is not there any more, or had it
    before. Nothing is embedded."""
    copies: int = 0
    """New files with the content of another one. Nothing is embedded."""
    gone: int = 0
    """Files that are marked because they are not there any more."""
    again: int = 0
    """Files that were embedded again because the encoder has changed."""
    waiting: int = 0
    """New or changed files that the time was too short for."""
    left_out: dict[str, int] = field(default_factory=dict)
    """Reason -> files."""
    notices: list[str] = field(default_factory=list)
    seconds_per_image: float | None = None


def update(
    index: Index,
    folders: Sequence[Path],
    embedder: Embedder,
    version: Version,
    refresh: bool = False,
    minutes: float | None = None,
    memory_pairs: Callable[[Version], Pairs | None] = lambda version: None,
    as_kept: Callable[[Tensor], np.ndarray] = as_compared,
    mapped: bool = True,
) -> Updated:
    """Bring the rows of all files below `folders` up to date. No other file is opened, whatever the index names.

    `refresh`: embed the files of earlier versions again, the oldest versions first. `minutes`: the time for all of it.
    `memory_pairs`: pairs of the images in the memory, for versions whose files are gone. `as_kept`: what the index
    keeps of features. `mapped`: vectors of earlier versions are mapped; otherwise their files are embedded again.
    """
    deadline = None if minutes is None else time.monotonic() + 60 * minutes
    job = _Update(index, embedder, version, deadline, as_kept)
    with index:
        listed = job.list(folders)
        if not listed and not index.exists:
            raise UserError(
                f"{', '.join(map(str, folders))}: there are no images. {' '.join(job.report.notices)}".rstrip()
            )
        todo = job.recognise(job.compare(listed, [absolute(folder) for folder in folders]), listed)
        twins = dict.fromkeys(twins_among(todo, listed))
        tried = job.embed([path for path in todo if path not in twins], listed, "embedding")
        rest = job.recognise([*twins], listed)  # nothing is embedded twice
        job.report.waiting = len(todo) - (len(twins) - len(rest)) - tried - job.embed(rest, listed, "embedding")
        job.renew(listed, refresh or not mapped, memory_pairs if mapped else None)
    return job.finished()


def follow(
    index: Index,
    folders: Sequence[Path],
    embedder: Embedder,
    version: Version,
    memory_pairs: Callable[[Version], Pairs | None],
    as_kept: Callable[[Tensor], np.ndarray] = as_compared,
    mapped: bool = True,
) -> Updated:
    """Make vectors of earlier versions comparable within `PATIENCE`: few of them are embedded again, more are mapped.
    Only known files below `folders` are opened."""
    job = _Update(index, embedder, version, time.monotonic() + PATIENCE, as_kept)
    with index:
        listed = job.known([absolute(folder) for folder in folders])
        few = len(listed) <= FEW and len(listed) * (index.seconds_per_image or 0.0) <= PATIENCE
        job.renew(listed, few or not mapped, memory_pairs if mapped else None)
    return job.finished()


@dataclass
class _Update:
    index: Index
    embedder: Embedder
    version: Version
    deadline: float | None
    as_kept: Callable[[Tensor], np.ndarray]
    report: Updated = field(default_factory=Updated)
    left_out: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    embedded: int = 0

    def list(self, folders: Sequence[Path]) -> dict[str, FileStatus]:
        """File -> size and time, of all image files below the folders."""
        listed: dict[str, FileStatus] = {}
        for folder in folders:
            listing, root = Listing(folder), absolute(folder).rstrip("/")
            self.report.notices += listing.notices()
            for parts in listing.files:
                path = "/".join((root, *parts))
                if not is_text(path):
                    self.leave_out(path, "its name is not UTF-8. Rename it", "not UTF-8")
                    continue
                try:
                    listed[path] = file_status(path)
                except OSError as error:
                    self.leave_out(path, error.strerror or str(error), "cannot be read")
        return listed

    def known(self, folders: Sequence[str]) -> dict[str, FileStatus]:
        """File -> size and time, of the files of earlier versions below the folders that are there."""
        listed = dict[str, FileStatus]()
        for part in self.index.parts:
            if part.version.digest != self.version.digest and folders:
                inside = np.any([below(part.rows.paths, folder) for folder in folders], axis=0) & part.live
                for path in part.rows.paths.take(np.flatnonzero(inside)).to_pylist():
                    with suppress(OSError):
                        listed[path] = file_status(path)
        return listed

    def renew(
        self,
        listed: dict[str, FileStatus],
        refresh: bool,
        memory_pairs: Callable[[Version], Pairs | None] | None,
    ) -> None:
        """Embed files of earlier versions again, a sample or all of them, and map what is left."""
        unmapped = [old for old in self.earlier() if memory_pairs and not self.map_of(old)]
        pairs = {old.digest: self.sample(old, listed) for old in unmapped}
        for old in self.earlier() if refresh else ():
            self.report.again += self.embed(self.reachable(old, listed), listed, "embedding again")
        for old in self.earlier():
            if memory_pairs and self.map_of(old) is None:
                self.fit(old, pairs[old.digest], memory_pairs)
        if self.embedded:
            self.index.seconds_per_image = self.seconds / self.embedded
        self.index.compact()
        keep_needed_maps(self.index, self.version)
        self.index.commit()

    def leave_out(self, path: str, reason: str, kind: str) -> None:
        self.left_out[kind] += 1
        if self.left_out.total() <= MOST_NAMED:
            self.report.notices.append(f"{path} was left out: {reason}.")

    def compare(self, listed: dict[str, FileStatus], folders: Sequence[str]) -> list[str]:
        """Mark what is gone or has come back; returns the files to embed."""
        for part in self.index.parts:
            inside = np.any([below(part.rows.paths, folder) for folder in folders], axis=0) & ~part.superseded
            rows = np.flatnonzero(inside)
            paths = part.rows.paths.take(rows).to_pylist()
            part.gone[rows] = [path not in listed for path in paths]
            self.report.gone += int(part.gone[rows].sum())
        todo, where = list[str](), self.index.where
        for path, status in listed.items():
            if path not in where:
                self.report.new += 1
                todo.append(path)
            elif status != _status(*where[path]):
                self.report.changed += 1
                todo.append(path)
            else:
                self.report.unchanged += 1
        if self.index.exists:
            self.index.commit()
        return todo

    def recognise(self, paths: Sequence[str], listed: dict[str, FileStatus]) -> list[str]:
        """Give files whose content the index has its vectors; returns the others."""
        found = Recognised(self.index, listed)
        others = found.among(paths) if self.index.exists else [*paths]
        self.report.new -= found.new
        self.report.changed -= found.changed
        self.report.found += found.moved
        self.report.copies += found.copies
        self.report.gone = max(0, self.report.gone - found.back)
        return others

    def embed(self, paths: Sequence[str], listed: dict[str, FileStatus], what: str) -> int:
        """Add the vectors of these files; returns how many files were tried before the time was over. What was embedded
        before an interruption is kept."""
        pending, tried, written = list[tuple[str, np.ndarray, Look]](), 0, time.monotonic()

        def write() -> None:
            if pending:
                names, vectors, looks = zip(*pending)
                stats = np.array([listed[name] for name in names], dtype=np.int64)
                self.index.append(self.version, names, stats, np.stack(vectors), looks)
                pending.clear()

        try:
            with progress(what, len(paths)) as ticker:
                for names, vectors, looks, tries in self._vectors(paths, listed):
                    pending += zip(names, vectors, looks)
                    tried += tries
                    ticker.advance(tries)
                    if len(pending) >= COMMIT_ROWS or time.monotonic() > written + COMMIT_SECONDS:
                        write()
                        written = time.monotonic()
        except (KeyboardInterrupt, Stopped):
            write()
            raise
        write()
        return tried

    def _vectors(
        self, paths: Sequence[str], listed: dict[str, FileStatus]
    ) -> Iterator[tuple[list[str], np.ndarray, list[Look], int]]:
        """(files, their vectors, how they look, how many were tried), batch by batch until the time is over. A changed
        file that has no vector loses its old one, which is that of another image."""
        started, told = time.monotonic(), False
        if not paths or self._late():
            return
        looks = dict[Path, Look]()
        for batch in self.embedder.batches(lambda rows: [Path(paths[row]) for row in rows], len(paths), looking(looks)):
            finite = batch.features.isfinite().all(dim=1)
            failed = {row: (str(error), "cannot be decoded") for row, error in batch.undecodable.items()}
            infinite = [row for row, good in zip(batch.rows, finite.tolist()) if not good]
            failed |= dict.fromkeys(infinite, ("its features are not finite", "without finite features"))
            for path, (reason, kind) in ((paths[row], why) for row, why in failed.items()):
                self.leave_out(path, reason, kind)
                if path not in self.index.where:
                    self.report.new -= 1
                elif listed[path] != _status(*self.index.where[path]):
                    self.index.supersede(path)
            names = [paths[row] for row, good in zip(batch.rows, finite.tolist()) if good]
            tries = len(batch.rows) + len(batch.undecodable)
            now = time.monotonic()
            self.seconds, self.embedded, started = self.seconds + now - started, self.embedded + tries, now
            expected = self.seconds / self.embedded * len(paths)
            if not told and expected > WORTH_SAYING:
                notice(f"{len(paths):,} images: about {duration(expected)}. Ctrl-C keeps what is done until then.")
            told = True
            seen = [looks.pop(Path(name)) for name in names]
            yield names, self.as_kept(batch.features[finite]), seen, tries
            if self._late():
                return

    def _late(self) -> bool:
        return self.deadline is not None and time.monotonic() > self.deadline

    def earlier(self) -> list[Version]:
        """Versions of rows that count, other than the current one; the oldest first."""
        found = {part.version.digest: part.version for part in self.index.parts if part.live.any()}
        return sorted(
            (one for digest, one in found.items() if digest != self.version.digest), key=lambda one: one.episode
        )

    def map_of(self, old: Version) -> MapRecord | None:
        ends = old.digest, self.version.digest
        return next((one for one in self.index.maps if (one.source, one.target) == ends), None)

    def reachable(self, old: Version, listed: dict[str, FileStatus]) -> list[str]:
        """Files of an earlier version that were listed and have not changed."""
        return [
            path
            for path, (part, row) in self.index.where.items()
            if part.version.digest == old.digest and listed.get(path) == _status(part, row)
        ]

    def sample(self, old: Version, listed: dict[str, FileStatus]) -> Pairs:
        """Embed a random sample of the files of an earlier version again."""
        files, size = self.reachable(old, listed), self.index.dimension
        chosen = torch.randperm(len(files), generator=generator(0, "index.sample", old.episode))[:SAMPLE].tolist()
        before = {files[at]: self._vector(files[at]) for at in chosen}
        self.report.again += self.embed([*before], listed, "embedding a sample again")
        done = [path for path in before if self.index.where[path][0].version.digest == self.version.digest]
        if not done:
            return np.empty((0, size), np.float32), np.empty((0, size), np.float32)
        return np.stack([before[path] for path in done]), np.stack([self._vector(path) for path in done])

    def _vector(self, path: str) -> np.ndarray:
        part, row = self.index.where[path]
        return part.vectors[row].copy()

    def fit(self, old: Version, pairs: Pairs, memory_pairs: Callable[[Version], Pairs | None]) -> None:
        remembered = memory_pairs(old) if len(pairs[0]) < SAMPLE else None
        if remembered is not None:
            pairs = tuple(np.concatenate(both) for both in zip(pairs, remembered))  # pyright: ignore[reportAssignmentType]
        if len(pairs[0]) >= FEWEST:
            add_map(self.index, old, self.version, *pairs)

    def finished(self) -> Updated:
        self.report.left_out = dict(self.left_out)
        more = self.left_out.total() - MOST_NAMED
        if more > 0:
            kinds = ", ".join(f"{count} {kind}" for kind, count in self.left_out.most_common())
            self.report.notices.append(f"{more} more files were left out; all together: {kinds}.")
        if self.embedded:
            self.report.seconds_per_image = self.seconds / self.embedded
        return self.report


def _status(part: Part, row: int) -> tuple[int, int]:
    return int(part.rows.size[row]), int(part.rows.mtime[row])


def forget(index: Index, version: Version, places: Sequence[Path]) -> int:
    """Remove files, or all files below a folder that does not exist any more; returns how many the index knew."""
    with index:
        if not index.exists:  # its files were those of an update that was killed, and are removed
            return 0
        found = index.forget([absolute(place) for place in places])
        keep_needed_maps(index, version)
        index.commit()
        forget_places(index.folder, {one.tobytes() for part in index.parts for one in part.rows.facts["digest"]})
    return found
