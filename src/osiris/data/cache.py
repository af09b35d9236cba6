"""Decoded images on disk: written once, memory-mapped afterwards.

An entry is a directory with `manifest.json`, `rows.npz` (label, episode and check value of each image) and, unless
images are decoded on the fly, `images.bin`: uint8 [N, 3, size, size], training images first. It is built under another
name and renamed when complete. A lock lets one process build while others wait.
"""

from __future__ import annotations

import errno
import hashlib
import io
import os
import re
import shutil
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

import msgspec
import numpy as np
from filelock import FileLock, Timeout

from osiris.console import notice, warn
from osiris.data.catalogue import KnownDataset
from osiris.data.config import BenchmarkConfig
from osiris.data.source import Source, Table, hash_lines
from osiris.errors import UserError
from osiris.files import cache_directory, read_json, write_json, write_text

VERSION = 3
"""Part of every key; raise it when the layout or the decoding changes."""
DEFAULT_LIMIT_MB = 4096
"""Own data that takes more than this when decoded is decoded on the fly."""
SAMPLE = 64
"""Images whose check value is compared each time an entry is opened."""


class Manifest(TypedDict):
    """manifest.json"""

    version: int
    dataset: str
    size: int
    lazy: bool
    """True: the images were too large to store, and are decoded when they are needed."""
    train_count: int
    test_count: int
    class_names: list[str]
    episode_names: list[str]
    notices: list[str]
    skipped: int
    content: dict[str, str]
    """Split -> sha256 of its pixels, labels and episodes."""
    rows_sha256: str
    origin: str
    """Path of the user's own data; empty for published data."""
    episode: bool
    """Made for one call of `observe` or `embed`: not used again."""


@dataclass(frozen=True)
class Entry:
    """Decoded images: in the cache, or only in memory (then `directory` is None)."""

    manifest: Manifest
    rows: dict[str, np.ndarray]
    """`check` uint32 [N] (CRC-32 of each image), `row` int64 [N] (its row in the table), `label`, `episode`."""
    images: np.ndarray | None
    """uint8 [N, 3, size, size]; None if the images are decoded on the fly."""
    directory: Path | None = None

    @property
    def checksum(self) -> str:
        """Identifies the decoded images, labels and episodes, wherever they came from."""
        return hashlib.sha256(repr(sorted(self.manifest["content"].items())).encode()).hexdigest()

    def damaged_images(self, indices: np.ndarray) -> list[int]:
        if self.images is None:
            return []
        return [int(index) for index in indices if zlib.crc32(self.images[index].data) != self.rows["check"][index]]


class Writer:
    """Makes an entry, one decoded image after the other: in a directory, or in memory (None). If the images are `lazy`,
    only their check values are kept."""

    def __init__(self, table: Table, size: int, lazy: bool, directory: Path | None) -> None:
        self.table, self.size, self.lazy, self.directory = table, size, lazy, directory
        self.rows: list[int] = []
        self.checks: list[int] = []
        self.pixels = {"train": hashlib.sha256(), "test": hashlib.sha256()}
        self.file = self.images = None
        if directory is not None and not lazy:
            self.file = (directory / "images.bin").open("wb")  # plain writes: a full disk would kill a memory map
        elif not lazy:
            self.images = np.empty((len(table), 3, size, size), dtype=np.uint8)

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *_: object) -> None:
        if self.file is not None:
            self.file.close()

    def add(self, row: int, pixels: np.ndarray) -> None:
        """The image of a row of the table, uint8 [3, size, size]; rows that cannot be decoded are left out."""
        if self.file is not None:
            self.file.write(pixels.data)
        elif self.images is not None:
            self.images[len(self.rows)] = pixels
        self.pixels["train" if row < self.table.train.count else "test"].update(pixels.data)
        self.checks.append(zlib.crc32(pixels.data))
        self.rows.append(row)

    def finish(self, source: Source, notices: list[str], skipped: list[str]) -> Entry:
        """Complete the entry, but for manifest.json: that file says that all others are there."""
        table, train_count = self.table, self.table.train.count
        rows = {"row": np.asarray(self.rows, dtype="<i8"), "check": np.asarray(self.checks, dtype="<u4")}
        for name, column in (("label", table.label), ("episode", table.episode)):
            if column is not None:
                rows[name] = column[rows["row"]].astype("<i8")
        content: dict[str, str] = {}
        for split, mask in (("train", rows["row"] < train_count), ("test", rows["row"] >= train_count)):
            for name in ("label", "episode"):
                if name in rows:
                    self.pixels[split].update(f"{name}s".encode() + rows[name][mask].tobytes())
            if mask.any():
                content[split] = self.pixels[split].hexdigest()
        buffer = io.BytesIO()
        np.savez(buffer, allow_pickle=False, **rows)
        trained = int((rows["row"] < train_count).sum())
        manifest = Manifest(
            version=VERSION,
            dataset=table.name,
            size=self.size,
            lazy=self.lazy,
            train_count=trained,
            test_count=len(self.rows) - trained,
            class_names=list(table.class_names),
            episode_names=list(table.episode_names),
            notices=[*table.notices, *notices],
            skipped=len(skipped),
            content=content,
            rows_sha256=hashlib.sha256(buffer.getvalue()).hexdigest(),
            origin=source.origin,
            episode=source.episode,
        )
        if self.directory is not None:
            (self.directory / "rows.npz").write_bytes(buffer.getvalue())
            write_text(self.directory / "skipped.txt", "".join(f"{line}\n" for line in skipped))
        if self.file is not None:
            self.file.flush()
            os.fsync(self.file.fileno())
        return Entry(manifest, rows, None if self.images is None else self.images[: len(self.rows)])


