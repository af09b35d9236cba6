"""Decoded images on disk: written once, memory-mapped afterwards.

One entry is a directory with `manifest.json` and, for each part (train, test), `PART-images.npy` uint8 [N, 3, H, W],
`PART-labels.npy` and `PART-episodes.npy` int64 [N] (absent without labels or episodes). It is built in a directory
beside its place and renamed when complete: there is a whole entry or none. A lock lets one process build while others
wait for its result.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from osiris.console import notice
from osiris.errors import UserError
from osiris.files import read_json, write_json

VERSION = 1
"""Part of every entry; raise it when the layout or the decoding changes."""


def cache_root() -> Path:
    return Path(os.environ.get("OSIRIS_CACHE") or Path.home() / ".cache" / "osiris").expanduser()


def entry_key(name: str, *fingerprint: str) -> str:
    """A directory name that is safe whatever the data set is called, and unique to its content."""
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[-60:] or "data"
    digest = hashlib.sha256("\n".join([str(VERSION), *fingerprint]).encode()).hexdigest()
    return f"{slug}-{digest[:16]}"


@dataclass(frozen=True)
class Entry:
    """A complete cache entry."""

    directory: Path
    manifest: dict[str, Any]

    def array(self, part: str, field: str) -> np.ndarray | None:
        path = self.directory / f"{part}-{field}.npy"
        if f"{part}-{field}.npy" not in self.manifest["files"]:
            return None
        return np.load(path, mmap_mode="r" if field == "images" else None, allow_pickle=False)

    @property
    def skipped_file(self) -> Path:
        return self.directory / "skipped.txt"

    def bytes_on_disk(self) -> int:
        return sum(file["bytes"] for file in self.manifest["files"].values())

    def verify(self) -> None:
        """Read every byte again and compare with the checksums of the manifest."""
        for name, file in self.manifest["files"].items():
            if sha256_of(self.directory / name) != file["sha256"]:
                raise UserError(
                    f"the cached file {self.directory / name} is damaged. Delete {self.directory} and retry."
                )


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def open_entry(key: str) -> Entry | None:
    """The entry if it is there and whole (by version, file names and sizes; `verify` reads the content)."""
    directory = cache_root() / key
    try:
        manifest = read_json(directory / "manifest.json")
        if manifest["version"] != VERSION:
            return None
        for name, file in manifest["files"].items():
            if (directory / name).stat().st_size != file["bytes"]:
                return None
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return Entry(directory, manifest)


def open_or_build(key: str, description: str, build: Callable[[Path], dict[str, Any]]) -> Entry:
    """The entry of this key; if it is missing `build(directory)` writes the files and returns the manifest's rest."""
    entry = open_entry(key)
    if entry is not None:
        return entry
    root = cache_root()
    with _explain_os_errors(root, description):
        root.mkdir(parents=True, exist_ok=True)
        with _lock(root, key, description):
            entry = open_entry(key)  # another process may have finished it while this one waited
            return entry if entry is not None else _build(root, key, build)


def _build(root: Path, key: str, build: Callable[[Path], dict[str, Any]]) -> Entry:
    for leftover in root.glob(f".building-{key}-*"):  # of a killed process: the lock is ours
        shutil.rmtree(leftover, ignore_errors=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".building-{key}-", dir=root))
    try:
        rest = build(temporary)
        files = {
            path.name: {"bytes": path.stat().st_size, "sha256": sha256_of(path)}
            for path in sorted(temporary.iterdir())
            if path.suffix == ".npy"
        }
        manifest = {**rest, "version": VERSION, "files": files}
        write_json(temporary / "manifest.json", manifest)
        directory = root / key
        if directory.exists():  # damaged or of another version
            shutil.rmtree(directory)
        temporary.chmod(0o755)
        temporary.rename(directory)
        return Entry(directory, manifest)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def _lock(root: Path, key: str, description: str) -> Iterator[None]:
    from filelock import FileLock, Timeout

    lock = FileLock(root / f".{key}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        notice(f"another process is caching {description}; waiting for it.")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


@contextmanager
def _explain_os_errors(root: Path, description: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise UserError(
                f"the disk is full: {description} could not be cached in {root} (nothing half-written was left). "
                "Free some space or point OSIRIS_CACHE to a larger disk."
            ) from error
        if error.errno in (errno.EACCES, errno.EROFS, errno.EPERM):
            raise UserError(
                f"cannot write to the cache {root}: {error}. Point OSIRIS_CACHE to a directory you may write to."
            ) from error
        raise


class ArrayWriter:
    """Appends images to a .npy file whose length is known only at the end.

    Plain writes, not a memory map: on a full disk a map kills the process where a write raises an error.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file = path.open("wb")
        self.count = 0
        self.shape: tuple[int, ...] | None = None
        self.header_bytes = 0

    def append(self, image: np.ndarray) -> None:
        assert image.dtype == np.uint8
        if self.shape is None:
            self.shape = image.shape
            self._write_header()
            self.header_bytes = self.file.tell()
        assert image.shape == self.shape, (image.shape, self.shape)
        self.file.write(image.data)
        self.count += 1

    def _write_header(self) -> None:
        assert self.shape is not None
        header = {"descr": "|u1", "fortran_order": False, "shape": (self.count, *self.shape)}
        np.lib.format.write_array_header_1_0(self.file, header)

    def close(self) -> None:
        """Put the final count into the header (NumPy leaves room for a growing first axis) and reach the disk."""
        if self.shape is not None:
            self.file.seek(0)
            self._write_header()
            assert self.file.tell() == self.header_bytes
        self.file.flush()
        os.fsync(self.file.fileno())
        self.file.close()
