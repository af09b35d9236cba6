"""From a source to a decoded data set: through the cache, in memory, or decoded on the fly if it is too large."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from osiris.console import notice
from osiris.data import cache
from osiris.data.cache import CacheUnavailable, Entry
from osiris.data.config import BenchmarkConfig
from osiris.data.decode import Encoded, decode_table
from osiris.data.images import ArrayImages, Images, LazyImages, Subset
from osiris.data.names import KnownDataset
from osiris.data.table import Source, Table
from osiris.errors import UserError
from osiris.files import cache_directory

DEFAULT_LIMIT_MB = 4096
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
    known, limit = source.known, decode_limit(config)
    if known is not None and config.image_size not in (None, known.size):
        images = known.class_count * (known.train_per_class + known.test_per_class)
        if images * 3 * config.image_size**2 > limit:
            return _rescaled(load_dataset(source, replace(config, image_size=None)), config.image_size)
    read_table = lru_cache(source.read_table)
    entry = _open(source, read_table, config, limit)
    if config.strict and entry.manifest["skipped"]:
        raise UserError(f"{_skipped_notice(entry)} Repair or remove them, or omit --strict to continue without them.")
    dataset = _dataset(source, entry, read_table)
    return _hold_out(_without_tests(dataset) if config.validation else dataset)


def decode_limit(config: BenchmarkConfig) -> int:
    """In bytes of decoded images."""
    given = config.decode_limit_mb
    if given is None:
        variable = os.environ.get("OSIRIS_DECODE_LIMIT_MB")
        try:
            given = int(variable) if variable else DEFAULT_LIMIT_MB
        except ValueError:
            raise UserError(f"OSIRIS_DECODE_LIMIT_MB={variable!r} is not a number of megabytes.") from None
    return given << 20


def cached_entry(source: Source, config: BenchmarkConfig) -> Entry | None:
    """The entry in the cache, without decoding anything. If the data is not on this machine, any complete copy serves:
    it may have been cached from files that are not here any more."""
    entry = cache.open_entry(_key(source, config, decode_limit(config)))
    known = source.known
    if entry is not None or source.local or known is None:
        return entry
    size = config.image_size or known.size
    for directory in sorted(cache_directory().glob(f"{known.name}-*")):
        other = cache.open_entry(directory.name)
        if other is not None and other.manifest["size"] == size and not missing_images(known, other):
            return other
    return None


def _key(source: Source, config: BenchmarkConfig, limit: int) -> str:
    assert source.fingerprint is not None
    options = () if source.known is not None else (f"limit={limit}",)
    return cache.entry_key(source.name, *source.fingerprint, f"size={config.image_size}", *options)


def _open(source: Source, read_table: Callable[[], Table], config: BenchmarkConfig, limit: int) -> Entry:
    def build(directory: Path | None) -> Entry:
        return decode_table(source, read_table(), config, limit, directory)

    if source.fingerprint is None:
        return build(None)
    entry = cached_entry(source, config)
    if entry is not None:
        return entry
    try:
        return cache.open_or_build(_key(source, config, limit), source.name, lambda place: build(place).manifest)
    except CacheUnavailable as error:
        notice(
            f"{error}: {source.name} is decoded into memory for this run only. Free some space there, or set "
            "OSIRIS_CACHE to a directory that you may write to."
        )
        return build(None)


def _dataset(source: Source, entry: Entry, read_table: Callable[[], Table]) -> Dataset:
    manifest, known = entry.manifest, source.known
    images: Images
    if entry.images is None:
        import torch  # only here, so that `osiris list` does not wait for it

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
        elif known.content and manifest["size"] == known.size and entry.checksum != known.content:
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
    where = f"; see {entry.directory / 'skipped.txt'}" if entry.directory else ""
    return f"{entry.manifest['skipped']} image(s) could not be decoded and were skipped{where}."


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
    import torch

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
