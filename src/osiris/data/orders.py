"""Class orders: which classes make which task.

The orders of the paper's benchmarks are in orders.json, one row of names per task. A user may ask for a random order
(`seed:N`) or give a JSON file with a list of names, or a list of lists: one per task.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

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
        raise UserError(f"{name}: {len(order)} classes cannot be divided into {task_count} tasks. Choose fewer tasks.")
    size, extra = divmod(len(order), task_count)
    bounds = [task * size + min(task, extra) for task in range(task_count + 1)]
    return tuple(tuple(order[start:end]) for start, end in pairwise(bounds))


def resolve(names: Sequence[str], class_names: Sequence[str], aliases: Sequence[str], where: str) -> list[int]:
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
        return cut(resolve(names, class_names, aliases, f"the class order of {name}"), task_count, name)
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
    labels = resolve([class_name for row in rows for class_name in row], class_names, aliases, where)
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
