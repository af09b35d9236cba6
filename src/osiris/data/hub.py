"""CIFAR-100 and Tiny-ImageNet: from the hub, or from a local copy of the hub's parquet files, into the cache.

`datasets` is slow to import, so it is touched only when there is something to decode; a warm start opens the cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from osiris.data import cache
from osiris.data.assemble import Part, Source
from osiris.data.base import ArrayImages
from osiris.data.config import BenchmarkConfig
from osiris.data.decode import Encoded
from osiris.data.fetch import fetch, one_line
from osiris.data.ingest import (
    Row,
    Tally,
    content_checksum,
    entry_part,
    refuse_skipped,
    skipped_notice,
    write_part,
    write_skipped,
)
from osiris.data.known import KnownDataset, class_ids, class_names
from osiris.data.lazy import LazyImages
from osiris.data.local import LocalCopy, cached_known, find_local_copy, known_key
from osiris.data.own import decode_limit
from osiris.errors import UserError


def load_known(known: KnownDataset, config: BenchmarkConfig) -> Source:
    """The data set from the cache, which is filled first if need be."""
    size = known.size if config.image_size is None else config.image_size
    images = known.class_count * (known.train_per_class + known.test_per_class)
    lazy = size != known.size and images * 3 * size * size > decode_limit(config)
    entry = open_known(known, config.data_dir, known.size if lazy else size, config.strict)
    refuse_skipped(entry, config.strict)
    parts = [entry_part(entry, part) for part in ("train", "test")]
    train, test = (_rescaled(part, size) if lazy and part is not None else part for part in parts)
    assert train is not None and test is not None
    notices = [*completeness_notices(known, entry), *skipped_notice(entry)]
    if entry.manifest["resized"] and size == known.size:
        notices.append(f"{entry.manifest['resized']} image(s) were not {known.size}x{known.size} and were resized.")
    return Source(
        name=known.name,
        train=train,
        test=test,
        class_names=class_names(known),
        class_aliases=class_ids(known),
        mean=known.mean,
        std=known.std,
        checksum=f"{content_checksum(entry)} {size}",
        location=entry.directory,
        notices=tuple(notices),
    )


def _rescaled(part: Part, size: int) -> Part:
    """Too large for the cache at the size asked for: each image is scaled when it is taken."""
    images = part.images
    assert isinstance(images, ArrayImages)
    array = images.array

    def read(numbers: Sequence[int]) -> list[Encoded]:
        return [np.ascontiguousarray(array[number].transpose(1, 2, 0)) for number in numbers]

    return Part(LazyImages(len(array), size, read, lambda number: f"cached image {number}"), part.label, part.episode)


def open_known(known: KnownDataset, data_dir: Path | None, size: int, strict: bool) -> cache.Entry:
    copy = find_local_copy(known, data_dir)
    entry = cached_known(known, copy, size)
    if entry is not None:
        return entry
    key = known_key(known, copy, size)
    return cache.open_or_build(key, known.name, lambda directory: _build(known, copy, directory, size, strict))


def completeness_notices(known: KnownDataset, entry: cache.Entry) -> list[str]:
    """Say what is missing of the published data set, and whether complete pixels are the expected ones."""
    short: list[str] = []
    for part, published in (("train", known.train_per_class), ("test", known.test_per_class)):
        counts = entry.manifest["class_counts"][part]
        numbers = [counts.get(str(label), 0) for label in range(known.class_count)]
        if set(numbers) != {published}:
            have = str(min(numbers)) if min(numbers) == max(numbers) else f"{min(numbers)} to {max(numbers)}"
            short.append(f"{have} of {published} {part} images per class")
    if short:
        return [f"this copy of {known.name} is partial: {' and '.join(short)}. Results are not those of the whole."]
    if known.content and entry.manifest["size"] == known.size and content_checksum(entry) != known.content:
        return [f"the pixels of this {known.name} differ from those of the published copy: do not compare results."]
    return []


def _build(known: KnownDataset, copy: LocalCopy | None, directory: Path, size: int, strict: bool) -> dict[str, Any]:
    parts = _open_datasets(known, copy)
    tally = Tally()
    for part, split in (("train", known.train_split), ("test", known.test_split)):
        if split not in parts:
            raise UserError(f"{known.name} should have a split {split!r} and has only {', '.join(parts)}.")
        per_class = known.train_per_class if part == "train" else known.test_per_class
        total = known.class_count * per_class
        write_part(directory, part, _rows(known, parts[split], split), total, size, strict, tally)
        _refuse_empty_classes(known, part, tally)
    write_skipped(directory, tally)
    source = known.repository if copy is None else str(copy.root)
    return {"dataset": known.name, "source": source, "size": size, **tally.manifest()}


def _refuse_empty_classes(known: KnownDataset, part: str, tally: Tally) -> None:
    missing = [name for label, name in enumerate(class_names(known)) if str(label) not in tally.class_counts[part]]
    if missing:
        damaged = f" {len(tally.skipped)} images could not be decoded: is the file damaged?" if tally.skipped else ""
        shown = ", ".join(missing[:6]) + (", ..." if len(missing) > 6 else "")
        raise UserError(f"this copy of {known.name} has no {part} images of {shown}.{damaged}")


def _open_datasets(known: KnownDataset, copy: LocalCopy | None) -> Any:
    """Split name -> `datasets` data set. Local files are streamed, which avoids a second copy of them on disk."""
    if copy is not None:
        import datasets

        files = {split: [str(path) for path in paths] for split, paths in copy.files.items()}
        return datasets.load_dataset("parquet", data_files=files, streaming=True)
    return fetch(known.repository)


def _rows(known: KnownDataset, dataset: Any, split: str) -> Iterator[Row]:
    import datasets
    import pyarrow

    columns = list(dataset.features or {})
    for column in (known.image_column, known.label_column):
        if column not in columns:
            raise UserError(f"{known.name} should have a column {column!r} and has only {', '.join(columns)}.")
    names = getattr(dataset.features[known.label_column], "names", None)
    if names is not None and tuple(names) != class_ids(known):
        raise UserError(f"the classes of this {known.name} are not the published ones: {', '.join(names[:6])}, ...")
    chosen = dataset.select_columns([known.image_column, known.label_column])
    chosen = chosen.cast_column(known.image_column, datasets.Image(decode=False))
    number = 0
    try:
        for batch in chosen.iter(batch_size=256):
            for image, label in zip(batch[known.image_column], batch[known.label_column]):
                if not isinstance(label, int) or not 0 <= label < known.class_count:
                    raise UserError(f"row {number} of {split} has the label {label!r}: not one of {known.name}.")
                yield Row(image["bytes"] or b"", f"{split} row {number}", label)
                number += 1
    except (OSError, pyarrow.ArrowException) as error:
        raise UserError(
            f"{known.name}, {split}: cannot read past row {number} ({one_line(error)}). Fetch the files again."
        ) from error
