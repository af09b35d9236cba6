"""Tinyworld as a data set like any other: drawn once, then read from the cache."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from osiris.data import cache
from osiris.data.assemble import Source
from osiris.data.config import BenchmarkConfig
from osiris.data.ingest import Row, Tally, content_checksum, entry_part, write_part
from osiris.data.known import TINYWORLD_SIZE, TINYWORLD_TEST_PER_CLASS, TINYWORLD_TRAIN_PER_CLASS


def load_tinyworld(config: BenchmarkConfig) -> Source:
    """As many images as the limits ask for (tinyworld has no end); the usual number otherwise."""
    from osiris.data import tinyworld

    usual = TINYWORLD_TRAIN_PER_CLASS
    train = max(config.train_per_class or usual, config.bank_per_class or usual)
    counts = {"train": train, "test": config.test_per_class or TINYWORLD_TEST_PER_CLASS}
    size = config.image_size or TINYWORLD_SIZE
    key = cache.entry_key("tinyworld", _code(Path(tinyworld.__file__).parent), repr(sorted(counts.items())), str(size))
    entry = cache.open_or_build(key, "tinyworld", lambda directory: _draw(directory, counts, size))
    train_part, test_part = entry_part(entry, "train"), entry_part(entry, "test")
    assert train_part is not None
    return Source(
        name="tinyworld",
        train=train_part,
        test=test_part,
        class_names=tuple(tinyworld.CLASS_NAMES),
        mean=tinyworld.MEAN,
        std=tinyworld.STD,
        checksum=content_checksum(entry),
        location=entry.directory,
    )


def _code(package: Path) -> str:
    """Of the source itself: an image from an older tinyworld must not come out of the cache."""
    digest = hashlib.sha256()
    for path in sorted(package.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _draw(directory: Path, counts: dict[str, int], size: int) -> dict[str, Any]:
    from osiris.data import tinyworld

    tally = Tally()
    for part, count in counts.items():
        total = count * len(tinyworld.CLASS_NAMES)
        write_part(directory, part, _rows(part, count), total, size, True, tally)
    return {
        "dataset": "tinyworld",
        "source": f"drawn by tinyworld {tinyworld.VERSION}",
        "size": size,
        **tally.manifest(),
    }


def _rows(split: str, count: int) -> Iterator[Row]:
    from osiris.data import tinyworld

    for label, name in enumerate(tinyworld.CLASS_NAMES):
        images, _ = tinyworld.render(split, count, [label])
        for number, image in enumerate(images):
            yield Row(image.transpose(1, 2, 0), f"{name} {number}", label)
