"""R_i, the baseline of forward transfer: the accuracy of untrained encoders, cached on the disk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from osiris.console import Ticker
from osiris.data.base import Benchmark
from osiris.evaluation.config import ProtocolConfig
from osiris.evaluation.evaluate import check_features, rank_test_images, score
from osiris.evaluation.features import embed_benchmark
from osiris.evaluation.fingerprint import digest
from osiris.files import read_json, write_json


def random_baseline(
    make_encoder: Callable[[int], nn.Module],
    benchmark: Benchmark,
    protocol: ProtocolConfig,
    cache_dir: Path | None,
    key: str,
    device: torch.device | str = "cpu",
    batch_size: int = 512,
    ticker: Ticker | None = None,
) -> dict[str, Any] | None:
    """Mean accuracies in percent of `protocol.random_encoders` untrained encoders with seeds 0, 1, ...

    `make_encoder(seed)` builds one (without zero-initialised last norms: those would make every block the identity).
    `key` names encoder and data; each encoder is cached under key, seed and KNN settings, so that more encoders
    or an interrupted call cost only what is missing. None without labels or when no encoder is asked for.

    Returns {"protocols": {name: [R_i]}, "task_level": float, "seeds": [...], "per_encoder": [...]}.
    """
    if not benchmark.labelled or protocol.random_encoders == 0:
        return None
    seeds = list(range(protocol.random_encoders))
    each = []
    for seed in seeds:
        path = None if cache_dir is None else cache_dir / f"random-{_key(key, protocol, seed)}.json"
        if path is None or not path.exists():
            numbers = _evaluate_one(make_encoder(seed), benchmark, protocol, device, batch_size, ticker)
            if path is not None:
                write_json(path, numbers)
        else:
            numbers = read_json(path)
        each.append(numbers)
    return {
        "protocols": {
            name: [_mean(values) for values in zip(*(one["protocols"][name] for one in each), strict=True)]
            for name in protocol.protocols
        },
        "task_level": _mean([one["task_level"] for one in each]),
        "seeds": seeds,
        "per_encoder": each,
    }


def _key(key: str, protocol: ProtocolConfig, seed: int) -> str:
    return digest([key, protocol.k, protocol.temperature, sorted(protocol.protocols), seed])


def _evaluate_one(
    encoder: nn.Module,
    benchmark: Benchmark,
    protocol: ProtocolConfig,
    device: torch.device | str,
    batch_size: int,
    ticker: Ticker | None,
) -> dict[str, Any]:
    features = embed_benchmark(encoder.to(device), benchmark, device, batch_size, ticker)
    check_features(features, benchmark)
    numbers = score(rank_test_images(features, benchmark, protocol), benchmark, protocol)
    return {
        "protocols": {name: value["accuracy"] for name, value in numbers["protocols"].items()},
        "task_level": numbers["task_level"]["accuracy"],
    }


def _mean(values: list[float | None] | tuple[float | None, ...]) -> float | None:
    present = [value for value in values if value is not None]
    return sum(present) / len(present) if present else None
