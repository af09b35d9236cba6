"""The protocol fingerprint: what two numbers must share to be comparable. Seed and method are not part of it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from osiris.data.benchmark import Benchmark
from osiris.errors import UserError
from osiris.evaluation.config import ProtocolConfig
from osiris.evaluation.scores import Fingerprint


def protocol_fingerprint(
    benchmark: Benchmark, protocol: ProtocolConfig, encoder_description: dict[str, Any]
) -> Fingerprint:
    fields = {
        "benchmark": benchmark.name,
        "train_images": benchmark.train_images,
        "bank_images": len(benchmark.bank),
        "test_images": 0 if benchmark.test is None else len(benchmark.test),
        "image_size": list(benchmark.bank.images.shape[1:]),
        "split": benchmark.checksum,
        "tasks": benchmark.task_count,
        "task_order": json_digest([list(task) for task in benchmark.tasks]),
        "k": protocol.k,
        "temperature": protocol.temperature,
        "random_encoders": protocol.random_encoders,
        "encoder": encoder_description,
    }
    if benchmark.order is not None:
        fields["stream"] = benchmark.order.name
    return Fingerprint(**fields, hash=json_digest(fields))


def json_digest(value: Any) -> str:
    """Twelve hexadecimal digits of a JSON-ready value."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _differing(fingerprints: Sequence[Fingerprint]) -> dict[str, list[Any]]:
    """Field -> its distinct values, for the fields that differ."""
    values: dict[str, list[Any]] = {}
    for name in sorted(set(Fingerprint.__struct_fields__) - {"hash"}):
        each = [getattr(fingerprint, name) for fingerprint in fingerprints]
        distinct = [value for at, value in enumerate(each) if value not in each[:at]]
        if len(distinct) > 1:
            values[name] = distinct
    return values


def require_same(fingerprints: dict[str, Fingerprint]) -> None:
    """Refuse to mix numbers of different protocols; the message names the fields, and one run for each value."""
    lines = []
    for name, values in _differing(list(fingerprints.values())).items():
        cases = []
        for value in values:
            runs = [run for run, one in fingerprints.items() if getattr(one, name) == value]
            more = f" and {len(runs) - 1} more" if len(runs) > 1 else ""
            cases.append(f"{json.dumps(value)} in {runs[0]}{more}")
        lines.append(f"  {name}: {'; '.join(cases)}")
    if lines:
        raise UserError(
            "these runs were measured under different protocols, so one table cannot hold their numbers:\n"
            + "\n".join(lines)
            + "\nCompare runs that agree in these fields, or evaluate them again under one protocol."
        )
