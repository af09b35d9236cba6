"""BatchNorm against GroupNorm (Fig. 2): what the normalisation of the encoder does to A."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

PAPER = ("ft", "cassle", "lump", "d1-only")
"""The methods of Fig. 2."""
NORMS = ("bn", "gn")


@dataclass(frozen=True)
class Bar:
    """Mean and sample deviation (None with one seed) of A over seeds."""

    method: str
    norm: str
    mean: float
    deviation: float | None
    seeds: int


def bars(values: Sequence[tuple[str, str, float]], methods: Sequence[str] | None = None) -> list[Bar]:
    """`values`: (method, `bn` or `gn`, A) of every run. Methods with both norms, in the order given (default: as they
    come), BatchNorm first."""
    names = list(dict.fromkeys(method for method, _, _ in values)) if methods is None else list(methods)
    found = []
    for name in names:
        by_norm = {norm: [a for method, its, a in values if (method, its) == (name, norm)] for norm in NORMS}
        if not all(by_norm.values()):
            continue
        for norm, group in by_norm.items():
            spread = float(np.std(group, ddof=1)) if len(group) > 1 else None
            found.append(Bar(name, norm, float(np.mean(group)), spread, len(group)))
    return found
