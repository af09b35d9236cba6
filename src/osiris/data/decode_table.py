"""Decode a table once: into a directory of the cache, into memory, or only to check it."""

from __future__ import annotations

import contextlib
import hashlib
import io
import math
import os
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np

from osiris.console import printable, progress
from osiris.data.cache import VERSION, Entry, Manifest
from osiris.data.config import BenchmarkConfig
from osiris.data.decode import UndecodableImage, decode_all, image_dimensions
from osiris.data.table import Source, Table
from osiris.errors import UserError
from osiris.files import write_text

LARGEST_DEFAULT = 224
SIZE_SAMPLE = 200


def decode_table(source: Source, table: Table, config: BenchmarkConfig, limit: int, directory: Path | None) -> Entry:
    """Decode every row once, into `directory` or into memory. What is too large to keep is only checked."""
    size, notices = _choose_size(table, config.image_size or (source.known.size if source.known else None))
    shape = (len(table), 3, size, size)
    lazy = math.prod(shape) > limit and source.known is None
    images = None
    if lazy:
        notices.append(f"{math.prod(shape) >> 20:,} MB when decoded: decoded on the fly (see --decode-limit-mb).")
        columns, content, skipped = _decode_rows(table, size, config.strict, lambda pixels: None)
    elif directory is None:
        images = np.empty(shape, dtype=np.uint8)
        following = iter(images)
        columns, content, skipped = _decode_rows(
            table, size, config.strict, lambda pixels: np.copyto(next(following), pixels)
        )
        images = images[: len(columns["row"])]
    else:
        with (directory / "images.bin").open("wb") as file:  # plain writes: a full disk would kill a memory map
            columns, content, skipped = _decode_rows(table, size, config.strict, lambda pixels: file.write(pixels.data))
            os.fsync(file.fileno())
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **columns)
    train_count = int((columns["row"] < table.train.count).sum())
    manifest = Manifest(
        version=VERSION,
        dataset=table.name,
        size=size,
        lazy=lazy,
        train_count=train_count,
        test_count=len(columns["row"]) - train_count,
        class_names=list(table.class_names),
        episode_names=list(table.episode_names),
        notices=[*table.notices, *notices],
        skipped=len(skipped),
        content=content,
        rows_sha256=hashlib.sha256(buffer.getvalue()).hexdigest(),
        origin=source.origin,
        episode=source.episode,
    )
    if directory is not None:
        (directory / "rows.npz").write_bytes(buffer.getvalue())
        write_text(directory / "skipped.txt", "".join(f"{line}\n" for line in skipped))
    return Entry(manifest, columns, images)


def _decode_rows(
    table: Table, size: int, strict: bool, keep: Callable[[np.ndarray], object]
) -> tuple[dict[str, np.ndarray], dict[str, str], list[str]]:
    """The columns of the rows that can be decoded, the checksum of each split, and what was skipped."""
    rows: list[int] = []
    checks: list[int] = []
    skipped: list[str] = []
    digests = {"train": hashlib.sha256(), "test": hashlib.sha256()}
    with progress(f"decoding {table.name}", len(table)) as ticker:
        for row, pixels in enumerate(decode_all(table.read, len(table), size)):
            ticker.advance()
            if isinstance(pixels, UndecodableImage):
                reason = printable(str(pixels))
                if strict:
                    raise UserError(f"{table.describe(row)} cannot be decoded: {reason}. Repair it, or omit --strict.")
                skipped.append(f"{table.describe(row)}\t{reason}")
                continue
            keep(pixels)
            digests["train" if row < table.train.count else "test"].update(pixels.data)
            checks.append(zlib.crc32(pixels.data))
            rows.append(row)
    columns = {"row": np.asarray(rows, dtype="<i8"), "check": np.asarray(checks, dtype="<u4")}
    for name, column in (("label", table.label), ("episode", table.episode)):
        if column is not None:
            columns[name] = column[columns["row"]].astype("<i8")
    _refuse_empty(table, columns, skipped)
    content: dict[str, str] = {}
    for split, mask in (("train", columns["row"] < table.train.count), ("test", columns["row"] >= table.train.count)):
        for name in ("label", "episode"):
            if name in columns:
                digests[split].update(f"{name}s".encode() + columns[name][mask].tobytes())
        if mask.any():
            content[split] = digests[split].hexdigest()
    return columns, content, skipped


def _refuse_empty(table: Table, columns: dict[str, np.ndarray], skipped: list[str]) -> None:
    """Every split, class and episode needs an image that can be decoded."""
    train = columns["row"] < table.train.count
    example = f" {len(skipped)} images cannot be decoded, the first is {skipped[0]}." if skipped else ""
    if not train.any() or (table.test and train.all()):
        split = "test" if train.any() else "training"
        raise UserError(f"{table.name}: none of the {split} images can be decoded.{example}")
    for kind, name, names in (("class", "label", table.class_names), ("episode", "episode", table.episode_names)):
        if name in columns:
            empty = sorted(set(range(len(names))) - set(columns[name][train].tolist()))
            if empty:
                some = ", ".join(repr(names[number]) for number in empty[:6])
                raise UserError(f"{table.name}: no usable training images in {kind} {some}.{example} Add some images.")


def _choose_size(table: Table, size: int | None) -> tuple[int, list[str]]:
    """The side of the square that all images are brought to: as asked, else the median short side up to 224."""
    if size is not None:
        return size, []
    dimensions: list[tuple[int, int]] = []
    for encoded in table.read(range(0, table.train.count, max(1, table.train.count // SIZE_SAMPLE))):
        with contextlib.suppress(UndecodableImage):
            dimensions.append(image_dimensions(encoded))
    if not dimensions:
        raise UserError(f"{table.name}: no image can be decoded, for example {table.describe(0)}. Are these images?")
    size = max(8, min(LARGEST_DEFAULT, int(np.median([min(pair) for pair in dimensions]))))
    if set(dimensions) == {(size, size)}:
        return size, []
    text = f"images are scaled and cropped to {size}x{size} (the median short side, at most {LARGEST_DEFAULT}); "
    return size, [f"{text}--image-size changes this."]
