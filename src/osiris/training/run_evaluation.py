"""After each task: embed bank and test images once, and write what every number and figure needs."""

from __future__ import annotations

import copy
from pathlib import Path

import torch
from torch import nn

from osiris.console import warn
from osiris.data.benchmark import Benchmark
from osiris.errors import UserError
from osiris.evaluation.baselines import Baseline, untrained_baseline
from osiris.evaluation.evaluate import Evaluation, evaluate_features
from osiris.evaluation.features import Features, embed_benchmark
from osiris.evaluation.fingerprint import fingerprint
from osiris.evaluation.health import embed_two_views
from osiris.evaluation.metrics_file import (
    CurveScores,
    RunMetrics,
    Scores,
    build_metrics,
    mean_present,
    read_record,
    write_record,
)
from osiris.files import cache_directory, file_digest
from osiris.framework.methods import Method
from osiris.models import build_encoder
from osiris.training.checkpoint import load_tensors, save_tensors
from osiris.training.config import Config
from osiris.training.engine import Engine, encoder_weights, first_task_images
from osiris.training.run_directory import RunDirectory


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


def repair_evaluations(engine: Engine, directory: RunDirectory, digests: dict[str, str], possible: bool) -> None:
    """Make damaged or missing evaluations of earlier tasks again from their weights, if their images are there.
    `digests`: path in the run directory -> digest, of the files that the state knows; changed in place."""
    for name in [name for name in digests if name.startswith("evaluation/")]:
        path = directory.path / name
        if path.exists() and file_digest(path) == digests[name]:
            continue
        weights = directory.checkpoints / f"{path.stem}.safetensors"
        known = digests.get(f"checkpoints/{weights.name}")
        if path.stem.startswith("curve") or not possible:
            warn(f"{path} is damaged or missing, and cannot be computed again; metrics.json will not have it.")
            del digests[name]
        elif weights.exists() and file_digest(weights) == known:
            warn(f"{path} is damaged or missing; it is computed again from {weights}.")
            encoder = copy.deepcopy(engine.networks.encoder)
            encoder.load_state_dict(encoder_weights(load_tensors(weights)[0]))
            features = embed_benchmark(encoder, engine.benchmark, engine.device)
            evaluation = evaluate_encoder(engine, encoder, features)
            write_evaluation(directory.evaluation, path.stem, features, evaluation, False)
            digests[name] = file_digest(path)
        else:
            raise UserError(
                f"{path} is damaged or missing, and {weights}, from which it could be computed again, is too. Restore "
                f"one of them from a copy, or remove {directory.path} to start again."
            )


def headline(numbers: Scores) -> dict[str, float | None]:
    """The few numbers that the progress display shows, each with its protocol."""
    if not numbers.labelled:
        return {"effective rank": numbers.health.effective_rank}
    values = {f"accuracy ({name})": mean_present(scores.accuracy) for name, scores in numbers.protocols.items()}
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


def summarise(
    config: Config,
    method: Method,
    benchmark: Benchmark,
    directory: RunDirectory,
    digests: dict[str, str],
    baseline: Baseline | None,
) -> RunMetrics:
    """metrics.json of a finished run, from the evaluations of its tasks and the points of its curve."""
    names = sorted((name for name in digests if name.startswith("evaluation/")), key=lambda name: (len(name), name))
    evaluations = [read_record(directory.path / name, Scores) for name in names if "/task-" in name]
    curve = [read_record(directory.path / name, CurveScores) for name in names if "/curve-" in name]
    identity = fingerprint(benchmark, config.evaluation, config.encoder.description)
    continual, untrained = method.stream == "continual", baseline and baseline.protocols
    seed, preset = config.seed, config.preset
    return build_metrics(method.name, benchmark, seed, evaluations, untrained, identity, continual, curve, preset)


def finished_metrics(directory: RunDirectory, digests: dict[str, str] | None) -> RunMetrics | None:
    """The metrics of a finished run; None if there are none yet, or if they must be made again. `digests`: what the
    state knows, or None if the user has removed the checkpoints of a finished run."""
    if not directory.metrics.exists():
        return None
    if digests is None or digests.get("metrics.json") == file_digest(directory.metrics):
        return read_record(directory.metrics, RunMetrics)
    if "metrics.json" in digests:
        warn(f"{directory.metrics} is damaged or was changed; it is made again from {directory.evaluation}.")
    return None
