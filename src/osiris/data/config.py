"""Options that choose the data of a run (no torch here: `osiris list` must be fast)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from msgspec import Meta

PerClass = Annotated[int, Meta(ge=1, le=100_000_000)]
LARGEST_SIDE = 1024
"""Of images in pixels, also where a file that was received says how large they are."""


@dataclass(frozen=True)
class BenchmarkConfig:
    """The data and its order."""

    benchmark: str = "tinyworld"
    """A benchmark (`osiris list benchmarks`), split-DATASET-N, folder:PATH, dataset:NAME or arrays:FILE.npz."""
    data_dir: Path | None = None
    """Local copy of the hub's files; None means the environment variable OSIRIS_DATA, then the hub."""
    class_order: str | None = None
    """`seed:N` for a random class order, or a JSON file with a list of class names; None means the benchmark's own."""
    shuffle_tasks: Annotated[int, Meta(ge=0, le=2**53)] | None = None
    """Shuffle the order of the tasks with this seed."""
    stream: str | None = None
    """Learn all images as one stream in this order: tasks, blurred:SHARE, zones:IMAGES, irregular, recurring:ROUNDS,
    i-blurry:N:M, si-blurry:N:M, runs:LENGTH, repetition:..., slots:..., shuffled, time or name (docs/streams.md). None:
    one task after the other."""
    stream_seed: Annotated[int, Meta(ge=0, le=2**53)] = 0
    """The random numbers of the stream; all runs of a comparison share it."""
    train_per_class: PerClass | None = None
    """Training images per class that the learner sees; None means all."""
    bank_per_class: PerClass | None = None
    """Training images per class in the KNN bank; None means all."""
    test_per_class: PerClass | None = None
    """Test images per class; None means all."""
    frames: Annotated[int, Meta(ge=1, le=10**7)] | None = None
    """Frames of the film `walk`; None means 20,000."""
    validation: bool = False
    """Evaluate on a fifth of the training images, which are then not used for training, instead of the test images."""
    image_size: Annotated[int, Meta(ge=8, le=LARGEST_SIDE)] | None = None
    """Side of the square images in pixels; None means that of the data."""
    image_column: str | None = None
    """For `dataset:`: the column of the images; None means the only image column."""
    label_column: str | None = None
    """For `dataset:`: the column of the classes, used only for evaluation; None means `label` if present."""
    episode_column: str | None = None
    """For `dataset:`: the column whose sorted values are the episodes, such as a date or a place."""
    strict: bool = False
    """Stop at the first image that cannot be decoded instead of skipping and listing it."""
    decode_limit_mb: Annotated[int, Meta(ge=0, le=10**9)] | None = None
    """Larger data of your own is decoded during training; None means OSIRIS_DECODE_LIMIT_MB, or else 4096."""
