"""Images that are too many to keep decoded: threads decode them while the device works on the batch before.

`prefetch` starts decoding what the loop will take next; `take` waits for it, or decodes at once what nobody announced.
Both give the pixels that the cache would have given.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from osiris.data.decode import Encoded, UndecodableImage, decode
from osiris.data.ingest import worker_count
from osiris.errors import UserError

AHEAD_BYTES = 256 << 20
"""How much decoded memory may wait for `take`: some batches, never the data set."""


class LazyImages:
    """A sequence of images read and decoded on demand, all brought to one square size."""

    def __init__(
        self,
        count: int,
        size: int,
        read: Callable[[Sequence[int]], list[Encoded]],
        origin: Callable[[int], str],
        ahead: int | None = None,
    ) -> None:
        self.count = count
        self.size = size
        self.read = read
        self.origin = origin
        self.ahead = max(1, AHEAD_BYTES // (3 * size * size)) if ahead is None else ahead
        self.pending: OrderedDict[int, Future[np.ndarray]] = OrderedDict()
        self.lock = threading.Lock()
        self.pool = ThreadPoolExecutor(worker_count(), thread_name_prefix="osiris-decode")

    @property
    def shape(self) -> tuple[int, int, int]:
        return 3, self.size, self.size

    def __len__(self) -> int:
        return self.count

    def prefetch(self, indices: Tensor) -> None:
        """Begin to decode these; hints beyond the bound are ignored, forgotten ones make room for newer ones."""
        for index in self._checked(indices)[: self.ahead]:
            with self.lock:
                if index in self.pending:
                    self.pending.move_to_end(index)
                    continue
                while len(self.pending) >= self.ahead:
                    self.pending.popitem(last=False)[1].cancel()
                self.pending[index] = self.pool.submit(self._decode, index)

    def take(self, indices: Tensor) -> Tensor:
        numbers = self._checked(indices)
        futures: dict[int, Future[np.ndarray]] = {}
        with self.lock:
            for index in numbers:
                if index not in futures:
                    announced = self.pending.pop(index, None)
                    futures[index] = self.pool.submit(self._decode, index) if announced is None else announced
        batch = np.empty((len(numbers), 3, self.size, self.size), dtype=np.uint8)
        for position, index in enumerate(numbers):
            batch[position] = futures[index].result()
        return torch.from_numpy(batch)

    def _checked(self, indices: Tensor) -> list[int]:
        numbers = indices.tolist()
        for index in numbers:
            if not 0 <= index < self.count:
                raise IndexError(f"image {index} of {self.count}")
        return numbers

    def _decode(self, index: int) -> np.ndarray:
        try:
            return decode(self.read([index])[0], self.size)
        except UndecodableImage as error:
            raise UserError(
                f"{self.origin(index)} could be decoded when the data was first seen and cannot be now ({error}). "
                "Put the file back, or start again so that it is left out."
            ) from None
