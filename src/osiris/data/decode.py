"""Decode images into uint8 [3, H, W]: one at a time, many on all cores, or a whole table into the cache."""

from __future__ import annotations

import contextlib
import hashlib
import io
import math
import os
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, ImageOps

from osiris.console import printable, progress
from osiris.cores import core_count
from osiris.data.cache import VERSION, Entry, Manifest
from osiris.data.config import BenchmarkConfig
from osiris.errors import UserError
from osiris.files import write_text

if TYPE_CHECKING:
    from osiris.data.table import Source, Table

Encoded = bytes | Path | np.ndarray
"""An image before decoding: the content of a file, its path, or pixels [H, W] or [H, W, C]."""
LARGEST_DEFAULT = 224
"""Images are not larger than this, unless --image-size asks for it."""
SIZE_SAMPLE = 200
BATCH = 64
"""Images per unit of work: for small images, handing over one at a time would cost more than decoding."""


class UndecodableImage(Exception):
    """Not an image, truncated, or too large."""


def decode(encoded: Encoded, size: int | None) -> np.ndarray:
    """uint8 [3, H, W] in RGB. With `size`, the short side is scaled to it and the centre square is kept."""
    if isinstance(encoded, np.ndarray) and encoded.shape == (size, size, 3) and encoded.dtype == np.uint8:
        return np.ascontiguousarray(encoded.transpose(2, 0, 1))
    try:
        with _open(encoded) as image:
            if size is not None:
                # JPEG can be decoded at a fraction of its size; twice the final size does not affect the quality.
                image.draft("RGB", (2 * size, 2 * size))
            image.load()
            rgb = _to_rgb(ImageOps.exif_transpose(image))
    except MemoryError:
        raise
    except Exception as error:  # Pillow's plugins raise many types: OSError, SyntaxError, struct.error, zlib.error
        raise UndecodableImage(str(error) or type(error).__name__) from None
    if size is not None and rgb.size != (size, size):
        side = min(rgb.size)
        left, top = (rgb.width - side) / 2, (rgb.height - side) / 2
        rgb = rgb.resize((size, size), Image.Resampling.BICUBIC, box=(left, top, left + side, top + side))
    return np.ascontiguousarray(np.asarray(rgb).transpose(2, 0, 1))


def image_dimensions(encoded: Encoded) -> tuple[int, int]:
    """(width, height) from the file header; raises UndecodableImage."""
    try:
        with _open(encoded) as image:
            return image.size
    except Exception as error:
        raise UndecodableImage(str(error) or type(error).__name__) from None


def _open(encoded: Encoded) -> Image.Image:
    if isinstance(encoded, np.ndarray):
        return Image.fromarray(encoded)
    if isinstance(encoded, Path) and encoded.exists() and not encoded.is_file():
        raise OSError("it is not a file")  # reading a pipe would take forever
    return Image.open(io.BytesIO(encoded) if isinstance(encoded, bytes) else encoded)


def _to_rgb(image: Image.Image) -> Image.Image:
    """Grey becomes RGB. 16-bit grey keeps its high byte and floats up to 1 are scaled; Pillow would clip both."""
    if image.mode.startswith(("I", "F")):
        values = np.nan_to_num(np.asarray(image).astype(np.float64))
        largest = values.max(initial=0)
        if image.mode.startswith("I;16") or largest > 255:
            values //= 256
        elif image.mode == "F" and largest <= 1:
            values = np.rint(values * 255)
        image = Image.fromarray(values.clip(0, 255).astype(np.uint8))
    return image if image.mode == "RGB" else image.convert("RGB")


def decode_all(
    read: Callable[[Sequence[int]], list[Encoded]], count: int, size: int
) -> Iterator[np.ndarray | UndecodableImage]:
    """Images 0 to count - 1 in order, decoded by threads; only a few batches are in memory at a time."""

    def decode_one(encoded: Encoded) -> np.ndarray | UndecodableImage:
        try:
            return decode(encoded, size)
        except UndecodableImage as error:
            return error

    workers = core_count()  # Pillow releases the GIL
    pending: deque[Future[list[np.ndarray | UndecodableImage]]] = deque()
    with ThreadPoolExecutor(workers) as pool:
        for start in range(0, count, BATCH):
            batch = read(range(start, min(start + BATCH, count)))
            pending.append(pool.submit(lambda batch=batch: [decode_one(encoded) for encoded in batch]))
            if len(pending) > 2 * workers:
                yield from pending.popleft().result()
        while pending:
            yield from pending.popleft().result()


def decode_table(source: Source, table: Table, config: BenchmarkConfig, limit: int, directory: Path | None) -> Entry:
    """Decode every row once, into `directory` or into memory. What is too large to keep is only checked."""
    size, notices = _choose_size(table, config.image_size or (source.known.size if source.known else None))
    shape = (len(table), 3, size, size)
    lazy = math.prod(shape) > limit and source.known is None
    images, rows = None, (table, size, config.strict)
    if lazy:
        notices.append(f"{math.prod(shape) >> 20:,} MB when decoded: decoded on the fly (see --decode-limit-mb).")
        columns, content, skipped = _decode_rows(*rows, lambda pixels: None)
    elif directory is None:
        images = np.empty(shape, dtype=np.uint8)
        following = iter(images)
        columns, content, skipped = _decode_rows(*rows, lambda pixels: np.copyto(next(following), pixels))
        images = images[: len(columns["row"])]
    else:
        with (directory / "images.bin").open("wb") as file:  # plain writes: a full disk would kill a memory map
            columns, content, skipped = _decode_rows(*rows, lambda pixels: file.write(pixels.data))
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
    first = skipped[0].replace("\t", ": ") if skipped else ""
    example = f" {len(skipped)} cannot be decoded, the first is {first}." if skipped else ""
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
    """The side of the square that all images are brought to: as asked, else the median short side, from 8 to 224."""
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
    text = f"images are scaled and cropped to {size}x{size} (the median short side, from 8 to {LARGEST_DEFAULT}); "
    return size, [f"{text}--image-size changes this."]
