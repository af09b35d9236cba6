"""The memory M. The paper's is a reservoir over presentations (Vitter 1985), uniform storing and retrieval (Sec. 3.2).

Later methods decide otherwise which images stay: the newest (`Fifo`), the least redundant (`MinRed`), or the same
number of each task (`Quota`, `Equal`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from osiris.errors import UserError, unknown
from osiris.kinds import Named


class Memory(Named, nn.Module):
    """Raw uint8 images with their source id, task and insertion step, and the fields that terms declare (as der).

    Offer number n (from 0) takes the next free slot. Once the memory is full, r is drawn from {0..n}, and the image
    replaces slot r if there is such a slot. The draws come from the caller's keyed generator on the CPU, so every
    process makes the same decisions.
    """

    kind: ClassVar[str] = "reservoir"
    by_task: ClassVar[bool] = False
    """Whether all images of a task are offered at its end, instead of a batch after each step."""
    before: ClassVar[bool] = False
    """Whether a batch of a stream is offered before it is learned from, and not after."""
    images: Tensor
    source: Tensor
    task: Tensor
    step: Tensor

    def __init__(
        self, size: int, shape: tuple[int, int, int], fields: Mapping[str, int] | None = None, tasks: int = 1
    ) -> None:
        super().__init__()
        self.size, self.offers, self.tasks = size, 0, tasks
        self.register_buffer("images", torch.zeros(size, *shape, dtype=torch.uint8))
        for name in ("source", "task", "step"):
            self.register_buffer(name, torch.full((size,), -1, dtype=torch.int64))
        self.fields = tuple(fields or {})
        for name, width in (fields or {}).items():
            self.register_buffer(f"field_{name}", torch.zeros(size, width))

    @property
    def filled(self) -> int:
        return min(self.offers, self.size)

    def admit(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """(rows, slots): which of the next `count` offers enter, and where. The last offer for a slot wins."""
        slot = self.choose(self.offers + torch.arange(count), generator)
        # Rows grow, so the largest row that hits a slot is the last one.
        winner = torch.full((self.size + 1,), -1).scatter_reduce(
            0, slot.clamp(max=self.size), torch.arange(count), "amax"
        )
        slots = (winner[: self.size] >= 0).nonzero().squeeze(1)
        return winner[slots], slots

    def choose(self, number: Tensor, generator: torch.Generator) -> Tensor:
        """The slot of each offer, by its number; a slot that does not exist refuses it."""
        drawn = (torch.rand(len(number), generator=generator, dtype=torch.float64) * (number + 1)).long()
        return torch.where(number < self.size, number, drawn)

    @torch.no_grad()
    def write(
        self,
        slots: Tensor,
        images: Tensor,
        source: Tensor,
        task: int,
        step: int,
        fields: Mapping[str, Tensor] | None = None,
    ) -> None:
        """Write images (uint8) with their source, task, step and fields to the slots that `admit` chose."""
        slots = slots.to(self.images.device)
        self.images[slots] = images.to(self.images.device)
        self.source[slots] = source.to(self.source.device)
        self.task[slots] = task
        self.step[slots] = step
        for name in self.fields:
            value = (fields or {})[name]
            field = self.get_buffer(f"field_{name}")
            field[slots] = value.to(field)

    def advance(self, count: int) -> None:
        """Count `count` more offers, after they were written."""
        self.offers += count

    def sample(self, count: int, generator: torch.Generator) -> Tensor:
        """Slots of a batch Y, drawn uniformly without replacement."""
        return torch.randperm(self.filled, generator=generator)[:count]

    def read(self, slots: Tensor) -> Tensor:
        return self.images[slots.to(self.images.device)]

    def field(self, name: str, slots: Tensor) -> Tensor:
        return self.get_buffer(f"field_{name}")[slots.to(self.images.device)]

    @torch.no_grad()
    def rewrite(self, name: str, slots: Tensor, values: Tensor) -> None:
        """Other values for a field. Values that are not finite leave the old ones: a bad step must not spoil them."""
        field, slots = self.get_buffer(f"field_{name}"), slots.to(self.images.device)
        finite = values.isfinite().all(-1, keepdim=True)
        field[slots] = torch.where(finite, values.to(field), field[slots])

    def get_extra_state(self) -> Tensor:
        return torch.tensor(self.offers, dtype=torch.int64)

    def set_extra_state(self, state: Tensor) -> None:
        self.offers = int(state)


class Fifo(Memory):
    """The newest presentations."""

    kind: ClassVar[str] = "fifo"

    def choose(self, number: Tensor, generator: torch.Generator) -> Tensor:
        return number % self.size


class MinRed(Memory):
    """Minimum redundancy (Purushwalkam et al. 2022): every offer enters, and redundant images leave.

    Of the two most similar images the older one leaves, once for each excess image, by the field `feature` that
    training writes. An image that was not trained on has no feature yet (zeros) and stays. If fewer images have a
    feature than twice the number that must leave, the oldest leave.
    """

    kind: ClassVar[str] = "minred"
    before: ClassVar[bool] = True
    arrival: Tensor

    def __init__(self, size: int, *others: Any) -> None:
        super().__init__(size, *others)
        self.register_buffer("arrival", torch.full((size,), -1, dtype=torch.int64))

    def admit(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """See `Memory.admit`. The slots are on the device, which decides alone: the host does not wait for it."""
        rows = torch.arange(max(0, count - self.size), count)
        free = torch.arange(self.filled, min(self.filled + len(rows), self.size), device=self.arrival.device)
        return rows, torch.cat([free, self.redundant(len(rows) - len(free))])

    def redundant(self, count: int) -> Tensor:
        """The slots of the images that leave."""
        order = self.arrival[: self.filled].argsort()
        if len(order) < 2 * count:
            return order[:count]
        feature = self.get_buffer("field_feature")[order]
        visited, feature = feature.norm(dim=1) > 0, nn.functional.normalize(feature, dim=1)
        pairs = (visited[:, None] & visited).triu(1)  # rows are older than columns
        similarity = (feature @ feature.T).masked_fill(~pairs, -2)
        leaving = torch.arange(count, device=order.device)
        oldest = leaving.clone()
        for place in leaving:
            older = similarity.argmax() // len(order)
            place.copy_(older)
            similarity.index_fill_(0, older, -2).index_fill_(1, older, -2)
        return order[torch.where(visited.sum() < 2 * count, oldest, leaving)]

    def write(self, slots: Tensor, *others: Any) -> None:
        super().write(slots, *others)
        self.arrival[slots.to(self.arrival.device)] = self.offers + torch.arange(len(slots), device=self.arrival.device)


class Quota(Memory):
    """The same number of images of each task, drawn with replacement at its end. None leaves (CroMo-Mixup)."""

    kind: ClassVar[str] = "quota"
    by_task: ClassVar[bool] = True

    def admit(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        slots = torch.arange(self.filled, min(self.filled + self.size // self.tasks, self.size))
        return torch.randint(count, (len(slots),), generator=generator), slots

    def sample(self, count: int, generator: torch.Generator) -> Tensor:
        """Slots of a batch Y, drawn with replacement."""
        return torch.randint(self.filled, (count,), generator=generator)


class Equal(Memory):
    """The same number of images of each task, as far as it has so many, drawn at its end; those before make room. The
    number of tasks need not be known, unlike with a quota."""

    kind: ClassVar[str] = "equal"
    by_task: ClassVar[bool] = True

    def admit(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        held = self.task[: self.filled].cpu()
        tasks, sizes = held.unique(return_counts=True)
        *old, new = _shares([*sizes.tolist(), count], self.size)
        leaving = list[Tensor]()
        for task, share in zip(tasks.tolist(), old):
            own = (held == task).nonzero().squeeze(1)
            leaving.append(own[torch.randperm(len(own), generator=generator)[share:]])
        slots = torch.cat([*leaving, torch.arange(self.filled, self.size)])[:new]
        return torch.randperm(count, generator=generator)[:new], slots


def _shares(available: Sequence[int], size: int) -> list[int]:
    """Numbers that add up to `size`, as equal as possible; the last ones get what is left over."""
    shares, left = [0] * len(available), size
    for done, place in enumerate(sorted(range(len(available)), key=lambda place: (available[place], place))):
        shares[place] = min(available[place], left // (len(available) - done))
        left -= shares[place]
    return shares


def memory_class(policy: str) -> type[Memory]:
    """Of a value of `--memory-policy`."""
    known = Memory.kinds()
    if policy not in known:
        raise UserError(f"{str(unknown('memory policy', policy, known)).rstrip('.')}, or one of your own, module:name.")
    return known[policy]
