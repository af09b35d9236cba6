"""What a run measures: every number of a checkpoint from features that are embedded once, and --track-overfitting."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from osiris import processes
from osiris.augment.operations import upload
from osiris.data.benchmark import Benchmark
from osiris.evaluation.baselines import Baseline, untrained_baseline
from osiris.evaluation.evaluate import Evaluation, evaluate_features
from osiris.evaluation.features import Features
from osiris.evaluation.fingerprint import fingerprint
from osiris.evaluation.health import embed_two_views
from osiris.evaluation.metrics_file import Scores, write_record
from osiris.evaluation.overfitting import overfitting
from osiris.evaluation.statistics import mean
from osiris.files import cache_directory
from osiris.framework.terms import X
from osiris.models import build_encoder
from osiris.models.normalisation import frozen_statistics
from osiris.training.checkpoint import save_tensors
from osiris.training.config import Config
from osiris.training.engine import Engine, first_task_images
from osiris.training.schedule import Phase


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


def track_overfitting(engine: Engine, phase: Phase, step: int) -> dict[str, Any] | None:
    """A line of the log: the loss on past tasks against the loss on the memory, while training goes on (Fig. 3b).

    It has random streams of its own and changes nothing: the weights of a run are the same bits with and without it.
    None while the memory holds too few images of past tasks.
    """

    @torch.no_grad()
    def embed(indices: Tensor, key: torch.Generator) -> dict[str, Tensor]:
        count, rows = len(indices), processes.share(len(indices))
        images = upload(engine.benchmark.train.images.take(indices[rows]), engine.device)
        with frozen_statistics(engine.networks):
            rep = engine.represent({X: engine.two_views(images, key, rows, count)}, {X: count})
        return {space: rep(X, head=space) for space in engine.networks.heads}

    learning, memory = engine.config.learning, engine.memory
    past = (engine.benchmark.train.task < phase.task).nonzero().squeeze(1)
    source, task = memory.source[: memory.filled].cpu(), memory.task[: memory.filled].cpu()
    key = (engine.config.seed, phase.task, step)
    spaces = overfitting(embed, past, source[task < phase.task], key, learning.batch_size, tau=learning.tau)
    return spaces and {"event": "overfitting", "task": phase.task + 1, "step": step, "spaces": spaces}
