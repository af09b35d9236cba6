"""Benchmark names and the data sets they stand for (no torch here: `osiris list` must be fast)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from osiris.data.orders import packaged_order, tiny_imagenet_words
from osiris.errors import UserError, unknown

Channels = tuple[float, float, float]
IMAGENET_MEAN: Channels = (0.485, 0.456, 0.406)
IMAGENET_STD: Channels = (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class KnownDataset:
    """What a complete copy of a data set looks like, and where it is published."""

    name: str
    size: int
    class_count: int
    train_per_class: int
    test_per_class: int
    mean: Channels
    std: Channels
    repository: str = ""
    """On the Hugging Face hub; empty for tinyworld, which is rendered by code."""
    image_column: str = "image"
    label_column: str = "label"
    test_split: str = "test"
    content: str | None = None
    """Checksum of the decoded images and labels of the complete data set, where decoding is lossless."""

    @property
    def class_ids(self) -> tuple[str, ...]:
        """By label, as the hub names them: in alphabetical order."""
        return tuple(sorted(packaged_order(self.name, "random")))

    @property
    def class_names(self) -> tuple[str, ...]:
        """By label, readable: a WordNet id is replaced by the first of its words."""
        words = tiny_imagenet_words() if self.name == "tiny-imagenet" else {}
        return tuple(words.get(name, name) for name in self.class_ids)


DATASETS: dict[str, KnownDataset] = {
    dataset.name: dataset
    for dataset in (
        KnownDataset("tinyworld", 32, 40, 250, 50, mean=(0.441, 0.437, 0.372), std=(0.202, 0.170, 0.180)),
        KnownDataset(
            "cifar100",
            32,
            100,
            500,
            100,
            mean=(0.5071, 0.4867, 0.4408),
            std=(0.2675, 0.2565, 0.2761),
            repository="uoft-cs/cifar100",
            image_column="img",
            label_column="fine_label",
            content="d1a34a7f20d4f838e86ed67d73e029c7623992faf37efd1a362563fb4f72b50d",
        ),
        KnownDataset(
            "tiny-imagenet",
            64,
            200,
            500,
            50,
            mean=IMAGENET_MEAN,
            std=IMAGENET_STD,
            repository="zh-plus/tiny-imagenet",
            test_split="valid",  # the labels of its test split were never published (Sec. 4)
        ),
    )
}


@dataclass(frozen=True)
class BenchmarkName:
    """A benchmark name, taken apart."""

    text: str
    kind: str
    """`known` (a name in DATASETS), `folder`, `dataset` or `arrays`."""
    place: str
    """The known data set's name, a path, or a repository on the hub."""
    task_count: int | None
    """Number of tasks that the classes are divided into; None: the data's own episodes are the tasks."""
    order: str = "random"
    """Order of the classes: `random`, `structured`, or `own` (tinyworld's)."""
    about: str = ""


_NAMED = (
    BenchmarkName("tinyworld", "known", "tinyworld", 10, "own", "rendered by code: for demos and tests"),
    BenchmarkName("split-cifar100-5", "known", "cifar100", 5, about="Table 2: 5 tasks of 20 random classes"),
    BenchmarkName("split-cifar100-20", "known", "cifar100", 20, about="Table 2: 20 tasks of 5 random classes"),
    BenchmarkName("structured-cifar100", "known", "cifar100", 10, "structured", "Table 3: 10 tasks of 2 superclasses"),
    BenchmarkName(
        "structured-tiny-imagenet", "known", "tiny-imagenet", 10, "structured", "Table 3: indoor, city, wild"
    ),
    BenchmarkName("split-tiny-imagenet-10", "known", "tiny-imagenet", 10, about="10 tasks of 20 random classes"),
)
BENCHMARKS = {name.text: name for name in _NAMED}
EPISODES = "episodes"
"""What a run is said to learn from that is given one folder of images at a time."""
PATTERNS = ("split-DATASET-N", "folder:PATH", "dataset:NAME_OR_PATH", "arrays:FILE.npz")
SPLIT = re.compile(r"^split-(?P<place>.+)-(?P<tasks>\d+)$")


def parse_name(name: str) -> BenchmarkName:
    """What a benchmark name stands for. A number of tasks that cannot work is refused before any data is read."""
    if name in BENCHMARKS:
        return BENCHMARKS[name]
    split = SPLIT.match(name)
    place, task_count = (split["place"], int(split["tasks"])) if split else (name, None)
    kind, _, path = place.partition(":")
    if kind in ("folder", "dataset", "arrays") and path:
        return BenchmarkName(name, kind, path, task_count)
    if task_count is not None and place in DATASETS:
        classes = DATASETS[place].class_count
        possible = [count for count in range(1, classes + 1) if classes % count == 0]
        if task_count not in possible:
            raise UserError(
                f"{name}: the {classes} classes of {place} cannot be divided into {task_count} tasks of the same size. "
                f"Choose one of these numbers of tasks: {', '.join(map(str, possible))}."
            )
        return BenchmarkName(name, "known", place, task_count)
    if task_count is not None and ("/" in place or Path(place).exists()):  # OWNER/NAME on the hub, or a local path
        return BenchmarkName(name, "dataset", place, task_count)
    if Path(name).expanduser().is_dir():
        raise UserError(f"{name} is not the name of a benchmark. Did you mean the folder, folder:{name}?")
    raise unknown("benchmark", name, [*BENCHMARKS, *PATTERNS])


def is_known(name: str) -> bool:
    """Whether a benchmark is built in or one of the paper's, and not made of a user's own images."""
    try:
        return parse_name(name).kind == "known"
    except UserError:
        return False
