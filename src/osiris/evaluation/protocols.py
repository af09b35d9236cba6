"""The evaluation protocols as questions to the KNN: which bank images vote on a test image, and for what."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from osiris.data.benchmark import Benchmark
from osiris.errors import unknown
from osiris.evaluation.config import PROTOCOLS
from osiris.evaluation.knn import Question

TASK_LEVEL = "task-level"
WITHIN_ENVIRONMENT = "within-environment"


def membership(groups: Sequence[Sequence[int]], class_count: int) -> Tensor:
    """bool [groups, classes]: whether a class belongs to a group."""
    member = torch.zeros(len(groups), class_count, dtype=torch.bool)
    for number, classes in enumerate(groups):
        member[number, list(classes)] = True
    return member


def class_question(name: str, benchmark: Benchmark) -> Question:
    """`class-agnostic`: the whole bank votes. `task-aware`: only bank images of the classes of the image's task vote.
    `task-aware-masked`: the neighbours come from the whole bank, and only votes for the task's classes count."""
    test, label = benchmark.test, benchmark.bank.label
    assert test is not None and label is not None
    count = benchmark.class_count
    if name == "class-agnostic":
        return Question(name, label, count)
    member = membership(benchmark.tasks, count)
    if name == "task-aware":
        return Question(name, label, count, columns=_columns(member, label), group=test.task)
    if name == "task-aware-masked":
        return Question(name, label, count, allowed=member, group=test.task)
    raise unknown("protocol", name, PROTOCOLS)


def task_question(benchmark: Benchmark) -> Question:
    """Cross-task consolidation C: the whole bank votes for the task, not the class."""
    return Question(TASK_LEVEL, benchmark.bank.task, benchmark.task_count)


def environment_question(benchmark: Benchmark) -> Question:
    """Table 5: only bank images of the classes of the image's environment vote."""
    test, label = benchmark.test, benchmark.bank.label
    assert test is not None and label is not None
    classes = [[label for task in tasks for label in benchmark.tasks[task]] for _, tasks in benchmark.environments]
    member = membership(classes, benchmark.class_count)
    group = environment_of_task(benchmark)[test.task]
    return Question(WITHIN_ENVIRONMENT, label, benchmark.class_count, columns=_columns(member, label), group=group)


def environment_of_task(benchmark: Benchmark) -> Tensor:
    """int64 [T]: the environment of each task; -1 for a task outside all of them."""
    environment = torch.full((benchmark.task_count,), -1, dtype=torch.int64)
    for number, (_, tasks) in enumerate(benchmark.environments):
        environment[list(tasks)] = number
    return environment


def _columns(member: Tensor, label: Tensor) -> tuple[Tensor, ...]:
    return tuple(classes[label].nonzero().squeeze(1) for classes in member)
