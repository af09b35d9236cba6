"""Matrices of which the fast suite runs one case per code path."""

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def quick(chosen: Collection[Any], values: Iterable[Any]) -> list[Any]:
    """All `values` as parameters of a test; those that are not `chosen` are slow."""
    values = list(values)
    assert set(chosen) <= set(values), "a case that does not exist"
    return [
        value
        if value in chosen
        else pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.slow)
        for value in values
    ]
