"""References below a trained encoder: untrained encoders (R_i of forward transfer). Results are cached on disk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from osiris.data.benchmark import Benchmark
from osiris.evaluation.config import ProtocolConfig
from osiris.evaluation.evaluate import check_features, rank_test_images, score_protocols, score_task_level
from osiris.evaluation.features import embed_benchmark
from osiris.evaluation.fingerprint import digest
from osiris.evaluation.metrics_file import Percentages, Record, mean_present, read_record, write_record


class Baseline(Record, frozen=True, kw_only=True):
    """Accuracies of an encoder that learned nothing, in percent."""

    protocols: dict[str, Percentages]
    task_level: float | None


def untrained_baseline(
    make_encoder: Callable[[int], nn.Module],
    benchmark: Benchmark,
    protocol: ProtocolConfig,
    cache_dir: Path | None,
    key: str,
    device: torch.device | str = "cpu",
) -> Baseline | None:
    """The mean of `protocol.random_encoders` untrained encoders with seeds 0, 1, ...

    `make_encoder(seed)` builds one (without zero-initialised last norms: those would make every block the identity).
    `key` identifies encoder and data; each encoder is cached under key, seed and KNN settings, so that more encoders
    or an interrupted call cost only what is missing. None without labels or if no encoder is asked for.
    """
    if not benchmark.labelled or protocol.random_encoders == 0:
        return None
    each = []
    for seed in range(protocol.random_encoders):
        name = digest([key, protocol.k, protocol.temperature, sorted(protocol.protocols), seed])
        path = None if cache_dir is None else cache_dir / f"random-{name}.json"
        if path is not None and path.exists():
            each.append(read_record(path, Baseline))
            continue
        each.append(measure(make_encoder(seed), benchmark, protocol, device))
        if path is not None:
            write_record(path, each[-1])
    return Baseline(
        protocols={
            name: [mean_present(values) for values in zip(*(one.protocols[name] for one in each), strict=True)]
            for name in protocol.protocols
        },
        task_level=mean_present([one.task_level for one in each]),
    )


def measure(
    encoder: nn.Module, benchmark: Benchmark, protocol: ProtocolConfig, device: torch.device | str = "cpu"
) -> Baseline:
    features = embed_benchmark(encoder.to(device), benchmark, device)
    check_features(features, benchmark)
    rankings = rank_test_images(features, benchmark, protocol)
    scores = score_protocols(rankings, benchmark, protocol)
    accuracies = {name: one.accuracy for name, one in scores.items()}
    return Baseline(protocols=accuracies, task_level=score_task_level(rankings, benchmark).accuracy)
