"""A part of an index: an uncompressed Arrow IPC file that is written once and memory-mapped."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.ipc

from osiris.data.looks import FACTS, PIXELS
from osiris.errors import UserError
from osiris.files import write_atomically
from osiris.index.records import PartRecord, Version, to_mask, to_ranges

METADATA = b"osiris"
BLOCK = 1 << 13


@dataclass(frozen=True)
class Rows:
    """Files and their vectors."""

    paths: pyarrow.StringArray
    """Absolute."""
    size: np.ndarray
    """int64 [n], in bytes."""
    mtime: np.ndarray
    """int64 [n]: nanoseconds since 1970."""
    facts: np.ndarray
    """`FACTS` [n]: what is known about the files without an encoder."""
    thumbnails: np.ndarray
    """uint8 [n, PIXELS]"""
    vectors: np.ndarray
    """float32 [n, d], L2-normalised; before a readout float16 or float32, as the network gives them."""

    def __len__(self) -> int:
        return len(self.size)

    def take(self, rows: np.ndarray) -> Rows:
        columns = (self.size, self.mtime, self.facts, self.thumbnails, self.vectors)
        return Rows(self.paths.take(pyarrow.array(rows)), *(column[rows] for column in columns))


def joined(several: Sequence[Rows]) -> Rows:
    paths = pyarrow.concat_arrays([rows.paths for rows in several])
    names = ("size", "mtime", "facts", "thumbnails", "vectors")
    columns = [[getattr(rows, name) for rows in several] for name in names]
    return Rows(paths, *map(np.concatenate, columns))


@dataclass
class Part:
    """An open part. The rows never change; which of them count does."""

    name: str
    version: Version
    rows: Rows
    content: pyarrow.Buffer
    """Of the file."""
    digest: str
    """As the manifest says."""
    superseded: np.ndarray
    """bool [n]: of files that have a newer row, or cannot be embedded any more."""
    gone: np.ndarray
    """bool [n]: of files that are not there any more."""
    doomed: bool = False
    """Has rows that must not stay in the file."""

    @property
    def live(self) -> np.ndarray:
        return ~(self.superseded | self.gone)

    @cached_property
    def vectors(self) -> np.ndarray:
        """Those of the rows, after all numbers were looked at once."""
        if hashlib.blake2b(self.content, digest_size=16).hexdigest() != self.digest:
            raise _damaged(self.name, "its content has changed")
        for start in range(0, len(self.rows), BLOCK):
            if not np.isfinite(self.rows.vectors[start : start + BLOCK]).all():
                raise _damaged(self.name, "it has numbers that are not finite")
        return self.rows.vectors

    def take(self, rows: np.ndarray) -> Rows:
        assert len(self.vectors) == len(self.rows)  # they are sound: damage must not get a digest of its own
        return self.rows.take(rows)

    def record(self) -> PartRecord:
        return PartRecord(
            name=self.name,
            rows=len(self.rows),
            version=self.version,
            digest=self.digest,
            superseded=to_ranges(self.superseded),
            gone=to_ranges(self.gone),
        )


def write_part(path: Path, version: Version, rows: Rows) -> str:
    """Returns the digest of the file. Plain writes: a full disk would kill a process that writes to a memory map."""
    vector, thumbnail, digest = map(_lists, (rows.vectors, rows.thumbnails, rows.facts["digest"]))
    schema = _schema(rows.vectors.shape[1], vector.type.value_type)
    schema = schema.with_metadata({METADATA: json.dumps(version.plain())})
    mtime, taken = (
        pyarrow.array(column).cast(schema.field(name).type)
        for name, column in (("mtime", rows.mtime), ("taken", rows.facts["taken"]))
    )
    shape = [pyarrow.array(np.ascontiguousarray(rows.facts[name])) for name in ("hash", "width", "height")]
    columns = [rows.paths, pyarrow.array(rows.size), mtime, digest, *shape, taken, thumbnail, vector]
    batch = pyarrow.record_batch(columns, schema=schema)
    content = hashlib.blake2b(digest_size=16)

    def write(temporary: Path) -> None:
        with temporary.open("wb") as file, pyarrow.ipc.new_file(file, schema) as writer:
            writer.write_batch(batch)
        with temporary.open("rb") as file:
            hashlib.file_digest(file, lambda: content)

    write_atomically(path, write)
    return content.hexdigest()


def _lists(values: np.ndarray) -> pyarrow.FixedSizeListArray:
    return pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(values.ravel()), values.shape[1])


def open_part(folder: Path, record: PartRecord, dimension: int) -> Part:
    """Raises FileNotFoundError if there is no such file, and UserError for one that is not what the manifest says."""
    path = folder / record.name
    try:
        if path.is_symlink():
            raise ValueError("it is a link")
        with pyarrow.memory_map(str(path)) as file:
            content = file.read_buffer()
        reader = pyarrow.ipc.open_file(content)
        schemas = [_schema(dimension, kind) for kind in (pyarrow.float32(), pyarrow.float16())]
        if not any(reader.schema.equals(schema) for schema in schemas) or reader.num_record_batches != 1:
            raise ValueError("it has other columns")
        if json.loads((reader.schema.metadata or {}).get(METADATA, b"null")) != record.version.plain():
            raise ValueError("it is of another version of the encoder")
        batch = reader.get_batch(0)
        batch.validate(full=True)
        if batch.num_rows != record.rows or any(column.null_count for column in batch.columns):
            raise ValueError(f"it has {batch.num_rows} rows, not {record.rows}, or some are empty")
        columns = dict(zip(batch.schema.names, batch.columns))
        facts = np.zeros(batch.num_rows, FACTS)
        facts["digest"] = columns["digest"].flatten().to_numpy().reshape(-1, 16)
        facts["taken"] = columns["taken"].cast(pyarrow.int64()).to_numpy()
        for name in ("hash", "width", "height"):
            facts[name] = columns[name].to_numpy()
        size, mtime = columns["size"].to_numpy(), columns["mtime"].cast(pyarrow.int64()).to_numpy()
        thumbnails = columns["thumbnail"].flatten().to_numpy().reshape(-1, PIXELS)
        vectors = columns["vector"].flatten().to_numpy().reshape(-1, dimension)
        rows = Rows(columns["path"], size, mtime, facts, thumbnails, vectors)
        superseded, gone = (to_mask(ranges, record.rows) for ranges in (record.superseded, record.gone))
        return Part(record.name, record.version, rows, content, record.digest, superseded, gone)
    except FileNotFoundError:
        raise
    except (ValueError, OSError, pyarrow.ArrowException) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise _damaged(str(path), reason) from None


def _damaged(path: str, reason: str) -> UserError:
    return UserError(
        f"{path} is damaged or not a part of this index ({reason}). Remove the folder `index` of the state and make "
        "it again with osiris index."
    )


def _schema(dimension: int, kind: pyarrow.DataType) -> pyarrow.Schema:
    return pyarrow.schema(
        {
            "path": pyarrow.string(),
            "size": pyarrow.int64(),
            "mtime": pyarrow.timestamp("ns", "UTC"),
            "digest": pyarrow.list_(pyarrow.uint8(), 16),
            "hash": pyarrow.uint64(),
            "width": pyarrow.int32(),
            "height": pyarrow.int32(),
            "taken": pyarrow.timestamp("s"),
            "thumbnail": pyarrow.list_(pyarrow.uint8(), PIXELS),
            "vector": pyarrow.list_(kind, dimension),
        }
    )
