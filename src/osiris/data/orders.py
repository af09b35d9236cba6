"""Class orders: which classes make which task.

The orders of the paper's benchmarks lie in orders.json, one row of names per task. A user may ask for a random order
(`seed:N`) or bring a JSON file with a list of names, or a list of lists: one per task.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from osiris.errors import UserError

Tasks = tuple[tuple[int, ...], ...]


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


def cut(order: Sequence[int], task_count: int, name: str) -> Tasks:
    """Consecutive slices of the order. When the classes do not divide evenly the first tasks get one more."""
    if task_count < 1:
        raise UserError(f"{name}: a benchmark needs at least one task, not {task_count}.")
    if task_count > len(order):
        raise UserError(f"{name}: {len(order)} classes cannot be cut into {task_count} tasks. Choose fewer tasks.")
    size, extra = divmod(len(order), task_count)
    bounds = [task * size + min(task, extra) for task in range(task_count + 1)]
    return tuple(tuple(order[start:end]) for start, end in pairwise(bounds))


def resolve(names: Sequence[str], class_names: Sequence[str], aliases: Sequence[str], where: str) -> list[int]:
    """Labels of `names`, which must be every class exactly once. `aliases` are further names (WordNet ids)."""
    label_of = {name: label for label, name in enumerate(aliases)} | {
        name: label for label, name in enumerate(class_names)
    }
    unknown = [name for name in names if name not in label_of]
    if unknown:
        raise UserError(
            f"{where} names {len(unknown)} unknown class(es): {_some(unknown)}. The data set has: {_some(class_names)}."
        )
    labels = [label_of[name] for name in names]
    repeated = [class_names[label] for label, count in Counter(labels).items() if count > 1]
    if repeated:
        raise UserError(f"{where} names {len(repeated)} class(es) more than once: {_some(repeated)}.")
    missing = [class_names[label] for label in sorted(set(range(len(class_names))) - set(labels))]
    if missing:
        raise UserError(
            f"{where} misses {len(missing)} of the {len(class_names)} classes: {_some(missing)}. Name each class once."
        )
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
        return cut(resolve(names, class_names, aliases, f"the class order of {name}"), task_count, name)
    if class_order.startswith("seed:"):
        return cut(_random_order(class_order, len(class_names)), task_count, name)
    path = Path(class_order)
    listed = _read_order(path)
    where = f"the class order {path}"
    if listed and isinstance(listed[0], list):
        return _explicit_tasks(listed, class_names, aliases, task_count, where)
    return cut(resolve(listed, class_names, aliases, where), task_count, name)


def _random_order(class_order: str, class_count: int) -> list[int]:
    import torch

    from osiris.randomness import generator

    try:
        seed = int(class_order.removeprefix("seed:"))
    except ValueError:
        raise UserError(f"--class-order {class_order!r}: write seed:N with a whole number N, such as seed:3.") from None
    return torch.randperm(class_count, generator=generator(seed, "order.classes")).tolist()


def _read_order(path: Path) -> list[Any]:
    help_text = "Give `seed:N` or a JSON file with a list of class names (or a list of lists, one per task)."
    try:
        listed = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read the class order {path}: {error}. {help_text}") from None
    except json.JSONDecodeError as error:
        raise UserError(f"the class order {path} is not JSON ({error}). {help_text}") from None
    flat = isinstance(listed, list) and all(isinstance(name, str) for name in listed)
    nested = isinstance(listed, list) and all(
        isinstance(row, list) and all(isinstance(name, str) for name in row) for row in listed
    )
    if not (flat or nested) or not listed:
        raise UserError(f"the class order {path} is not a list of class names. {help_text}")
    return listed


def _explicit_tasks(
    rows: list[list[str]], class_names: Sequence[str], aliases: Sequence[str], task_count: int, where: str
) -> Tasks:
    if len(rows) != task_count:
        raise UserError(f"{where} lists {len(rows)} tasks, the benchmark has {task_count}.")
    if any(not row for row in rows):
        raise UserError(f"{where} has an empty task. Each task needs at least one class.")
    labels = iter(resolve([name for row in rows for name in row], class_names, aliases, where))
    return tuple(tuple(next(labels) for _ in row) for row in rows)


def shuffle(count: int, seed: int) -> list[int]:
    """A random order of the tasks: position -> which task comes there."""
    import torch

    from osiris.randomness import generator

    return torch.randperm(count, generator=generator(seed, "order.tasks")).tolist()


def _some(names: Sequence[str], limit: int = 6) -> str:
    return ", ".join(repr(name) for name in names[:limit]) + (", ..." if len(names) > limit else "")
