"""From a source to a data set of decoded images: through the cache, in memory, or decoded on the fly if too large."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice
from pathlib import Path

import numpy as np
import torch

from osiris.console import notice, printable, progress
from osiris.data import cache
from osiris.data.cache import CacheUnavailable, Entry, cached_entry, decode_limit, entry_key, missing_images
from osiris.data.catalogue import KnownDataset
from osiris.data.config import BenchmarkConfig
from osiris.data.images import (
    ArrayImages,
    Images,
    LazyImages,
    Subset,
    UndecodableImage,
    decode_all,
    image_dimensions,
)
from osiris.data.source import Encoded, Source, Table
from osiris.errors import UserError

LARGEST_DEFAULT = 224
"""Images are not larger than this, unless --image-size asks for it."""
SIZE_SAMPLE = 200
MOST_NAMED = 5
"""Images that were skipped and are named one by one."""
HELD_OUT = 5
"""One image in five of each class is held out for testing when there are no test images."""


@dataclass(frozen=True)
class Dataset:
    """Decoded images of one size with what is known about each, before they are divided into tasks."""

    name: str
    images: Images
    rows: dict[str, np.ndarray]
    """`test` (bool [N]), `check` (CRC-32 of each image) and, if the data has them, `label` and `episode`."""
    class_names: tuple[str, ...]
    episode_names: tuple[str, ...]
    checksum: str
    known: KnownDataset | None = None
    notices: tuple[str, ...] = ()
    location: Path | None = None
    """Directory of the cache entry, if there is one."""

    @property
    def test(self) -> np.ndarray:
        return self.rows["test"]

    @property
    def label(self) -> np.ndarray | None:
        return self.rows.get("label")


def load_dataset(source: Source, config: BenchmarkConfig) -> Dataset:
    """Decode the data set, or open it in the cache."""
    known = source.known
    if known is not None and config.image_size not in (None, known.size):
        images = known.class_count * (known.train_per_class + known.test_per_class)
        if images * 3 * config.image_size**2 > decode_limit(config):
            return _rescaled(load_dataset(source, replace(config, image_size=None)), config.image_size)
    read_table = lru_cache(source.read_table)
    entry = _open(source, read_table, config)
    if config.strict and entry.manifest["skipped"]:
        raise UserError(f"{_skipped_notice(entry)} Repair or remove them, or omit --strict to continue without them.")
    dataset = _dataset(source, entry, read_table)
    return _hold_out(_without_tests(dataset) if config.validation else dataset)


def _open(source: Source, read_table: Callable[[], Table], config: BenchmarkConfig) -> Entry:
    def build(directory: Path | None) -> Entry:
        return _decode(source, read_table(), config, directory)

    if source.key is None:
        return build(None)
    entry = cached_entry(source, config)
    if entry is not None:
        return entry
    try:
        return cache.open_or_build(entry_key(source, config), source.name, lambda place: build(place).manifest)
    except CacheUnavailable as error:
        notice(
            f"{error}: {source.name} is decoded into memory for this run only. Free some space there, or set "
            "OSIRIS_CACHE to a directory that you may write to."
        )
        return build(None)


def _decode(source: Source, table: Table, config: BenchmarkConfig, directory: Path | None) -> Entry:
    """Decode every row once, into `directory` or into memory. What is too large to keep is only checked."""
    size, notices = _choose_size(table, config.image_size or (source.known.size if source.known else None))
    total = len(table) * 3 * size * size
    lazy = total > decode_limit(config) and source.known is None
    if lazy:
        notices.append(f"{total >> 20:,} MB when decoded: decoded on the fly (see --decode-limit-mb).")
    skipped: list[str] = []
    with cache.Writer(table, size, lazy, directory) as writer, progress(f"decoding {table.name}", len(table)) as ticker:
        for row, pixels in enumerate(decode_all(table.read, len(table), size)):
            ticker.advance()
            if isinstance(pixels, np.ndarray):
                writer.add(row, pixels)
                continue
            reason = printable(str(pixels))
            if config.strict:
                raise UserError(f"{table.describe(row)} cannot be decoded: {reason}. Repair it, or omit --strict.")
            skipped.append(f"{table.describe(row)}\t{reason}")
        _refuse_empty(table, np.asarray(writer.rows, dtype=np.int64), skipped)
        return writer.finish(source, notices, skipped)


def _refuse_empty(table: Table, rows: np.ndarray, skipped: list[str]) -> None:
    """Every split, class and episode needs an image that can be decoded. `rows`: those that can."""
    train = rows < table.train.count
    first = skipped[0].replace("\t", ": ") if skipped else ""
    example = f" {len(skipped)} cannot be decoded, the first is {first}." if skipped else ""
    if not train.any() or (table.test and train.all()):
        split = "test" if train.any() else "training"
        raise UserError(f"{table.name}: none of the {split} images can be decoded.{example}")
    classes, episodes = ("class", table.label, table.class_names), ("episode", table.episode, table.episode_names)
    for kind, column, names in (classes, episodes):
        if column is not None:
            empty = sorted(set(range(len(names))) - set(column[rows[train]].tolist()))
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


def _dataset(source: Source, entry: Entry, read_table: Callable[[], Table]) -> Dataset:
    manifest, known = entry.manifest, source.known
    images: Images
    if entry.images is None:
        table = read_table()
        checks = np.zeros(len(table), dtype=np.uint32)
        checks[entry.rows["row"]] = entry.rows["check"]
        every = LazyImages(len(table), manifest["size"], table.read, table.describe, checks=checks)
        images = Subset(every, torch.from_numpy(entry.rows["row"]))
    else:
        images = ArrayImages(entry.images)
    notices = list(manifest["notices"])
    hub = known is not None and known.repository
    if known is not None and hub:
        missing = " and ".join(missing_images(known, entry))
        if missing:
            notices.append(f"this copy of {known.name} is partial: {missing}. Results differ from the complete set's.")
        elif known.checksum and manifest["size"] == known.size and entry.checksum != known.checksum:
            notices.append(f"the pixels of this {known.name} differ from the published ones: do not compare results.")
    if manifest["skipped"]:
        notices.append(_skipped_notice(entry))
    return Dataset(
        name=source.name,
        images=images,
        rows={"test": np.arange(len(images)) >= manifest["train_count"], **entry.rows},
        class_names=tuple(manifest["class_names"]),
        episode_names=tuple(manifest["episode_names"]),
        checksum=f"{entry.checksum} {manifest['size']}" if hub else entry.checksum,
        known=known,
        notices=tuple(notices),
        location=entry.directory,
    )


def _skipped_notice(entry: Entry) -> str:
    said = f"{entry.manifest['skipped']} image(s) could not be decoded and were skipped"
    if entry.directory is None:
        return f"{said}."
    record, named = entry.directory / "skipped.txt", list[str]()
    with contextlib.suppress(OSError), record.open(encoding="utf-8", errors="surrogateescape") as lines:
        named = [" (".join(line.rstrip("\n").split("\t", 1)) + ")" for line in islice(lines, MOST_NAMED)]
    if entry.manifest["skipped"] <= len(named):
        return f"{said}: {'; '.join(named)}."
    return f"{said}: {'; '.join(named)}{'; ' * bool(named)}see {record}."


def _rescaled(native: Dataset, size: int) -> Dataset:
    """Too large for the cache at the requested size: each image is scaled when it is taken."""
    assert isinstance(native.images, ArrayImages)
    array = native.images.array

    def read(rows: Sequence[int]) -> list[Encoded]:
        return [np.ascontiguousarray(array[row].transpose(1, 2, 0)) for row in rows]

    checksum = f"{native.checksum.split()[0]} {size}"
    return replace(
        native, images=LazyImages(len(array), size, read, lambda row: f"cached image {row}"), checksum=checksum
    )


def rank_in_group(group: np.ndarray) -> np.ndarray:
    """For each row, how many rows of the same group come before it."""
    by_group = np.argsort(group, kind="stable")
    ordered = group[by_group]
    rank = np.empty(len(group), dtype=np.int64)
    rank[by_group] = np.arange(len(group)) - np.searchsorted(ordered, ordered, side="left")
    return rank


def _without_tests(dataset: Dataset) -> Dataset:
    """For choosing options: the test images are gone, so a part of the training images takes their place."""
    if dataset.label is None:
        raise UserError(f"--validation needs labels, and {dataset.name} has none.")
    chosen = np.flatnonzero(~dataset.test)
    return replace(
        dataset,
        images=Subset(dataset.images, torch.from_numpy(chosen)),
        rows={name: column[chosen] for name, column in dataset.rows.items()},
        checksum=f"{dataset.checksum} without test images",
    )


def _hold_out(dataset: Dataset) -> Dataset:
    """Without test images, test on a fifth of each class of each episode: evenly spread, always the same ones."""
    if dataset.test.any() or dataset.label is None:
        return dataset
    cell = dataset.rows.get("episode", 0) * len(dataset.class_names) + dataset.label
    _, group, sizes = np.unique(cell, return_inverse=True, return_counts=True)
    size, rank = sizes[group], rank_in_group(group)
    wanted = np.where(size > 1, np.maximum(1, size // HELD_OUT), 0)
    test = (rank + 1) * wanted // size > rank * wanted // size
    if not test.any():
        return dataset
    count = f"{test.sum():,} of {len(test):,} images"
    text = f"there are no test images: about a fifth of each class ({count}) is held out for testing."
    return replace(dataset, rows=dataset.rows | {"test": test}, notices=(*dataset.notices, text))
