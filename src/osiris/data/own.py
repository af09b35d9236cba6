"""From a catalogue of own images to a source: decoded into the cache, or on the fly when that would be too large."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from osiris.console import progress
from osiris.data import cache
from osiris.data.assemble import Part, Source, rank_in_group
from osiris.data.base import Subset
from osiris.data.config import BenchmarkConfig
from osiris.data.decode import UndecodableImage
from osiris.data.ingest import (
    Tally,
    content_checksum,
    decoded,
    digest_numbers,
    entry_part,
    refuse_or_note,
    refuse_skipped,
    skipped_notice,
    write_part,
    write_skipped,
)
from osiris.data.known import IMAGENET_MEAN, IMAGENET_STD
from osiris.data.lazy import LazyImages
from osiris.data.records import Catalogue, Records, choose_size
from osiris.errors import UserError

DEFAULT_LIMIT_MB = 4096
HELD_OUT = 5
"""One image in five of each class is for testing when the data has no test part of its own."""


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


def load_own(
    name: str, fingerprint: Sequence[str], list_catalogue: Callable[[], Catalogue], config: BenchmarkConfig
) -> Source:
    """The data set whose files have this fingerprint; it is listed only if the cache has no answer."""
    limit = decode_limit(config)
    key = cache.entry_key(name, *fingerprint, f"size={config.image_size}", f"limit={limit}")
    listed = lru_cache(list_catalogue)
    entry = cache.open_or_build(key, name, lambda directory: _build(directory, listed(), config, limit))
    refuse_skipped(entry, config.strict)
    manifest = entry.manifest
    if manifest["lazy"]:
        catalogue, size = listed(), manifest["size"]
        train = _lazy_part(entry, "train", catalogue.train, size)
        test = None if catalogue.test is None else _lazy_part(entry, "test", catalogue.test, size)
    else:
        train, test = entry_part(entry, "train"), entry_part(entry, "test")
    assert train is not None
    return finish(
        Source(
            name=name,
            train=train,
            test=test,
            class_names=tuple(manifest["class_names"]),
            mean=IMAGENET_MEAN,
            std=IMAGENET_STD,
            checksum=content_checksum(entry),
            episode_names=tuple(manifest["episode_names"]),
            location=entry.directory,
            notices=(*manifest["notices"], *skipped_notice(entry)),
        )
    )


def finish(source: Source) -> Source:
    """Give it a test part if it has labels and none, and make sure that every class and episode has images."""
    source = hold_out(source)
    for kind, names, present in (
        ("class", source.class_names, source.train.label),
        ("episode", source.episode_names, source.train.episode),
    ):
        if present is not None:
            empty = [names[number] for number in sorted(set(range(len(names))) - set(np.unique(present).tolist()))]
            if empty:
                shown = ", ".join(repr(name) for name in empty[:6])
                raise UserError(
                    f"{source.name}: the {kind} {shown} has no usable training images. Add some or remove it."
                )
    return source


def hold_out(source: Source) -> Source:
    """A fifth of each class of each episode, evenly spread over its images, always the same ones."""
    train = source.train
    if source.test is not None or train.label is None:
        return source
    episode = np.zeros_like(train.label) if train.episode is None else train.episode
    group = episode * len(source.class_names) + train.label
    _, inverse, sizes = np.unique(group, return_inverse=True, return_counts=True)
    size, rank = sizes[inverse], rank_in_group(inverse)
    wanted = np.where(size > 1, np.maximum(1, size // HELD_OUT), 0)
    held = (rank + 1) * wanted // size > rank * wanted // size
    if not held.any():
        return source
    kept, test = (_subset(train, np.flatnonzero(mask)) for mask in (~held, held))
    count = f"{held.sum():,} of {len(held):,} images"
    text = f"no test part is given: about a fifth of each class ({count}) is held out for tests."
    return Source(**{**vars(source), "train": kept, "test": test, "notices": (*source.notices, text)})


def _subset(part: Part, rows: np.ndarray) -> Part:
    label = None if part.label is None else part.label[rows]
    episode = None if part.episode is None else part.episode[rows]
    return Part(Subset(part.images, torch.from_numpy(rows)), label, episode)


def _build(directory: Path, catalogue: Catalogue, config: BenchmarkConfig, limit: int) -> dict[str, Any]:
    size, notices = choose_size(catalogue.train, config.image_size)
    parts = {"train": catalogue.train} | ({} if catalogue.test is None else {"test": catalogue.test})
    decoded_bytes = sum(len(records) for records in parts.values()) * 3 * size * size
    lazy = decoded_bytes > limit
    if lazy:
        notices.append(f"{decoded_bytes >> 20:,} MB when decoded: images are decoded on the fly (--decode-limit-mb).")
    tally = Tally()
    for part, records in parts.items():
        if lazy:
            _write_index(directory, part, records, size, config.strict, tally)
        else:
            write_part(directory, part, records.rows(), len(records), size, config.strict, tally)
    write_skipped(directory, tally)
    return {
        "dataset": catalogue.name,
        "source": catalogue.source,
        "size": size,
        "lazy": lazy,
        "class_names": list(catalogue.class_names),
        "episode_names": list(catalogue.episode_names),
        "notices": [*catalogue.notices, *notices],
        **tally.manifest(),
    }


def _write_index(directory: Path, part: str, records: Records, size: int, strict: bool, tally: Tally) -> None:
    """Decode everything once without keeping it, to know which images can be: training must not stumble later."""
    kept: list[int] = []
    labels: list[int] = []
    episodes: list[int] = []
    digest = hashlib.sha256()
    with progress(f"checking {part}", len(records)) as ticker:
        for number, (row, pixels, _) in enumerate(decoded(records.rows(), size)):
            ticker.advance()
            if isinstance(pixels, UndecodableImage):
                refuse_or_note(row.origin, pixels, strict, tally)
            else:
                kept.append(number)
                digest.update(pixels.data)
                labels += [] if row.label is None else [row.label]
                episodes += [] if row.episode is None else [row.episode]
    if not kept:
        raise UserError(f"no image of the {part} part could be decoded. The first one: {tally.skipped[0]}")
    np.save(directory / f"{part}-kept.npy", np.asarray(kept, dtype=np.int64), allow_pickle=False)
    tally.counts[part] = len(kept)
    digest_numbers(digest, labels, episodes)
    tally.content[part] = digest.hexdigest()  # as if it were cached: where images lie does not change what they are


def _lazy_part(entry: cache.Entry, part: str, records: Records, size: int) -> Part:
    kept = entry.array(part, "kept")
    assert kept is not None
    images = LazyImages(len(records), size, records.read, records.origin)
    label = None if records.label is None else records.label[kept]
    episode = None if records.episode is None else records.episode[kept]
    return Part(Subset(images, torch.from_numpy(np.array(kept))), label, episode)
