"""Small pictures of files, decoded once: the cache keeps them under the digest of the file's content."""

from __future__ import annotations

import io
import sqlite3
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path

from PIL import Image

from osiris.cores import core_count
from osiris.data.images import UndecodableImage, decode
from osiris.data.looks import file_digest
from osiris.files import cache_directory

SIDE, QUALITY = 128, 80
"""Of the longer side, in pixels, and of WebP."""
AT_ONCE = 256


def store() -> Path:
    return cache_directory() / "thumbnails.sqlite"


def thumbnails(paths: Sequence[Path], digests: Sequence[bytes]) -> Iterator[Image.Image | None]:
    """The whole picture of each file, upright; None for a file that cannot be read, or has another content by now. The
    thumbnail in EXIF data is not used: programs that crop a picture often leave that of the picture before."""
    with closing(_open()) as known, ThreadPoolExecutor(core_count()) as pool:
        for start in range(0, len(paths), AT_ONCE):
            some, wanted = paths[start : start + AT_ONCE], digests[start : start + AT_ONCE]
            marks = ",".join("?" * len(wanted))
            found = dict(known.execute(f"SELECT digest, picture FROM thumbnails WHERE digest IN ({marks})", wanted))
            missing = {digest: path for path, digest in zip(some, wanted) if digest not in found}
            made = [(digest, one) for digest, one in zip(missing, pool.map(_make, missing.values(), missing)) if one]
            with suppress(sqlite3.Error), known:  # without a cache, they are made again
                known.executemany("INSERT OR IGNORE INTO thumbnails VALUES (?, ?)", made)
            found |= dict(made)
            for digest in wanted:
                yield Image.open(io.BytesIO(found[digest])).convert("RGB") if digest in found else None


def _open() -> sqlite3.Connection:
    try:
        store().parent.mkdir(parents=True, exist_ok=True)
        opened = sqlite3.connect(store(), timeout=60)
        opened.execute("CREATE TABLE IF NOT EXISTS thumbnails (digest BLOB PRIMARY KEY, picture BLOB)")
    except (OSError, sqlite3.Error):
        opened = sqlite3.connect(":memory:")
        opened.execute("CREATE TABLE thumbnails (digest BLOB PRIMARY KEY, picture BLOB)")
    return opened


def _make(path: Path, digest: bytes) -> bytes | None:
    seen: list[Image.Image] = []
    with suppress(UndecodableImage, OSError):
        decode(path, SIDE, lambda picture, *_: seen.append(picture))
        if file_digest(path) == digest:
            seen[0].thumbnail((SIDE, SIDE), Image.Resampling.BICUBIC)
            content = io.BytesIO()
            seen[0].save(content, "WEBP", quality=QUALITY, method=2)
            return content.getvalue()
    return None
