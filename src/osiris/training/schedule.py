"""Which images are seen when, and at which learning rate. Pure functions of sizes and keys."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from osiris import processes
from osiris.data.benchmark import Benchmark
from osiris.errors import UserError
from osiris.framework.methods import Method
from osiris.randomness import generator
from osiris.training.config import LearningConfig

SMALLEST = 4
"""A last batch with fewer images joins the one before: it would have too few negatives to learn from."""


@dataclass(frozen=True)
class Phase:
    """Training on one set of images: a task, or all of them at once."""

    task: int
    indices: Tensor
    steps: int
    batch_size: int

    @property
    def steps_per_epoch(self) -> int:
        return steps_per_epoch(len(self.indices), self.batch_size)

    @property
    def epochs(self) -> int:
        return -(-self.steps // self.steps_per_epoch)

    @property
    def batch_sizes(self) -> tuple[int, int]:
        """(smallest, largest): the last batch of an epoch takes the remaining images, up to three more than others."""
        last = len(self.indices) - (self.steps_per_epoch - 1) * self.batch_size
        return min(last, self.batch_size), last if self.steps_per_epoch == 1 else max(last, self.batch_size)


def steps_per_epoch(images: int, batch_size: int) -> int:
    """The last partial batch is kept, unless it has fewer than four images."""
    return max(1, images // batch_size + (images % batch_size >= SMALLEST))


def phases(benchmark: Benchmark, method: Method, epochs: int, batch_size: int) -> list[Phase]:
    """`continual`: one phase per task. `joint` and `first-task`: one phase with the steps of the whole continual run,
    or with `length` times the steps of its later tasks.

    A task with fewer images than a batch is one batch.
    """
    by_task = [benchmark.training_indices(task) for task in range(benchmark.task_count)]
    for task, indices in enumerate(by_task):
        if len(indices) < SMALLEST:
            raise UserError(
                f"task {task + 1} of {benchmark.name} has {len(indices)} images; learning needs at least {SMALLEST}. "
                "Add images to it, or remove it."
            )
    steps = [epochs * steps_per_epoch(len(indices), batch_size) for indices in by_task]
    if method.stream == "continual":
        return [
            Phase(task, indices, count, min(batch_size, len(indices)))
            for task, (indices, count) in enumerate(zip(by_task, steps))
        ]
    joint = torch.arange(len(benchmark.train)) if method.stream == "joint" else by_task[0]
    return [Phase(0, joint, steps[0] + round(method.length * sum(steps[1:])), min(batch_size, len(joint)))]


def check_sizes(plan: list[Phase], method: Method, learning: LearningConfig) -> list[str]:
    """Refuse sizes that do not fit together; returns notices for the user."""
    largest, smallest = max(phase.batch_sizes[1] for phase in plan), min(phase.batch_sizes[0] for phase in plan)
    if method.reads_memory:
        replayed = method.replayed(largest)
        if method.memory == "quota" and learning.memory_size < len(plan):
            raise UserError(
                f"the memory holds {learning.memory_size} images, fewer than one of each of the {len(plan)} tasks; use "
                f"--memory-size {len(plan)} or more."
            )
        if learning.memory_size < replayed:
            raise UserError(
                f"the memory holds {learning.memory_size} images, but {method.name} replays {replayed} at each step; "
                f"use --memory-size {replayed} or more, or a smaller --batch-size."
            )
        offered = len(plan[0].indices) * learning.epochs
        if plan[0].task == 0 and offered < replayed:
            raise UserError(
                f"task 1 offers {offered} images to the memory, but {method.name} replays {replayed} at each step; "
                f"use more --epochs, or a smaller --batch-size."
            )
        if method.replayed(smallest) == 0:
            raise UserError(
                f"the smallest batch of this run has {smallest} images, so {method.name} would replay none with it; "
                f"use a --replay-fraction of {1 / smallest:g} or more."
            )
        smallest = min(smallest, method.replayed(smallest))
    if processes.world_size() > smallest:
        raise UserError(
            f"{processes.world_size()} processes cannot share a batch of {smallest} images, the smallest of this run. "
            "Use fewer processes, or a --batch-size that leaves a larger last batch."
        )
    small = [phase.task + 1 for phase in plan if phase.batch_size < learning.batch_size]
    if not small:
        return []
    names = f"task {small[0]} has" if len(small) == 1 else f"{len(small)} tasks (the first: {small[0]}) have"
    return [f"{names} fewer images than a batch of {learning.batch_size}: each step uses all images of the task."]


def batch_indices(phase: Phase, seed: int, step: int, purpose: str = "order") -> Tensor:
    """The images of one step: a keyed permutation for each epoch, cut into batches."""
    per_epoch = phase.steps_per_epoch
    epoch, position = divmod(step, per_epoch)
    order = _order(len(phase.indices), seed, purpose, phase.task, epoch)
    last = position == per_epoch - 1
    stop = None if last else (position + 1) * phase.batch_size
    return phase.indices[order[position * phase.batch_size : stop]]


@lru_cache(maxsize=4)
def _order(count: int, seed: int, purpose: str, task: int, epoch: int) -> Tensor:
    """Cached, because the permutation of a large task costs more than the batch that is cut from it."""
    return torch.randperm(count, generator=generator(seed, purpose, task, epoch))


def learning_rate(base: float, schedule: str, warmup_steps: int, step: int, steps: int) -> float:
    """Constant in the paper. Warm-up and cosine start again in each task."""
    if step < warmup_steps:
        return base * (step + 1) / warmup_steps
    if schedule == "constant":
        return base
    progress = (step - warmup_steps) / max(1, steps - warmup_steps)
    return base * 0.5 * (1 + math.cos(math.pi * progress))
