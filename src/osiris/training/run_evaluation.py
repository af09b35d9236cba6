"""The evaluation of one checkpoint: every number from features that are embedded once."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from osiris.data.benchmark import Benchmark
from osiris.evaluation.baselines import Baseline, untrained_baseline
from osiris.evaluation.evaluate import Evaluation, evaluate_features
from osiris.evaluation.features import Features
from osiris.evaluation.fingerprint import fingerprint
from osiris.evaluation.health import embed_two_views
from osiris.evaluation.metrics_file import Scores, write_record
from osiris.evaluation.statistics import mean
from osiris.files import cache_directory
from osiris.models import build_encoder
from osiris.training.checkpoint import save_tensors
from osiris.training.config import Config
from osiris.training.engine import Engine, first_task_images


def evaluate_encoder(engine: Engine, encoder: nn.Module, features: Features) -> Evaluation:
    """Every number of a checkpoint. One process is enough for this: the embedding was the work."""
    views = embed_two_views(encoder, engine.benchmark, engine.device)
    return evaluate_features(features, engine.benchmark, engine.config.evaluation, views)


def write_evaluation(folder: Path, name: str, features: Features, evaluation: Evaluation, keep: bool) -> None:
    """NAME.json is written last: if it exists, the other files do too."""
    if keep:
        features.save(folder / f"{name}-features.safetensors")
    save_tensors(folder / f"{name}.safetensors", evaluation.arrays)
    write_record(folder / f"{name}.json", evaluation.numbers)


def headline(numbers: Scores) -> dict[str, float | None]:
    """The few numbers that the progress display shows, each with its protocol."""
    if not numbers.labelled:
        return {"effective rank": numbers.health.effective_rank}
    values = {f"accuracy ({name})": mean(scores.accuracy) for name, scores in numbers.protocols.items()}
    return values | {"task level": numbers.task_level.accuracy}


def baseline_of(config: Config, benchmark: Benchmark, device: torch.device, folder: Path) -> Baseline | None:
    """R_i of untrained encoders, without zero-initialised last norms, which would make every block the identity.

    Of a pretrained encoder, or a module with weights of its own: R_i of the encoder that the run starts from. It is
    cached in `folder`, not for all runs, because its name does not tell whether its weights have changed.
    """
    identity = fingerprint(benchmark, config.evaluation, config.encoder.description).hash
    images = first_task_images(benchmark, config.encoder)
    return untrained_baseline(
        lambda seed: build_encoder(config.encoder, seed, zero_init_last=False, images=images),
        benchmark,
        config.evaluation,
        cache_directory() / "baselines" if config.encoder.encoder is None else folder,
        f"{identity}-threads{torch.get_num_threads()}",
        device,
    )
