"""What is seen when: phases, epochs, batches. Pure functions of sizes and keys."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from osiris.data.benchmark import Benchmark
from osiris.errors import UserError
from osiris.framework.methods import Method
from osiris.randomness import generator

SMALLEST = 4
"""A last batch of fewer images joins the one before: too few negatives to learn from."""


@dataclass(frozen=True)
class Phase:
    """A stretch of training on one set of images."""

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
        """(smallest, largest): the last batch of an epoch is what is left, and up to three images more than others."""
        last = len(self.indices) - (self.steps_per_epoch - 1) * self.batch_size
        return min(last, self.batch_size), last if self.steps_per_epoch == 1 else max(last, self.batch_size)


def steps_per_epoch(images: int, batch_size: int) -> int:
    """The last partial batch is kept, unless it has fewer than four images."""
    return max(1, images // batch_size + (images % batch_size >= SMALLEST))


def phases(benchmark: Benchmark, method: Method, epochs: int, batch_size: int) -> list[Phase]:
    """continual: one phase per task. joint and first-task: one phase, for as many steps as the continual run, or
    `length` times as many as its later tasks have."""
    stream = method.stream
    by_task = [benchmark.training_indices(task) for task in range(benchmark.task_count)]
    for task, indices in enumerate(by_task):
        if len(indices) < SMALLEST:
            raise UserError(
                f"task {task + 1} of {benchmark.name} has {len(indices)} images; learning needs {SMALLEST}."
            )
        if len(indices) < batch_size and stream == "continual":
            raise UserError(
                f"task {task + 1} of {benchmark.name} has {len(indices)} images, fewer than a batch of {batch_size}; "
                f"use --batch-size {len(indices)} or less."
            )
    steps = [epochs * steps_per_epoch(len(indices), batch_size) for indices in by_task]
    if stream == "continual":
        return [Phase(task, indices, count, batch_size) for task, (indices, count) in enumerate(zip(by_task, steps))]
    joint = torch.arange(len(benchmark.train)) if stream == "joint" else by_task[0]
    return [Phase(0, joint, steps[0] + round(method.length * sum(steps[1:])), batch_size)]


def batch_indices(phase: Phase, seed: int, step: int, purpose: str = "order") -> Tensor:
    """The images of one step: a keyed permutation per epoch, cut into batches."""
    per_epoch = phase.steps_per_epoch
    epoch, position = divmod(step, per_epoch)
    order = _order(len(phase.indices), seed, purpose, phase.task, epoch)
    last = position == per_epoch - 1
    stop = None if last else (position + 1) * phase.batch_size
    return phase.indices[order[position * phase.batch_size : stop]]


@lru_cache(maxsize=4)
def _order(count: int, seed: int, purpose: str, task: int, epoch: int) -> Tensor:
    """Kept: a permutation of a large task costs more than the batch cut from it."""
    return torch.randperm(count, generator=generator(seed, purpose, task, epoch))


def learning_rate(base: float, schedule: str, warmup_steps: int, step: int, steps: int) -> float:
    """Constant in the paper; warm-up and cosine start anew in each task."""
    if step < warmup_steps:
        return base * (step + 1) / warmup_steps
    if schedule == "constant":
        return base
    progress = (step - warmup_steps) / max(1, steps - warmup_steps)
    return base * 0.5 * (1 + math.cos(math.pi * progress))
