"""Decode the images of a source once, in order, into the files of a cache entry."""

from __future__ import annotations

import hashlib
import os
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from osiris.console import progress
from osiris.data.assemble import Part
from osiris.data.base import ArrayImages
from osiris.data.cache import ArrayWriter, Entry
from osiris.data.decode import Encoded, UndecodableImage, decode_and_measure
from osiris.errors import UserError
from osiris.files import write_text

BATCH = 64
"""Images per unit of work: small ones decode in less time than it takes to hand them over one by one."""


@dataclass(frozen=True)
class Row:
    """One image of a source before decoding."""

    encoded: Encoded
    origin: str
    """What to call it when it cannot be decoded: its path, or the row of its file."""
    label: int | None = None
    episode: int | None = None


@dataclass
class Tally:
    """What happened while decoding one or more parts."""

    skipped: list[str] = field(default_factory=list)
    resized: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    class_counts: dict[str, dict[str, int]] = field(default_factory=dict)
    content: dict[str, str] = field(default_factory=dict)
    """Part -> sha256 of its pixels, labels and episodes."""

    def manifest(self) -> dict[str, Any]:
        return {
            "skipped": len(self.skipped),
            "resized": self.resized,
            "counts": self.counts,
            "class_counts": self.class_counts,
            "content": self.content,
        }


def worker_count() -> int:
    return max(1, min(8, os.cpu_count() or 1))


def write_part(
    directory: Path, part: str, rows: Iterable[Row], total: int, size: int, strict: bool, tally: Tally
) -> None:
    """Write images, labels and episodes of one part; note what had to be skipped or resized in `tally`."""
    writer = ArrayWriter(directory / f"{part}-images.npy")
    labels: list[int] = []
    episodes: list[int] = []
    digest = hashlib.sha256()
    try:
        with progress(f"decoding {part}", total) as ticker:
            for row, pixels, changed in decoded(rows, size):
                ticker.advance()
                if isinstance(pixels, UndecodableImage):
                    refuse_or_note(row.origin, pixels, strict, tally)
                    continue
                tally.resized += changed
                writer.append(pixels)
                digest.update(pixels.data)
                if row.label is not None:
                    labels.append(row.label)
                if row.episode is not None:
                    episodes.append(row.episode)
    finally:
        writer.close()
    count = writer.count
    if count == 0:
        raise UserError(f"no image of the {part} part could be decoded. Is this the right place? {_first(tally)}")
    assert len(labels) in (0, count) and len(episodes) in (0, count), "all rows or none carry a label"
    tally.counts[part] = count
    for name, array in digest_numbers(digest, labels, episodes).items():
        np.save(directory / f"{part}-{name}.npy", array, allow_pickle=False)
    tally.class_counts[part] = {str(label): number for label, number in sorted(Counter(labels).items())}
    tally.content[part] = digest.hexdigest()


def digest_numbers(digest: hashlib._Hash, labels: list[int], episodes: list[int]) -> dict[str, np.ndarray]:
    """Labels and episodes, those that are there, as arrays that have joined the digest of the pixels."""
    arrays = {
        name: np.asarray(numbers, dtype="<i8")
        for name, numbers in (("labels", labels), ("episodes", episodes))
        if numbers
    }
    for name, array in arrays.items():
        digest.update(name.encode() + array.tobytes())
    return arrays


def refuse_or_note(origin: str, reason: UndecodableImage, strict: bool, tally: Tally) -> None:
    if strict:
        raise UserError(f"{origin} cannot be decoded: {reason}. Mend or remove it, or leave out --strict to skip it.")
    tally.skipped.append(f"{origin}\t{reason}")


def write_skipped(directory: Path, tally: Tally) -> None:
    if tally.skipped:
        write_text(directory / "skipped.txt", "\n".join(tally.skipped) + "\n")


def skipped_notice(entry: Entry) -> list[str]:
    number = entry.manifest.get("skipped", 0)
    return [f"{number} image(s) could not be decoded and were skipped; see {entry.skipped_file}."] if number else []


def refuse_skipped(entry: Entry, strict: bool) -> None:
    """`--strict` also holds for an entry that a lenient run cached."""
    if strict and entry.manifest.get("skipped", 0):
        raise UserError(f"{skipped_notice(entry)[0]} Mend or remove them, or leave out --strict to go on without them.")


def entry_part(entry: Entry, part: str) -> Part | None:
    """One part of a cache entry, memory-mapped; None if the data set has no such part."""
    images = entry.array(part, "images")
    if images is None:
        return None
    return Part(ArrayImages(images), entry.array(part, "labels"), entry.array(part, "episodes"))


def content_checksum(entry: Entry) -> str:
    """Of the decoded images, labels and episodes, wherever they came from."""
    return hashlib.sha256(repr(sorted(entry.manifest["content"].items())).encode()).hexdigest()


def decoded(rows: Iterable[Row], size: int) -> Iterator[tuple[Row, Any, bool]]:
    """(row, pixels or UndecodableImage, whether the size was changed) in the order of `rows`, decoded by threads.

    At most a few batches are under way, so that memory stays small however long the source is.
    """
    workers = worker_count()
    pending: deque[Future[list[tuple[Row, Any, bool]]]] = deque()
    with ThreadPoolExecutor(workers) as pool:
        for batch in _batches(rows):
            pending.append(pool.submit(_decode_batch, batch, size))
            if len(pending) > 2 * workers:
                yield from pending.popleft().result()
        while pending:
            yield from pending.popleft().result()


def _decode_batch(batch: list[Row], size: int) -> list[tuple[Row, Any, bool]]:
    done: list[tuple[Row, Any, bool]] = []
    for row in batch:
        try:
            pixels, original = decode_and_measure(row.encoded, size)
        except UndecodableImage as error:
            done.append((row, error, False))
        else:
            done.append((row, pixels, original != (size, size)))
    return done


def _batches(rows: Iterable[Row]) -> Iterator[list[Row]]:
    batch: list[Row] = []
    for row in rows:
        batch.append(row)
        if len(batch) == BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


def _first(tally: Tally) -> str:
    return f"The first one: {tally.skipped[0]}" if tally.skipped else "It has no images at all."
