"""tinyworld as a data set like any other: rendered once, then read from the cache."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from osiris.data import tinyworld
from osiris.data.config import BenchmarkConfig
from osiris.data.decode import Encoded
from osiris.data.names import DATASETS
from osiris.data.table import Rows, Source, Table, make_table


def tinyworld_source(config: BenchmarkConfig) -> Source:
    """As many images per class as the limits ask for (tinyworld is endless), else the usual number."""
    known = DATASETS["tinyworld"]
    usual = known.train_per_class
    train = max(config.train_per_class or usual, config.bank_per_class or usual)
    counts = {"train": train, "test": config.test_per_class or known.test_per_class}

    def read_table() -> Table:
        rows = [_rows(split, count) for split, count in counts.items()]
        table = make_table("tinyworld", *rows, class_names=tinyworld.CLASS_NAMES)
        return replace(table, episode=None, episode_names=())

    return Source("tinyworld", read_table, (_code_digest(), repr(sorted(counts.items()))), known)


def _code_digest() -> str:
    """An image of an older tinyworld must not come out of the cache."""
    digest = hashlib.sha256()
    for path in sorted(Path(tinyworld.__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _rows(split: str, per_class: int) -> Rows:
    @lru_cache(2)
    def render(label: int) -> np.ndarray:
        return tinyworld.render(split, per_class, [label])[0].transpose(0, 2, 3, 1)

    def read(rows: Sequence[int]) -> list[Encoded]:
        return [render(row // per_class)[row % per_class] for row in rows]

    labels = np.repeat(np.arange(len(tinyworld.CLASS_NAMES)), per_class)
    return Rows(len(labels), read, lambda row: f"{split} image {row}", labels)
