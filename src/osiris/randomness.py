"""Randomness as a function: nothing draws from a global generator.

Every random decision is drawn from a generator keyed by (seed, purpose, indices such as task and step). Therefore the
first task is bit-equal across methods, a resumed run draws what the uninterrupted one drew, two processes draw what
one would draw (each draws for the global batch and keeps its rows), and evaluation or tracking has no side effect.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def derive_seed(seed: int, purpose: str, *indices: int) -> int:
    """A 63-bit number that depends on every part of the key."""
    key = "/".join([str(int(seed)), purpose, *(str(int(index)) for index in indices)])
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "little") >> 1


def generator(seed: int, purpose: str, *indices: int) -> torch.Generator:
    """A fresh CPU generator for this key. Draw on the CPU, move the few numbers to the device."""
    return torch.Generator().manual_seed(derive_seed(seed, purpose, *indices))


@contextmanager
def scoped(seed: int, purpose: str, *indices: int) -> Iterator[None]:
    """Seed the global CPU generator for code that draws from it (layer initialisation), and restore it afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(seed, purpose, *indices))
        yield
