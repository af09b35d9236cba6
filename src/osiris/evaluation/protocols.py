"""The evaluation protocols as questions to a KNN or a probe: which bank images vote on a test image, and for what."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from osiris.data.benchmark import Benchmark
from osiris.evaluation.config import PROBE, WHITENED
from osiris.evaluation.knn import Question

TASK_LEVEL = "task-level"
WITHIN_ENVIRONMENT = "within-environment"


def labels_of_test(benchmark: Benchmark) -> tuple[Tensor, Tensor]:
    """(label, task) of the test images of a labelled benchmark."""
    assert benchmark.test is not None and benchmark.test.label is not None
    return benchmark.test.label, benchmark.test.task


def questions(benchmark: Benchmark, protocols: Iterable[str]) -> list[Question]:
    """One question for each protocol; those of whitened features and of probes are asked the same.

    - `class-agnostic`: the whole bank votes.
    - `task-aware`: only bank images of the classes of the image's task vote.
    - `task-aware-masked`: the neighbours come from the whole bank, and only votes for the task's classes count.
    """
    (_, task), label, count = labels_of_test(benchmark), benchmark.bank.label, benchmark.class_count
    assert label is not None
    member = membership(benchmark.tasks, count)
    known = {
        "class-agnostic": Question("class-agnostic", label, count),
        "task-aware": Question("task-aware", label, count, columns=_columns(member, label), group=task),
        "task-aware-masked": Question("task-aware-masked", label, count, allowed=member, group=task),
    }
    return [replace(known[name.removesuffix(WHITENED).removesuffix(PROBE)], name=name) for name in protocols]


def other_questions(benchmark: Benchmark) -> list[Question]:
    """One about the task, and one within environments if there are any.

    - `task-level` (cross-task consolidation C): the whole bank votes for the task, not the class.
    - `within-environment` (Table 5): only bank images of the classes of the image's environment vote.
    """
    (_, task), label, count = labels_of_test(benchmark), benchmark.bank.label, benchmark.class_count
    assert label is not None
    selected = [Question(TASK_LEVEL, benchmark.bank.task, benchmark.task_count)]
    if benchmark.environments:
        classes = [[one for task in tasks for one in benchmark.tasks[task]] for _, tasks in benchmark.environments]
        columns, group = _columns(membership(classes, count), label), environment_of_task(benchmark)[task]
        selected.append(Question(WITHIN_ENVIRONMENT, label, count, columns=columns, group=group))
    return selected


def membership(groups: Sequence[Sequence[int]], class_count: int) -> Tensor:
    """bool [groups, classes]: whether a class belongs to a group."""
    member = torch.zeros(len(groups), class_count, dtype=torch.bool)
    for number, classes in enumerate(groups):
        member[number, list(classes)] = True
    return member


def environment_of_task(benchmark: Benchmark) -> Tensor:
    """int64 [T]: the environment of each task; -1 for a task outside all of them."""
    environment = torch.full((benchmark.task_count,), -1, dtype=torch.int64)
    for number, (_, tasks) in enumerate(benchmark.environments):
        environment[list(tasks)] = number
    return environment


def _columns(member: Tensor, label: Tensor) -> tuple[Tensor, ...]:
    return tuple(classes[label].nonzero().squeeze(1) for classes in member)
