"""Several processes that train on one global batch.

Every process computes the loss of the *global* batch on gathered embeddings, so the loss is replicated. The rule that
makes all gradients right is: whatever crosses processes passes back the sum over processes of the incoming gradients,
and parameter gradients are averaged at the end. A data term then gets exactly the gradient of the global batch, and a
penalty that every process computes in full (ewc) is counted once, not W times.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

T = TypeVar("T")


_alone = False


def world_size() -> int:
    return dist.get_world_size() if not _alone and dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    return dist.get_rank() if world_size() > 1 else 0


def local_world_size() -> int:
    """The number of processes on this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1")) if world_size() > 1 else 1


@contextmanager
def alone() -> Iterator[None]:
    """A context in which this process computes as if there were no others: it gathers nothing and takes all rows."""
    global _alone
    _alone = True
    try:
        yield
    finally:
        _alone = False


PATIENCE = timedelta(days=7)
"""One process may fetch data or evaluate for hours while the others wait. A process that has died is noticed by its
closed connection, not by the clock."""

JOINING = timedelta(minutes=30)
"""All processes must have started within this time."""

_control: Any = None
"""A process group on the CPU for decisions, so that they never make a GPU wait."""


@contextmanager
def started() -> Iterator[None]:
    """Join the process group if torchrun started this process, and leave it at the end."""
    global _control
    if "WORLD_SIZE" not in os.environ or int(os.environ["WORLD_SIZE"]) == 1 or world_size() > 1:
        yield
        return
    store, number, count = next(dist.rendezvous("env://", timeout=JOINING))
    place: dict[str, Any] = {"store": meet(store, number, count), "rank": number, "world_size": count}
    if torch.cuda.is_available():
        # Both back ends: which one carries a message depends on where its tensor lies (--device cpu works too).
        dist.init_process_group("cpu:gloo,cuda:nccl", **place)
        _control = dist.new_group(backend="gloo", timeout=PATIENCE)
    else:
        dist.init_process_group("gloo", timeout=PATIENCE, **place)
    clean = False
    try:
        yield
        clean = True
    finally:
        _control = None
        if clean or not torch.cuda.is_available():  # after an error NCCL would wait for processes that are gone
            dist.destroy_process_group()


def meet(store: dist.Store, number: int, count: int) -> dist.Store:
    """A part of torchrun's store that belongs to this start only.

    The store survives an elastic restart with the addresses of dead processes in it (pytorch issue 135712), and the
    number of restarts differs between machines. So every process takes a fresh name, the first one proposes the list
    of names it sees, and once every process has found its own name in one list, that list names the part.
    """
    own = uuid.uuid4().hex
    store.set(f"osiris/name/{number}", own)
    deadline = time.monotonic() + JOINING.total_seconds()

    def read(key: str) -> str:
        return store.get(key).decode() if store.check([key]) else ""

    while time.monotonic() < deadline:
        if number == 0:
            store.set("osiris/names", ",".join(read(f"osiris/name/{process}") for process in range(count)))
        names = read("osiris/names")
        if own in names.split(","):
            store.set(f"osiris/agreed/{number}", names)
            if all(read(f"osiris/agreed/{process}") == names for process in range(count)):
                return dist.PrefixStore(f"osiris/{names}", store)
        time.sleep(0.02)
    raise RuntimeError(f"process {number}: not all of {count} processes have started within {JOINING}.")


def share(count: int, process: int | None = None) -> slice:
    """The rows of a global batch of `count` images that belong to this process.

    There is no padding: a duplicate would be a false negative.
    """
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


def gather(rows: Tensor, count: int, dim: int = 0) -> Tensor:
    """All `count` rows of the global batch, along `dim`, gathered from the shares of all processes, with gradients.

    A single process gets the tensor itself: a view would change the order in which autograd adds up gradients.
    """
    if world_size() == 1:
        return rows
    result = _Gather.apply(rows.transpose(0, dim).contiguous(), count)
    assert isinstance(result, Tensor)
    return result.transpose(0, dim)


def sum_over_processes(value: Tensor) -> Tensor:
    """The sum of a value over all processes. In the backward pass gradients are summed too, since each uses the sum."""
    if world_size() == 1:
        return value
    from torch.distributed.nn.functional import all_reduce

    return all_reduce(value)


def average_gradients(parameters: Iterable[torch.nn.Parameter]) -> None:
    """Average all gradients over processes in one flat message. A head that is not used yet has none."""
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


def agree(*flags: bool) -> tuple[bool, ...]:
    """For each flag, whether it is true in any process. If one process gets a signal, all stop at the same step."""
    if world_size() == 1:
        return flags
    value = torch.tensor([int(flag) for flag in flags])
    dist.all_reduce(value, dist.ReduceOp.MAX, group=_control)
    return tuple(bool(item) for item in value.tolist())


class Elsewhere(SystemExit):
    """Another process has failed and reports it; this one exits silently with the same code."""


def lost(error: RuntimeError) -> bool:
    """Whether an error says that the connection to another process is gone."""
    return world_size() > 1 and (isinstance(error, dist.DistError) or "gloo" in str(error))


@contextmanager
def together() -> Iterator[None]:
    """A context for work that must succeed in all processes. If it fails in one, all stop, and none waits.

    The first process that failed raises its error, the others `Elsewhere`. Nothing inside may communicate.
    """
    if world_size() == 1:
        yield
        return
    failure: Exception | None = None
    try:
        yield
    except Exception as error:
        failure = error
    codes = torch.zeros(world_size(), dtype=torch.int64)
    codes[rank()] = 0 if failure is None else getattr(failure, "exit_code", 2)
    dist.all_reduce(codes, group=_control)
    if codes.any():
        first = int(codes.nonzero()[0])
        if failure is not None and rank() == first:
            raise failure
        raise Elsewhere(int(codes[first]))


def on_first(work: Callable[..., T], *arguments: Any) -> T | None:
    """Do work in the first process alone, such as writing files. The others return None, or stop if it fails."""
    with together():
        return work(*arguments) if rank() == 0 else None


def in_turn(work: Callable[[], T]) -> T:
    """Do the same work in all processes, but first in one of each machine, which may fill a cache for the others."""
    results: list[T] = []
    for first in (True, False):
        with together():
            if (world_size() == 1 or os.environ.get("LOCAL_RANK", "0") == "0") is first:
                results.append(work())
    return results[0]


def broadcast(value: T) -> T:
    """The value of the first process, in all processes."""
    if world_size() == 1:
        return value
    values = [value]
    dist.broadcast_object_list(values, 0, group=_control)
    return values[0]
