"""Several processes, one global batch.

Every process computes the loss of the *global* batch on gathered embeddings, so the loss is replicated. The rule that
makes all gradients right is: whatever crosses processes passes back the sum over processes of the incoming gradients,
and parameter gradients are averaged at the end. A data term then gets exactly the gradient of the global batch, and a
penalty that every process computes in full (ewc) is counted once, not W times.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def world_size() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    return dist.get_rank() if world_size() > 1 else 0


_control: Any = None
"""A process group on the CPU for decisions, so that they never make a GPU wait."""


@contextmanager
def started() -> Iterator[None]:
    """Join the other processes when torchrun started this one; leave them at the end."""
    global _control
    if "WORLD_SIZE" not in os.environ or int(os.environ["WORLD_SIZE"]) == 1 or world_size() > 1:
        yield
        return
    on_gpu = torch.cuda.is_available()
    dist.init_process_group("nccl" if on_gpu else "gloo")
    _control = dist.new_group(backend="gloo") if on_gpu else None
    try:
        yield
    finally:
        dist.destroy_process_group()


def share(count: int, process: int | None = None) -> slice:
    """The rows of a global batch of `count` that are this process' own. No padding: duplicates are false negatives."""
    process, world = rank() if process is None else process, world_size()
    return slice(count * process // world, count * (process + 1) // world)


class _Gather(torch.autograd.Function):
    """Forward: rows of all processes in order. Backward: the sum over processes of the gradients of our rows.

    The loss is replicated, so every process holds the same gradient and the sum is W times our own slice: no
    communication is needed in the backward pass.
    """

    @staticmethod
    def forward(ctx: Any, rows: Tensor, count: int) -> Tensor:
        ctx.rows = share(count)
        sizes = [len(range(count)[share(count, process)]) for process in range(world_size())]
        padded = rows.new_zeros(max(sizes), *rows.shape[1:])
        padded[: len(rows)] = rows
        parts = [torch.empty_like(padded) for _ in sizes]
        dist.all_gather(parts, padded)
        return torch.cat([part[:size] for part, size in zip(parts, sizes)])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0][ctx.rows] * world_size(), None


def gather(rows: Tensor, count: int) -> Tensor:
    """All `count` rows of the global batch from every process' share [n, ...], with gradients."""
    if world_size() == 1:
        return rows
    result = _Gather.apply(rows.contiguous(), count)
    assert isinstance(result, Tensor)
    return result


class _Sum(torch.autograd.Function):
    """Forward: sum over processes. Backward: sum over processes of the gradients (each used the sum its own way)."""

    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        value = value.clone()
        dist.all_reduce(value)
        return value

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        gradient = gradients[0].clone()
        dist.all_reduce(gradient)
        return gradient


def sum_over_processes(value: Tensor) -> Tensor:
    if world_size() == 1:
        return value
    result = _Sum.apply(value)
    assert isinstance(result, Tensor)
    return result


def average_gradients(parameters: Iterable[torch.nn.Parameter]) -> None:
    """Average all gradients over processes in one flat message. A late-starting head has none: it is left out."""
    world = world_size()
    if world == 1:
        return
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if not gradients:
        return
    flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
    dist.all_reduce(flat)
    flat /= world
    for gradient, part in zip(gradients, flat.split([gradient.numel() for gradient in gradients])):
        gradient.copy_(part.view_as(gradient))


def agree(flag: bool) -> bool:
    """True everywhere when it is true anywhere (one process got a signal: all stop at the same step)."""
    if world_size() == 1:
        return flag
    value = torch.tensor([int(flag)])
    dist.all_reduce(value, dist.ReduceOp.MAX, group=_control)
    return bool(value.item())


def barrier() -> None:
    if world_size() > 1:
        dist.barrier(group=_control)
