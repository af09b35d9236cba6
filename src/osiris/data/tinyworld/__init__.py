"""tinyworld: a small image world that ships as code, 40 classes in 10 tasks in three environments.

    images, labels = render("train", per_class=250)      # uint8 [10000, 3, 32, 32], int64 [10000]

The tasks are ordered by environment (indoor, city, wild) as in Structured Tiny-ImageNet. An image depends only on
(VERSION, split, class, its number): asking for more images, or for fewer classes, never changes the others.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from osiris.data.catalogue import DATASETS
from osiris.data.config import BenchmarkConfig
from osiris.data.source import Encoded, Rows, Source, Table, make_table
from osiris.data.tinyworld import objects, painting
from osiris.data.tinyworld.painting import NOISE_WORDS, PARAMETERS, SIZE, paint, photograph
from osiris.data.tinyworld.walk import FRAMES, render_walk

VERSION = 4
"""Key of the random numbers: another one draws every image anew."""
SPLITS = ("train", "test")
CHUNK = 16
"""Images painted at a time: few enough for the processor's cache."""

CLASS_NAMES: tuple[str, ...] = tuple(kind for task in objects.TASKS for kind in task.kinds)
TASK_NAMES: tuple[str, ...] = tuple(task.name for task in objects.TASKS)
TASKS: tuple[tuple[int, ...], ...] = tuple(tuple(map(CLASS_NAMES.index, task.kinds)) for task in objects.TASKS)
"""The labels of each task, in the order of the stream."""
ENVIRONMENTS: tuple[tuple[str, tuple[int, ...]], ...] = tuple(
    (environment.name, tuple(t for t, task in enumerate(objects.TASKS) if task.environment == environment.name))
    for environment in painting.ENVIRONMENTS
)
"""(name, indices of its tasks)."""


def render(split: str, per_class: int, classes: Sequence[int] | None = None) -> tuple[np.ndarray, np.ndarray]:
    """The first `per_class` images of each class, class after class: uint8 [N, 3, 32, 32] and int64 labels [N]."""
    chosen = range(len(CLASS_NAMES)) if classes is None else classes
    images = np.empty((len(chosen), per_class, 3, SIZE, SIZE), np.uint8)
    for row, label in zip(images, chosen):
        render_class(split, label, row)
    return images.reshape(-1, 3, SIZE, SIZE), np.repeat(np.asarray(chosen, np.int64), per_class)


def render_class(split: str, label: int, out: np.ndarray) -> None:
    """Fill `out` [n, 3, 32, 32] with the first n images of one class."""
    task = next(task for task, labels in zip(objects.TASKS, TASKS) if label in labels)
    environment = next(scene for scene in painting.ENVIRONMENTS if scene.name == task.environment)
    draw = task.kinds[CLASS_NAMES[label]]
    # The raw bits of Philox are the same in every version of numpy, unlike the distributions built on them.
    bits = np.random.Philox(key=[VERSION, 2 * label + SPLITS.index(split)])
    for start in range(0, len(out), CHUNK):
        part = out[start : start + CHUNK]
        words = bits.random_raw(len(part) * (PARAMETERS + NOISE_WORDS)).reshape(len(part), -1)
        parameters, noise = words[:, :PARAMETERS], np.ascontiguousarray(words[:, PARAMETERS:])
        part[:] = photograph(paint(draw, task.turn, environment, parameters), parameters, noise)


def tinyworld_source(config: BenchmarkConfig) -> Source:
    """Has as many images per class as the limits ask for (tinyworld is endless), else the usual number."""
    known = DATASETS["tinyworld"]
    usual = known.train_per_class
    train = max(config.train_per_class or usual, config.bank_per_class or usual)
    counts = {"train": train, "test": config.test_per_class or known.test_per_class}

    def read_table() -> Table:
        rows = [_rows(split, count) for split, count in counts.items()]
        table = make_table("tinyworld", *rows, class_names=CLASS_NAMES)
        return replace(table, episode=None, episode_names=())

    return Source("tinyworld", read_table, (_code_digest(), repr(sorted(counts.items()))), known)


def _code_digest() -> str:
    """An image of an older tinyworld must not come out of the cache."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _rows(split: str, per_class: int) -> Rows:
    @lru_cache(2)
    def rendered(label: int) -> np.ndarray:
        return render(split, per_class, [label])[0].transpose(0, 2, 3, 1)

    def read(rows: Sequence[int]) -> list[Encoded]:
        return [rendered(row // per_class)[row % per_class] for row in rows]

    labels = np.repeat(np.arange(len(CLASS_NAMES)), per_class)
    return Rows(len(labels), read, lambda row: f"{split} image {row}", labels)


def walk_source(frames: int | None = None, ordered: bool = False) -> Source:
    """The frames of a film in the order of time; `walk_labels` has the class of each."""
    count, name = frames or FRAMES, "walk-ordered" if ordered else "walk"

    def read(rows: Sequence[int]) -> list[Encoded]:
        part = render_walk(count, ordered, rows[0], rows[-1] + 1).transpose(0, 2, 3, 1)
        return [part[row - rows[0]] for row in rows]

    rows = Rows(count, read, lambda row: f"frame {row} of {name}")
    key = (_code_digest(), name, str(count))
    known = replace(DATASETS["tinyworld"], name=name)
    return Source(name, lambda: make_table(name, rows), key, known)
