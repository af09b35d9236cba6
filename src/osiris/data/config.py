"""What to train on, as plain data (no torch here: `--help` must be fast)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class BenchmarkConfig:
    """The data and its order."""

    benchmark: str = "tinyworld"
    """Name of a benchmark (see `osiris list benchmarks`), `split-DATASET-N`, `folder:PATH`, `dataset:NAME` or
    `arrays:FILE.npz`."""
    data_dir: Path | None = None
    """Local copy of the hub's files; the default is the variable OSIRIS_DATA, then the hub."""
    class_order: str | None = None
    """`seed:N` for a random class order, or a JSON file with a list of class names; default: the benchmark's own."""
    shuffle_tasks: int | None = None
    """Shuffle the order of the tasks with this seed."""
    train_per_class: int | None = None
    """Training images per class that the learner sees (default: all)."""
    bank_per_class: int | None = None
    """Training images per class in the KNN bank (default: all)."""
    test_per_class: int | None = None
    """Test images per class (default: all)."""
    image_size: int | None = None
    """Side of the square images in pixels (default: the data's own)."""
    image_column: str | None = None
    """Of a `dataset:`: the column with the images (default: the only image column)."""
    label_column: str | None = None
    """Of a `dataset:`: the column with the classes, used for evaluation alone (default: `label` if there is one)."""
    episode_column: str | None = None
    """Of a `dataset:`: the column whose values, sorted, are the episodes, such as a date or a place."""
    strict: bool = False
    """Stop at an image that cannot be decoded instead of skipping and listing it."""
    decode_limit_mb: int | None = None
    """Own data larger than this when decoded is decoded on the fly (default: OSIRIS_DECODE_LIMIT_MB, then 4096)."""
