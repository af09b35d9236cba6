"""manifest.json of an index: which parts it has, and which of their rows count."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
from msgspec import Meta, field

from osiris.errors import UserError
from osiris.evaluation.scores import Record, read_record

FORMAT = 2
Count = Annotated[int, Meta(ge=0, le=2**53)]
Ranges = list[tuple[Count, Count]]
"""Rows of a part: from (included) to (excluded), in order."""


class Version(Record, frozen=True, kw_only=True):
    """Of an encoder. Vectors are comparable if their digests are equal."""

    episode: Count
    """After which it stood so, counted from 1."""
    digest: Annotated[str, Meta(pattern="^[0-9a-f]{32}$")]
    """Of the encoder's tensors, or those of its network alone if vectors are kept before its readout, and of how it
    prepares images."""


class PartRecord(Record, frozen=True, kw_only=True):
    """One Arrow file."""

    name: Annotated[str, Meta(pattern=r"^part-\d{1,12}\.arrow$")]
    rows: Count
    version: Version
    digest: Annotated[str, Meta(pattern="^[0-9a-f]{32}$")]
    """Of the file."""
    superseded: Ranges = field(default_factory=list)
    """Rows of files that have a newer row, or cannot be embedded any more."""
    gone: Ranges = field(default_factory=list)
    """Rows of files that were not there any more when their folder was last read."""


class MapRecord(Record, frozen=True, kw_only=True):
    """One safetensors file: the map of the vectors of one version to those of another."""

    name: Annotated[str, Meta(pattern=r"^map-\d{1,12}\.safetensors$")]
    source: str
    target: str
    """Digests of the versions."""
    pairs: Count
    """Images that were embedded by both: four fifths for the map, the rest for the recall."""
    recall: Annotated[float, Meta(ge=0, le=1)]
    """Recall@10 of mapped vectors against new ones, as expected in a gallery of this size."""
    gallery: Count
    """Images of the source's version that were not embedded again."""


class Manifest(Record, frozen=True, kw_only=True):
    """A file that the manifest does not name does not belong to the index."""

    format: int
    dimension: Annotated[int, Meta(ge=1, le=1 << 20)]
    counter: Count
    """Files are numbered; a number is never used again."""
    parts: list[PartRecord]
    maps: list[MapRecord] = field(default_factory=list)
    seconds_per_image: Annotated[float, Meta(ge=0, le=1e6)] | None = None
    """That embedding took when it was last done."""


def read_manifest(path: Path) -> Manifest:
    manifest = read_record(path, Manifest)
    if manifest.format != FORMAT:
        raise UserError(
            f"{path} was written by another version of osiris (format {manifest.format}, not {FORMAT}): remove the "
            f"folder {path.parent} and make the index again with osiris index."
        )
    return manifest


def to_ranges(mask: np.ndarray) -> Ranges:
    edges = np.flatnonzero(np.diff(np.concatenate([[False], mask, [False]]).astype(np.int8)))
    return [(int(start), int(stop)) for start, stop in edges.reshape(-1, 2)]


def to_mask(ranges: Ranges, rows: int) -> np.ndarray:
    """bool [rows]; raises ValueError for ranges that a part of so many rows cannot have."""
    mask = np.zeros(rows, dtype=bool)
    for start, stop in ranges:
        if not start < stop <= rows:
            raise ValueError(f"rows {start} to {stop} of {rows}")
        mask[start:stop] = True
    return mask
