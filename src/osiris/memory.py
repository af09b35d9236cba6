"""The memory M: a reservoir over presentations (Vitter 1985), uniform storing and uniform retrieval (Sec. 3.2)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn


class Memory(nn.Module):
    """Raw uint8 images with their source id, task and insertion step, and the fields that terms declare (der).

    Offer number n (from 0) takes the next free slot. Once the memory is full, r is drawn from {0..n}, and the image
    replaces slot r if there is such a slot. The draws come from the caller's keyed generator on the CPU, so every
    process makes the same decisions.
    """

    images: Tensor
    source: Tensor
    task: Tensor
    step: Tensor

    def __init__(self, size: int, shape: tuple[int, int, int], fields: Mapping[str, int] | None = None) -> None:
        super().__init__()
        self.size, self.offers = size, 0
        self.register_buffer("images", torch.zeros(size, *shape, dtype=torch.uint8))
        for name in ("source", "task", "step"):
            self.register_buffer(name, torch.full((size,), -1, dtype=torch.int64))
        self.fields = tuple(fields or {})
        for name, width in (fields or {}).items():
            self.register_buffer(f"field_{name}", torch.zeros(size, width))

    @property
    def filled(self) -> int:
        return min(self.offers, self.size)

    def plan(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """(rows, slots): which of the next `count` offers enter, and where. The last offer for a slot wins."""
        number = self.offers + torch.arange(count)
        drawn = (torch.rand(count, generator=generator, dtype=torch.float64) * (number + 1)).long()
        slot = torch.where(number < self.size, number, drawn)
        # Rows grow, so the largest row that hits a slot is the last one.
        winner = torch.full((self.size + 1,), -1).scatter_reduce(
            0, slot.clamp(max=self.size), torch.arange(count), "amax"
        )
        slots = (winner[: self.size] >= 0).nonzero().squeeze(1)
        return winner[slots], slots

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
        """Write images (uint8) with their source, task, step and fields to the planned slots."""
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

    def get_extra_state(self) -> Tensor:
        return torch.tensor(self.offers, dtype=torch.int64)

    def set_extra_state(self, state: Tensor) -> None:
        self.offers = int(state)
