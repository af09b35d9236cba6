"""Sums over rows: their number, their sum, and the sum of their outer products.

Sums do not know an order. Those of two episodes, processes or machines can be added, and what was added can be taken
out again; the results agree up to the rounding of float64.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from osiris.errors import UserError

ROWS = 4096
"""Rows whose outer products are summed at a time: bounds the memory of their copy in float64."""


@dataclass(frozen=True)
class Moments:
    """The sums of n rows x [n, D]; a value: every operation returns another one."""

    count: int
    total: Tensor
    """float64 [D]: the sum of x."""
    outer: Tensor
    """float64 [D, D]: the sum of x x^T."""

    @staticmethod
    def zero(dimension: int) -> Moments:
        double = torch.float64
        return Moments(0, torch.zeros(dimension, dtype=double), torch.zeros(dimension, dimension, dtype=double))

    @staticmethod
    def of(rows: Tensor) -> Moments:
        """Of rows [n, D] of any precision."""
        moments = Moments.zero(rows.shape[1])
        for part in rows.split(ROWS):
            part = part.to("cpu", torch.float64)
            moments.total.add_(part.sum(0))
            moments.outer.addmm_(part.T, part)
        return Moments(len(rows), moments.total, moments.outer)

    @property
    def dimension(self) -> int:
        return len(self.total)

    def __add__(self, other: Moments) -> Moments:
        return Moments(self.count + other.count, self.total + other.total, self.outer + other.outer)

    def __sub__(self, other: Moments) -> Moments:
        """What is left without `other`, which is part of these sums."""
        if other.count > self.count:
            raise UserError(f"{other.count} rows cannot be taken out of sums over {self.count}.")
        return Moments(self.count - other.count, self.total - other.total, self.outer - other.outer)

    @property
    def mean(self) -> Tensor:
        """float64 [D]"""
        return self.total / self.count

    @property
    def second(self) -> Tensor:
        """float64 [D]: the mean square of each number."""
        return self.outer.diagonal() / self.count

    @property
    def covariance(self) -> Tensor:
        """float64 [D, D], divided by n."""
        mean = self.mean
        return self.outer / self.count - torch.outer(mean, mean)

    def tensors(self) -> dict[str, Tensor]:
        """For a safetensors file. Of the symmetric matrix the upper half is enough."""
        rows, columns = torch.triu_indices(self.dimension, self.dimension)
        return {"count": torch.tensor(self.count), "total": self.total, "outer": self.outer[rows, columns]}

    @staticmethod
    def from_tensors(tensors: Mapping[str, Tensor]) -> Moments:
        """The inverse of `tensors`; raises ValueError for what cannot be sums."""
        try:
            count, total, half = int(tensors["count"]), tensors["total"], tensors["outer"]
        except (KeyError, RuntimeError, ValueError, TypeError) as error:
            raise ValueError(f"they are no sums ({error})") from None
        dimension = len(total) if total.ndim == 1 else 0
        if (
            count < 0
            or half.shape != (dimension * (dimension + 1) // 2,)
            or {total.dtype, half.dtype} != {torch.float64}
        ):
            raise ValueError("count, total and outer do not fit together")
        if not (total.isfinite().all() and half.isfinite().all()):
            raise ValueError("some of them are not finite")
        rows, columns = torch.triu_indices(dimension, dimension)
        outer = torch.zeros(dimension, dimension, dtype=torch.float64)
        outer[rows, columns] = half
        outer[columns, rows] = half
        if bool((outer.diagonal() < 0).any()) or (count == 0 and bool(outer.any())):
            raise ValueError("the sum of squares is negative")
        return Moments(count, total, outer)