def bytes_on_disk(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.iterdir())


def decode_limit(config: BenchmarkConfig) -> int:
    """The largest data set that is decoded at once, in bytes of decoded images."""
    given = config.decode_limit_mb
    if given is None:
        variable = os.environ.get("OSIRIS_DECODE_LIMIT_MB")
        try:
            given = int(variable) if variable else DEFAULT_LIMIT_MB
        except ValueError:
            raise UserError(f"OSIRIS_DECODE_LIMIT_MB={variable!r} is not a number of megabytes.") from None
    return given << 20


def entry_key(source: Source, config: BenchmarkConfig) -> str:
    """The directory of a source's entry: a name that is safe on every file system and unique to what is decoded."""
    assert source.key is not None
    limit = decode_limit(config)
    options = () if source.known is not None else (f"limit={limit}",)
    slug = re.sub(r"[^a-z0-9]+", "-", source.name.lower()).strip("-")[-60:] or "data"
    lines = [str(VERSION), *source.key, f"size={config.image_size}", *options]
    return f"{slug}-{hash_lines(lines)[:16]}"


def open_entry(key: str, verify: bool = False) -> Entry | None:
    """The entry if it is present and whole, else None.

    Sizes, labels and a random sample of the images are checked every time; `verify` checks all images.
    """
    directory = cache_directory() / key
    try:
        record = read_json(directory / "manifest.json")
        return _open(directory, msgspec.convert(record, Manifest), verify) if record["version"] == VERSION else None
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
        warn(f"the cached data in {directory} is damaged ({error}): it is not used.")
        return None


def _open(directory: Path, manifest: Manifest, verify: bool) -> Entry:
    content = (directory / "rows.npz").read_bytes()
    if hashlib.sha256(content).hexdigest() != manifest["rows_sha256"]:
        raise ValueError("the labels in rows.npz have changed")
    with np.load(directory / "rows.npz", allow_pickle=False) as file:
        rows = {name: file[name] for name in file.files}
    count, images = manifest["train_count"] + manifest["test_count"], None
    if not manifest["lazy"]:
        shape = (count, 3, manifest["size"], manifest["size"])
        path = directory / "images.bin"
        if path.stat().st_size != np.prod(shape):
            raise ValueError(f"images.bin has {path.stat().st_size:,} bytes instead of {np.prod(shape):,}")
        images = np.memmap(path, np.uint8, "r", shape=shape)
    entry = Entry(manifest, rows, images, directory)
    damaged = entry.damaged_images(np.arange(count) if verify else np.random.default_rng().integers(0, count, SAMPLE))
    if damaged:
        raise ValueError(f"image {damaged[0]} in images.bin has changed")
    return entry


