"""The published data sets and their class orders, and what the name of a benchmark stands for.

The class orders of the paper's benchmarks are in orders.json, one row of names per task. A user may ask for a random
order (`seed:N`) or give a JSON file with a list of names, or a list of lists: one per task. (No torch at import:
`osiris list` must be fast.)
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from osiris.errors import UserError, unknown

Tasks = tuple[tuple[int, ...], ...]
Channels = tuple[float, float, float]
IMAGENET_MEAN: Channels = (0.485, 0.456, 0.406)
IMAGENET_STD: Channels = (0.229, 0.224, 0.225)


@cache
def _packaged() -> dict[str, Any]:
    return json.loads(Path(__file__).with_name("orders.json").read_text(encoding="utf-8"))


def packaged_order(dataset: str, order: str) -> list[str]:
    """The names of all classes of `cifar100` or `tiny-imagenet` in the order `random` or `structured`."""
    return " ".join(_packaged()[dataset][order]).split()


def tiny_imagenet_words() -> dict[str, str]:
    """WordNet id -> readable name."""
    return dict(_packaged()["tiny-imagenet"]["words"])


def tiny_imagenet_environments() -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Sec. 4: tasks 1-4 are indoor, 5-7 city, 8-10 wild (here counted from 0)."""
    return tuple((name, tuple(tasks)) for name, tasks in _packaged()["tiny-imagenet"]["environments"])


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
    """Its name on the Hugging Face hub; empty for tinyworld, which is rendered by code."""
    image_column: str = "image"
    label_column: str = "label"
    test_split: str = "test"
    checksum: str | None = None
    """The checksum of the decoded images and labels of the complete data set, where decoding is lossless."""

    @property
    def class_ids(self) -> tuple[str, ...]:
        """The name of each label on the hub, in alphabetical order."""
        return tuple(sorted(packaged_order(self.name, "random")))

    @property
    def class_names(self) -> tuple[str, ...]:
        """The readable name of each label: the first word of a WordNet id."""
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
            checksum="d1a34a7f20d4f838e86ed67d73e029c7623992faf37efd1a362563fb4f72b50d",
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
    """Order of the classes: `random`, `structured`, or `own` (tinyworld's); of a film, which one."""
    about: str = ""


_NAMED = (
    BenchmarkName("tinyworld", "known", "tinyworld", 10, "own", "rendered by code: for demos and tests"),
    BenchmarkName("walk", "known", "tinyworld", 10, "walk", "a film of tinyworld: a stream of frames"),
    BenchmarkName("walk:ordered", "known", "tinyworld", 10, "walk:ordered", "a film that shows task after task"),
    BenchmarkName("walk:shuffled", "known", "tinyworld", 10, "walk:shuffled", "the frames of walk, shuffled"),
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
"""The benchmark name of a run that is given one folder of images at a time."""
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


def cut(order: Sequence[int], task_count: int, name: str) -> Tasks:
    """Consecutive slices of the order. When the classes do not divide evenly the first tasks get one more."""
    if task_count < 1:
        raise UserError(f"{name}: a benchmark needs at least one task, not {task_count}.")
    if task_count > len(order):
        raise UserError(f"{name}: {len(order)} classes cannot be divided into {task_count} tasks. Choose fewer tasks.")
    size, extra = divmod(len(order), task_count)
    bounds = [task * size + min(task, extra) for task in range(task_count + 1)]
    return tuple(tuple(order[start:end]) for start, end in pairwise(bounds))


def labels_of(names: Sequence[str], class_names: Sequence[str], aliases: Sequence[str], where: str) -> list[int]:
    """Labels of `names`, which must be every class exactly once. `aliases` are further names (WordNet ids)."""
    label_of = {name: label for every in (aliases, class_names) for label, name in enumerate(every)}
    labels = [label_of[name] for name in names if name in label_of]
    problems = {
        "unknown": [name for name in names if name not in label_of],
        "named more than once": [class_names[label] for label, count in Counter(labels).items() if count > 1],
        "missing": [name for label, name in enumerate(class_names) if label not in labels],
    }
    if any(problems.values()):
        text = "; ".join(f"{len(each)} {what}: {_some(each)}" for what, each in problems.items() if each)
        raise UserError(f"{where} must name each of the {len(class_names)} classes once ({text}).")
    return labels


def choose_tasks(
    name: str,
    class_names: Sequence[str],
    aliases: Sequence[str],
    task_count: int,
    default: Sequence[str] | None,
    class_order: str | None,
) -> Tasks:
    """The labels of each task: from `class_order` if the user gave one, else `default`, else in label order."""
    if class_order is None:
        names = list(class_names) if default is None else default
        return cut(labels_of(names, class_names, aliases, f"the class order of {name}"), task_count, name)
    if class_order.startswith("seed:"):
        try:
            seed = int(class_order.removeprefix("seed:"))
        except ValueError:
            raise UserError(f"--class-order {class_order!r}: write seed:N with a whole number N.") from None
        return cut(_shuffled(len(class_names), seed, "order.classes"), task_count, name)
    where, listed = f"the class order {class_order}", _read_order(Path(class_order))
    rows = [row if isinstance(row, list) else [row] for row in listed]
    if not all(rows):
        raise UserError(f"{where} has an empty task. Each task needs at least one class.")
    labels = labels_of([class_name for row in rows for class_name in row], class_names, aliases, where)
    if isinstance(listed[0], str):
        return cut(labels, task_count, name)
    if len(rows) != task_count:
        raise UserError(f"{where} lists {len(rows)} tasks, the benchmark has {task_count}.")
    following = iter(labels)
    return tuple(tuple(next(following) for _ in row) for row in rows)


def _read_order(path: Path) -> list[str] | list[list[str]]:
    help_text = "Give `seed:N` or a JSON file with a list of class names (or a list of lists, one per task)."
    try:
        listed = msgspec.json.decode(path.read_bytes(), type=list[str | list[str]])
    except OSError as error:
        raise UserError(f"cannot read the class order {path}: {error}. {help_text}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UserError(f"the class order {path} is not a list of class names ({error}). {help_text}") from None
    if len({type(row) for row in listed}) != 1:
        raise UserError(f"the class order {path} is not a list of class names or a list of lists. {help_text}")
    return listed  # pyright: ignore[reportReturnType]


def task_order(count: int, seed: int | None) -> list[int]:
    """Position -> which task comes there; random with a seed."""
    return list(range(count)) if seed is None else _shuffled(count, seed, "order.tasks")


def _shuffled(count: int, seed: int, purpose: str) -> list[int]:
    import torch

    from osiris.randomness import generator  # imports torch

    return torch.randperm(count, generator=generator(seed, purpose)).tolist()


def _some(names: Sequence[str]) -> str:
    return ", ".join(repr(name) for name in names[:6]) + (", ..." if len(names) > 6 else "")
