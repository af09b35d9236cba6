"""tinyworld: a small image world that ships as code, 40 classes in 10 tasks in three environments.

    images, labels = render("train", per_class=250)      # uint8 [10000, 3, 32, 32], int64 [10000]

The tasks are ordered by environment (indoor, city, wild) as in Structured Tiny-ImageNet. An image depends only on
(VERSION, split, class, its number): asking for more images, or for fewer classes, never changes the others.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from osiris.data.tinyworld import objects, scenes
from osiris.data.tinyworld.painting import NOISE_WORDS, PARAMETERS, SIZE, paint, photograph

VERSION = 4
"""Grows whenever a pixel changes; part of the checksum."""
SPLITS = ("train", "test")
CHUNK = 16
"""Images painted at a time: few enough for the processor's cache."""

KINDS: tuple[objects.Kind, ...] = tuple(kind for task in objects.TASKS for kind in task.kinds)
CLASS_NAMES: tuple[str, ...] = tuple(kind.name for kind in KINDS)
TASK_NAMES: tuple[str, ...] = tuple(task.name for task in objects.TASKS)
TASKS: tuple[tuple[int, ...], ...] = tuple(
    tuple(CLASS_NAMES.index(kind.name) for kind in task.kinds) for task in objects.TASKS
)
"""The labels of each task, in the order of the stream."""
ENVIRONMENTS: tuple[tuple[str, tuple[int, ...]], ...] = tuple(
    (environment.name, tuple(t for t, task in enumerate(objects.TASKS) if task.environment == environment.name))
    for environment in scenes.ENVIRONMENTS
)
"""(name, indices of its tasks)."""


def render(split: str, per_class: int, classes: Sequence[int] | None = None) -> tuple[np.ndarray, np.ndarray]:
    """The first `per_class` images of each class, class after class: uint8 [N, 3, 32, 32] and int64 labels [N]."""
    chosen = range(len(KINDS)) if classes is None else classes
    images = np.empty((len(chosen), per_class, 3, SIZE, SIZE), np.uint8)
    for row, label in zip(images, chosen):
        render_class(split, label, row)
    return images.reshape(-1, 3, SIZE, SIZE), np.repeat(np.asarray(chosen, np.int64), per_class)


def render_class(split: str, label: int, out: np.ndarray) -> None:
    """Fill `out` [n, 3, 32, 32] with the first n images of one class."""
    task = next(task for task, labels in zip(objects.TASKS, TASKS) if label in labels)
    environment = next(scene for scene in scenes.ENVIRONMENTS if scene.name == task.environment)
    # The raw bits of Philox are the same in every version of numpy, unlike the distributions built on them.
    bits = np.random.Philox(key=[VERSION, 2 * label + SPLITS.index(split)])
    for start in range(0, len(out), CHUNK):
        part = out[start : start + CHUNK]
        words = bits.random_raw(len(part) * (PARAMETERS + NOISE_WORDS)).reshape(len(part), -1)
        parameters, noise = words[:, :PARAMETERS], np.ascontiguousarray(words[:, PARAMETERS:])
        part[:] = photograph(paint(KINDS[label], environment, parameters), parameters, noise)
