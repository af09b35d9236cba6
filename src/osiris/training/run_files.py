"""What a run measures, writes and reads again: its state, the weights and the evaluation of each task, its metrics."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from osiris import processes
from osiris.augment.operations import upload
from osiris.console import warn
from osiris.data.benchmark import Benchmark, content_differences
from osiris.errors import UserError
from osiris.evaluation.baselines import Baseline, untrained_baseline
from osiris.evaluation.evaluate import Evaluation, evaluate_features
from osiris.evaluation.features import Features, embed_benchmark
from osiris.evaluation.fingerprint import fingerprint
from osiris.evaluation.health import embed_two_views
from osiris.evaluation.metrics_file import CurveScores, RunMetrics, Scores, build_metrics, read_record, write_record
from osiris.evaluation.overfitting import overfitting
from osiris.evaluation.statistics import mean
from osiris.files import cache_directory, file_digest, load_tensors, write_json
from osiris.framework.terms import X
from osiris.models.encoder import build_encoder
from osiris.models.external import architecture_of
from osiris.models.normalisation import frozen_statistics
from osiris.training import checkpoint
from osiris.training.config import Config, to_dict
from osiris.training.engine import Engine, encoder_weights, first_task_images
from osiris.training.run_directory import RunDirectory, differences, settings
from osiris.training.schedule import Phase


@dataclass
class Position:
    """Where a run is: a task, a stage of it, and the steps done in it."""

    task: int = 0
    stage: str = "train"
    """train, curve (an evaluation between two steps), end, evaluate"""
    step: int = 0
    bad_steps: int = 0
    seconds: float = 0.0
    """Time so far, over all starts."""


class RunFiles:
    """The files of one run. Its state holds a digest of each file that enters the metrics."""

    def __init__(self, directory: RunDirectory, engine: Engine) -> None:
        self.directory, self.engine = directory, engine
        self.architecture = architecture_of(engine.config.encoder.encoder, engine.networks.encoder)
        self.digests: dict[str, str] = {}
        """By path in the run directory."""

    @contextmanager
    def _writing(self, path: Path) -> Iterator[Path]:
        """A file that is written inside; its digest is recorded."""
        self.directory.require_present()
        yield path
        self.digests[path.relative_to(self.directory.path).as_posix()] = file_digest(path)

    def write_state(self, position: Position, log_position: int) -> None:
        self.directory.require_present()
        benchmark = self.engine.benchmark
        state = {
            "engine": self.engine.state(),
            "position": vars(position),
            "log": log_position,
            "run": settings(self.engine.config),
            "data": list(benchmark.contents),
            "files": self.digests,
            "normalisation": [list(benchmark.mean), list(benchmark.std)],
            "architecture": self.architecture,
        }
        checkpoint.save_state(self.directory.checkpoints, state)

    def restore(self, state: dict[str, Any], growing: bool) -> Position:
        """Continue from a state, if it belongs to this run and this data; `growing`: the data has one more task."""
        other_run = differences(state["run"], settings(self.engine.config))
        if other_run:
            raise UserError(
                f"the checkpoint in {self.directory.checkpoints} belongs to another run: {other_run}. Put the right "
                "one back, or remove latest.pt and previous.pt to start again."
            )
        contents = list(self.engine.benchmark.contents)
        if not growing and len(state["data"]) > len(contents) and state["data"][: len(contents)] == contents:
            added, place = ", ".join(content["name"] for content in state["data"][len(contents) :]), self.directory.path
            raise UserError(f"{place} has more tasks since: {added}; {next_episode(place, state)}.")
        other_data = content_differences(state["data"], contents[: len(state["data"])] if growing else contents)
        if other_data:
            raise UserError(
                f"the images of {self.engine.benchmark.name} have changed since this run was saved: "
                f"{'; '.join(other_data[:4])}. Restore them to continue, or start a new run with another --out."
            )
        self.engine.restore(state["engine"])
        self.digests = dict(state["files"])
        return Position(**state["position"])

    def write_weights(self, task: int) -> None:
        """f, g and h after a task."""
        config, benchmark = self.engine.config, self.engine.benchmark
        metadata = {
            "encoder": to_dict(config.encoder),
            "architecture": self.architecture,
            "projector": to_dict(config.projector),
            "mean": benchmark.mean,
            "std": benchmark.std,
            "image_size": benchmark.train.images.shape[1],
            "task": task,
        }
        with self._writing(self.directory.weights(task)) as path:
            checkpoint.save_tensors(path, self.engine.task_tensors(), metadata)

    def write_evaluation(self, name: str, where: dict[str, int], features: Features, evaluation: Evaluation) -> None:
        """After a task, or between two steps (curve-...), where the numbers alone are kept."""
        with self._writing(self.directory.evaluation / f"{name}.json") as path:
            if name.startswith("curve"):
                write_json(path, where | evaluation.numbers.plain())
            else:
                keep = self.engine.config.evaluation.keep_features
                write_evaluation(self.directory.evaluation, name, features, evaluation, keep)

    def repair_evaluations(self, possible: bool) -> None:
        """Compute damaged or missing evaluations of earlier tasks again from their weights; `possible`: the images of
        these tasks are available."""
        for name in [name for name in self.digests if name.startswith("evaluation/")]:
            path = self.directory.path / name
            if path.exists() and file_digest(path) == self.digests[name]:
                continue
            weights = self.directory.checkpoints / f"{path.stem}.safetensors"
            if path.stem.startswith("curve") or not possible:
                warn(f"{path} is damaged or missing, and cannot be computed again; metrics.json will not have it.")
                del self.digests[name]
            elif weights.exists() and file_digest(weights) == self.digests.get(f"checkpoints/{weights.name}"):
                warn(f"{path} is damaged or missing; it is computed again from {weights}.")
                engine, encoder = self.engine, copy.deepcopy(self.engine.networks.encoder)
                encoder.load_state_dict(encoder_weights(load_tensors(weights)[0]))
                features = embed_benchmark(encoder, engine.benchmark, engine.device)
                evaluation = evaluate_encoder(engine, encoder, features)
                with self._writing(path):
                    write_evaluation(self.directory.evaluation, path.stem, features, evaluation, False)
            else:
                raise UserError(
                    f"{path} is damaged or missing, and {weights}, from which it could be computed again, is too. "
                    f"Restore one of them from a copy, or remove {self.directory.path} to start again."
                )

    def write_metrics(self, baseline: Baseline | None) -> RunMetrics:
        """metrics.json, from the evaluations of all tasks and the points of the curve."""
        config, method, benchmark = self.engine.config, self.engine.method, self.engine.benchmark
        names = sorted((name for name in self.digests if name.startswith("evaluation/")), key=lambda n: (len(n), n))
        folder = self.directory.path
        metrics = build_metrics(
            method.name,
            benchmark,
            config.seed,
            [read_record(folder / name, Scores) for name in names if "/task-" in name],
            baseline and baseline.protocols,
            fingerprint(benchmark, config.evaluation, config.encoder.description),
            method.stream == "continual",
            [read_record(folder / name, CurveScores) for name in names if "/curve-" in name],
            config.preset,
        )
        with self._writing(self.directory.metrics) as path:
            write_record(path, metrics)
        return metrics


def finished_metrics(directory: RunDirectory, digests: dict[str, str] | None) -> RunMetrics | None:
    """The metrics of a finished run; None if there are none yet, or if they must be computed again. `digests`: those of
    the state, or None if the user has removed the checkpoints of a finished run."""
    if not directory.metrics.exists():
        return None
    if digests is None or digests.get("metrics.json") == file_digest(directory.metrics):
        return read_record(directory.metrics, RunMetrics)
    if "metrics.json" in digests:
        warn(f"{directory.metrics} is damaged or was changed; it is computed again from {directory.evaluation}.")
    return None


def next_episode(out: Path, state: dict[str, Any] | None) -> str:
    """The command that continues a run which grows by one folder at a time."""
    command = f"continue with osiris observe {out} FOLDER"
    if state is None or state["position"]["task"] == len(state["data"]):
        return command
    return f"{command}, where FOLDER holds the images of {state['data'][state['position']['task']]['name']}"


def evaluate_encoder(engine: Engine, encoder: nn.Module, features: Features) -> Evaluation:
    """Every number of a checkpoint. One process is enough for this: the embedding was the work."""
    views = embed_two_views(encoder, engine.benchmark, engine.device)
    return evaluate_features(features, engine.benchmark, engine.config.evaluation, views)


def write_evaluation(folder: Path, name: str, features: Features, evaluation: Evaluation, keep: bool) -> None:
    """NAME.json is written last: if it exists, the other files do too."""
    if keep:
        features.save(folder / f"{name}-features.safetensors")
    checkpoint.save_tensors(folder / f"{name}.safetensors", evaluation.arrays)
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
