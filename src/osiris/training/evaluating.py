"""After a task: freeze, embed bank and test once, and write what every number and figure needs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from osiris import processes
from osiris.console import warn
from osiris.data.benchmark import Benchmark
from osiris.evaluation.baselines import Baseline, untrained_baseline
from osiris.evaluation.evaluate import Evaluation, evaluate_features
from osiris.evaluation.features import Features, embed_benchmark, join_shards
from osiris.evaluation.fingerprint import fingerprint
from osiris.evaluation.health import collapsed, embed_two_views
from osiris.evaluation.metrics_file import (
    CurveScores,
    RunMetrics,
    Scores,
    build_metrics,
    mean_present,
    read_record,
    write_record,
)
from osiris.files import cache_directory
from osiris.models import build_encoder
from osiris.training.checkpoint import save_tensors
from osiris.training.config import Config, to_dict
from osiris.training.engine import Engine, first_task_images


def embed_sharded(engine: Engine) -> Features:
    """Each process embeds its share; all of them get the whole."""
    world = processes.world_size()
    encoder, benchmark, device = engine.networks.encoder, engine.benchmark, engine.device
    if world == 1:
        return embed_benchmark(encoder, benchmark, device)
    part = embed_benchmark(encoder, benchmark, device, shard=(processes.rank(), world))

    def whole(local: torch.Tensor, total: int) -> torch.Tensor:
        sizes = [len(range(process, total, world)) for process in range(world)]
        padded = local.new_zeros(max(sizes), local.shape[1])
        padded[: len(local)] = local
        parts = [torch.empty_like(padded) for _ in range(world)]
        dist.all_gather(parts, padded)
        return join_shards([item[:size] for item, size in zip(parts, sizes)])

    test = None if part.test is None or benchmark.test is None else whole(part.test, len(benchmark.test))
    return Features(whole(part.bank, len(benchmark.bank)), test)


def evaluate_whole(engine: Engine, features: Features) -> Evaluation:
    """Every number of the checkpoint; one process is enough, the embedding was the work."""
    views = embed_two_views(engine.networks.encoder, engine.benchmark, engine.device)
    return evaluate_features(features, engine.benchmark, engine.config.evaluation, views)


def write_evaluation(folder: Path, name: str, features: Features, evaluation: Evaluation, keep: bool) -> None:
    """NAME.safetensors first, then NAME.json: where the JSON is, the rest is."""
    if keep:
        features.save(folder / f"{name}-features.safetensors")
    save_tensors(folder / f"{name}.safetensors", evaluation.arrays)
    write_record(folder / f"{name}.json", evaluation.numbers)


def shown(numbers: Scores) -> dict[str, float | None]:
    """The few numbers that the live view shows, each with its protocol."""
    if not numbers.labelled:
        return {"effective rank": numbers.health.effective_rank}
    values = {f"accuracy ({name})": mean_present(scores.accuracy) for name, scores in numbers.protocols.items()}
    return values | {"task level": numbers.task_level.accuracy}


def warn_of_collapse(numbers: Scores) -> None:
    message = collapsed(numbers.health)
    if message:
        warn(message)


def encoder_description(config: Config) -> dict[str, Any]:
    return to_dict(config.encoder)


def baseline_of(config: Config, benchmark: Benchmark, device: torch.device) -> Baseline | None:
    """R_i of untrained encoders, without zero-initialised last norms (those would make every block the identity)."""
    identity = fingerprint(benchmark, config.evaluation, encoder_description(config)).hash
    images = first_task_images(benchmark, config.encoder)
    return untrained_baseline(
        lambda seed: build_encoder(config.encoder, seed, zero_init_last=False, images=images),
        benchmark,
        config.evaluation,
        cache_directory() / "baselines",
        f"{identity}-threads{torch.get_num_threads()}",
        device,
    )


def summarise(
    config: Config, method: str, stream: str, benchmark: Benchmark, folder: Path, baseline: Baseline | None
) -> RunMetrics:
    """metrics.json of a finished run, from the files that its tasks left."""
    continual = stream == "continual"
    count = benchmark.task_count if continual else 1
    evaluations = [read_record(folder / f"task-{task + 1:02d}.json", Scores) for task in range(count)]
    identity = fingerprint(benchmark, config.evaluation, encoder_description(config))
    curve = [read_record(path, CurveScores) for path in sorted(folder.glob("curve-*.json"))]
    untrained = baseline and baseline.protocols
    seed, preset = config.seed, config.preset
    return build_metrics(method, benchmark, seed, evaluations, untrained, identity, continual, curve, preset)