def cached_entry(source: Source, config: BenchmarkConfig) -> Entry | None:
    """The entry in the cache, without decoding anything. If the data is not on this machine, any complete copy serves:
    it may have been cached from files that are not here any more."""
    entry = open_entry(entry_key(source, config))
    known = source.known
    if entry is not None or source.local or known is None:
        return entry
    wanted = known.name, "", [*known.class_names], config.image_size or known.size
    for directory in sorted(cache_directory().glob(f"{known.name}-*")):  # own data may have such a name, too
        manifest = _manifest(directory)
        if manifest is None or tuple(manifest[name] for name in ("dataset", "origin", "class_names", "size")) != wanted:
            continue
        other = open_entry(directory.name)
        if other is not None and not missing_images(known, other):
            return other
    return None


def missing_images(known: KnownDataset, entry: Entry) -> list[str]:
    """For each split, how many images per class there are, if they are not all there."""
    missing: list[str] = []
    border = entry.manifest["train_count"]
    for split, part, complete in (
        ("train", slice(0, border), known.train_per_class),
        ("test", slice(border, None), known.test_per_class),
    ):
        counts = np.bincount(entry.rows["label"][part], minlength=known.class_count)
        if (counts != complete).any():
            present = f"{counts.min()}" if counts.min() == counts.max() else f"{counts.min()} to {counts.max()}"
            missing.append(f"{present} of {complete} {split} images per class")
    return missing


def stale_entries() -> dict[Path, str]:
    """Directories of the cache that will not be used again, and why."""
    reasons: dict[Path, str] = {}
    newer: set[tuple[str, int]] = set()
    root, pattern = cache_directory(), "*-" + "[0-9a-f]" * 16
    for directory in sorted(root.glob(pattern), key=lambda path: path.stat().st_mtime, reverse=True):
        manifest = _manifest(directory)
        if manifest is None:
            reasons[directory] = "damaged, or written by another version of osiris"
            continue
        origin, size = manifest["origin"], manifest["size"]
        if manifest["episode"]:
            reasons[directory] = "made for one call of observe or embed"
        elif origin and not Path(origin).exists():
            reasons[directory] = f"{origin} does not exist any more"
        elif (origin, size) in newer:
            reasons[directory] = f"{origin} has changed since"
        elif origin:
            newer.add((origin, size))
    yesterday = time.time() - 86400
    leftovers = [path for path in root.glob(".building-*") if path.stat().st_mtime < yesterday]
    return reasons | dict.fromkeys(leftovers, "left behind by an interrupted process")


def _manifest(directory: Path) -> Manifest | None:
    """The manifest of a complete entry of this version."""
    try:
        record = read_json(directory / "manifest.json")
        return msgspec.convert(record, Manifest) if record["version"] == VERSION else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


class CacheUnavailable(Exception):
    """The cache directory cannot be written."""


def open_or_build(key: str, name: str, build: Callable[[Path], Manifest]) -> Entry:
    """The entry of this key. If it is missing, `build(directory)` writes its files; what was written is verified."""
    entry = open_entry(key)
    if entry is not None:
        return entry
    root = cache_directory()
    try:
        root.mkdir(parents=True, exist_ok=True)
        with _lock(root, key, name):
            entry = open_entry(key) or _build(root, key, build)  # another process may have built it meanwhile
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise CacheUnavailable(f"the disk of the cache {root} is full") from error
        if error.errno in (errno.EACCES, errno.EROFS, errno.EPERM, errno.ENOTDIR, errno.EEXIST):
            raise CacheUnavailable(f"the cache {root} cannot be written ({error.strerror})") from error
        raise
    if entry is None:
        raise UserError(f"what was written to the cache {root} reads back differently. Check the disk.")
    return entry


def _build(root: Path, key: str, build: Callable[[Path], Manifest]) -> Entry | None:
    for leftover in root.glob(f".building-{key}-*"):  # of a killed process: this one holds the lock
        shutil.rmtree(leftover, ignore_errors=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".building-{key}-", dir=root))
    try:
        write_json(temporary / "manifest.json", build(temporary))
        directory = root / key
        if directory.exists():  # damaged, or of another version
            shutil.rmtree(directory)
        temporary.chmod(0o755)
        temporary.rename(directory)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return open_entry(key, verify=True)


def _lock(root: Path, key: str, name: str) -> AbstractContextManager[object]:
    lock = FileLock(root / f".{key}.lock")
    try:
        return lock.acquire(timeout=0)
    except Timeout:
        notice(f"another process is caching {name}; waiting for it.")
        return lock.acquire()
