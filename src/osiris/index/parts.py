"""A part of an index: an uncompressed Arrow IPC file that is written once and memory-mapped."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.ipc

from osiris.errors import UserError
from osiris.files import write_atomically
from osiris.index.records import PartRecord, Version, to_mask, to_ranges

METADATA = b"osiris"


@dataclass(frozen=True)
class Rows:
    """Files and their vectors."""

    paths: pyarrow.StringArray
    """Absolute."""
    size: np.ndarray
    """int64 [n], in bytes."""
    mtime: np.ndarray
    """int64 [n]: nanoseconds since 1970."""
    vectors: np.ndarray
    """float32 [n, d], L2-normalised."""

    def __len__(self) -> int:
        return len(self.size)

    def take(self, rows: np.ndarray) -> Rows:
        return Rows(self.paths.take(pyarrow.array(rows)), self.size[rows], self.mtime[rows], self.vectors[rows])


def joined(several: Sequence[Rows]) -> Rows:
    paths = pyarrow.concat_arrays([rows.paths for rows in several])
    columns = [[getattr(rows, name) for rows in several] for name in ("size", "mtime", "vectors")]
    return Rows(paths, *map(np.concatenate, columns))


@dataclass
class Part:
    """An open part. The rows never change; which of them count does."""

    name: str
    version: Version
    rows: Rows
    superseded: np.ndarray
    """bool [n]: of files that have a newer row, or cannot be embedded any more."""
    gone: np.ndarray
    """bool [n]: of files that are not there any more."""
    doomed: bool = False
    """Has rows that must not stay in the file."""

    @property
    def live(self) -> np.ndarray:
        return ~(self.superseded | self.gone)

    def record(self) -> PartRecord:
        return PartRecord(
            name=self.name,
            rows=len(self.rows),
            version=self.version,
            superseded=to_ranges(self.superseded),
            gone=to_ranges(self.gone),
        )


def write_part(path: Path, version: Version, rows: Rows) -> None:
    """Plain writes: a full disk would kill a process that writes to a memory map."""
    vector = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(rows.vectors.ravel()), rows.vectors.shape[1])
    schema = _schema(rows.vectors.shape[1]).with_metadata({METADATA: json.dumps(version.plain())})
    mtime = pyarrow.array(rows.mtime).cast(schema.field("mtime").type)
    batch = pyarrow.record_batch([rows.paths, pyarrow.array(rows.size), mtime, vector], schema=schema)

    def write(temporary: Path) -> None:
        with temporary.open("wb") as file, pyarrow.ipc.new_file(file, schema) as writer:
            writer.write_batch(batch)

    write_atomically(path, write)


def open_part(folder: Path, record: PartRecord, dimension: int) -> Part:
    """Raises FileNotFoundError if there is no such file, and UserError for one that is not what the manifest says."""
    path = folder / record.name
    try:
        if path.is_symlink():
            raise ValueError("it is a link")
        with pyarrow.memory_map(str(path)) as file:
            reader = pyarrow.ipc.open_file(file)
            schema = _schema(dimension)
            if not reader.schema.equals(schema) or reader.num_record_batches != 1:
                raise ValueError("it has other columns")
            if json.loads((reader.schema.metadata or {}).get(METADATA, b"null")) != record.version.plain():
                raise ValueError("it is of another version of the encoder")
            batch = reader.get_batch(0)
        batch.validate(full=True)
        if batch.num_rows != record.rows or any(column.null_count for column in batch.columns):
            raise ValueError(f"it has {batch.num_rows} rows, not {record.rows}, or some are empty")
        paths, size, mtime, vector = batch.columns
        vectors = vector.flatten().to_numpy().reshape(-1, dimension)
        rows = Rows(paths, size.to_numpy(), mtime.cast(pyarrow.int64()).to_numpy(), vectors)
        superseded, gone = (to_mask(ranges, record.rows) for ranges in (record.superseded, record.gone))
        return Part(record.name, record.version, rows, superseded, gone)
    except FileNotFoundError:
        raise
    except (ValueError, OSError, pyarrow.ArrowException) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise UserError(
            f"{path} is damaged or not a part of this index ({reason}). Remove the folder {folder} and make the index "
            "again with osiris index."
        ) from None


def _schema(dimension: int) -> pyarrow.Schema:
    return pyarrow.schema(
        {
            "path": pyarrow.string(),
            "size": pyarrow.int64(),
            "mtime": pyarrow.timestamp("ns", "UTC"),
            "vector": pyarrow.list_(pyarrow.float32(), dimension),
        }
    )
