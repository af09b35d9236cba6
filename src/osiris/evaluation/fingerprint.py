"""The protocol fingerprint: what two numbers must share to be comparable. Seeds and methods are no part of it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from osiris.errors import UserError
from osiris.evaluation.config import ProtocolConfig

if TYPE_CHECKING:
    from osiris.data.base import Benchmark  # imports torch, which a table of finished runs does not need


def fingerprint(benchmark: Benchmark, protocol: ProtocolConfig, encoder_description: dict[str, Any]) -> dict[str, Any]:
    """The fields, and `hash`, twelve hexadecimal digits of all of them."""
    fields = {
        "benchmark": benchmark.name,
        "train_images": len(benchmark.train),
        "bank_images": len(benchmark.bank),
        "test_images": 0 if benchmark.test is None else len(benchmark.test),
        "image_size": list(benchmark.bank.images.shape[1:]),
        "split": benchmark.checksum,
        "tasks": benchmark.task_count,
        "task_order": digest([list(task) for task in benchmark.tasks]),
        "k": protocol.k,
        "temperature": protocol.temperature,
        "random_encoders": protocol.random_encoders,
        "encoder": encoder_description,
    }
    return {**fields, "hash": digest(fields)}


def digest(value: Any) -> str:
    """Twelve hexadecimal digits of a JSON-ready value."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def differences(fingerprints: Sequence[dict[str, Any]]) -> dict[str, list[Any]]:
    """Field -> its distinct values, for the fields that differ."""
    names = sorted({name for one in fingerprints for name in one} - {"hash"})
    found: dict[str, list[Any]] = {}
    for name in names:
        values: list[Any] = []
        for one in fingerprints:
            if one.get(name) not in values:
                values.append(one.get(name))
        if len(values) > 1:
            found[name] = values
    return found


def require_same(fingerprints: dict[str, dict[str, Any]]) -> None:
    """Refuse to mix numbers of different protocols; the message names the fields and one run for each value."""
    different = differences(list(fingerprints.values()))
    if not different:
        return
    lines = []
    for name, values in different.items():
        cases = []
        for value in values:
            runs = [run for run, one in fingerprints.items() if one.get(name) == value]
            more = f" and {len(runs) - 1} more" if len(runs) > 1 else ""
            cases.append(f"{json.dumps(value)} in {runs[0]}{more}")
        lines.append(f"  {name}: {'; '.join(cases)}")
    raise UserError(
        "these runs were measured under different protocols, so their numbers cannot stand in one table:\n"
        + "\n".join(lines)
        + "\nCompare runs that agree in these fields, or evaluate them again under one protocol."
    )
