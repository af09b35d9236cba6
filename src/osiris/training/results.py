"""The evaluations of a run on disk: computed from its encoders, and again from its weights if they are damaged."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace

import msgspec
import torch
from torch import Tensor, nn

from osiris import processes
from osiris.config import Config
from osiris.console import warn
from osiris.data.benchmark import Benchmark
from osiris.errors import UserError
from osiris.evaluation.baselines import Baseline
from osiris.evaluation.coming import coming_accuracy
from osiris.evaluation.evaluate import Evaluation, evaluate_encoder
from osiris.evaluation.fingerprint import protocol_fingerprint
from osiris.evaluation.scores import Budget, CurveScores, Scores, Setting, write_record
from osiris.files import load_tensors
from osiris.models.joined import JoinedEncoder, join
from osiris.runs.directory import EpisodeFolder, RunDirectory
from osiris.runs.progress import Progress, episode_folder
from osiris.runs.records import RunMetrics, read_metrics, setting_of
from osiris.runs.views import measured, write_metrics
from osiris.training.build import encoder_weights


@dataclass(frozen=True)
class Results:
    """The evaluations of an open run."""

    config: Config
    directory: RunDirectory
    benchmark: Benchmark
    device: torch.device
    baseline: Baseline | None = None
    """Untrained encoders, for T; None with a pretrained one."""

    @property
    def setting(self) -> Setting:
        config, benchmark = self.config, self.benchmark
        fingerprint = protocol_fingerprint(benchmark, config.evaluation, config.encoder.description)
        return setting_of(benchmark, fingerprint, None if self.baseline is None else self.baseline.protocols)

    def evaluate(self, encoder: nn.Module, folder: EpisodeFolder, budget: Budget | None = None) -> Scores | None:
        """Every number of an encoder, to disk. `budget`: what a stream has cost so far."""
        evaluation = self._evaluate(encoder, budget)
        if evaluation is None:
            return None
        evaluation.save(folder.evaluation, self.setting, self.config.evaluation.keep_features)
        return evaluation.numbers

    def evaluate_point(
        self, encoder: nn.Module, folder: EpisodeFolder, where: dict[str, int], budget: Budget | None = None
    ) -> Scores | None:
        """Of a point between two steps, the numbers alone are kept, with `where` it is."""
        evaluation = self._evaluate(encoder, budget)
        if evaluation is None:
            return None
        write_record(folder.point(where["step"]), msgspec.convert(where | evaluation.numbers.plain(), CurveScores))
        return evaluation.numbers

    def _evaluate(self, encoder: nn.Module, budget: Budget | None) -> Evaluation | None:
        evaluation = evaluate_encoder(encoder, self.benchmark, self.config.evaluation, self.device)
        if evaluation is None:
            return None
        self.directory.require_present()
        if budget is None:
            return evaluation
        given = evaluation.features, self.benchmark, self.config.evaluation, self.device
        coming = coming_accuracy(encoder, *given, budget.images)
        return replace(evaluation, numbers=msgspec.structs.replace(evaluation.numbers, budget=budget, coming=coming))

    def repair(self, progress: Progress | None, architecture: nn.Module) -> None:
        """Compute evaluations of the start and of learned episodes that are missing or damaged again, from their
        weights, which are loaded into a copy of `architecture`. Only the first process knows `progress`."""
        directory, broken = self.directory, list[tuple[EpisodeFolder, bool]]()
        if progress is not None and directory.owner:
            old = [episode_folder(directory, progress, task) for task in range(progress.finished)]
            gone = self.benchmark.learned
            checked = [(directory.start, gone > 0)] * progress.start
            checked += [(folder, task < gone) for task, folder in enumerate(old)]
            broken = [(folder, images_gone) for folder, images_gone in checked if not intact(folder)]
        for folder, images_gone in processes.broadcast(broken):
            if images_gone:
                if directory.owner:
                    self._give_up(folder)
                continue
            tensors = processes.broadcast(processes.on_first(self._weights_for, folder))
            assert tensors is not None
            encoder = copy.deepcopy(architecture)
            if "readout.projection" in tensors and not isinstance(encoder, JoinedEncoder):
                numbers = tensors["readout.projection"].shape[1]
                encoder = join(encoder, numbers, self.benchmark.train.images.shape).to(self.device)
            encoder.load_state_dict(tensors)
            self.evaluate(encoder, folder)

    def _give_up(self, folder: EpisodeFolder) -> None:
        folder.evaluation.unlink(missing_ok=True)
        warn(f"{folder.evaluation} is damaged or missing, and its images are gone: metrics.json will not have it.")

    def _weights_for(self, folder: EpisodeFolder) -> dict[str, Tensor]:
        """The encoder from which a damaged evaluation is computed again."""
        try:
            tensors = encoder_weights(folder.weights)
        except UserError as error:
            raise UserError(
                f"{folder.evaluation} is damaged or missing, and cannot be computed again: {error} Restore one of them "
                f"from a copy, or remove {self.directory.path} to start again."
            ) from None
        warn(f"{folder.evaluation} is damaged or missing; it is computed again from {folder.weights}.")
        return tensors


def intact(folder: EpisodeFolder) -> bool:
    """Whether an evaluation is there, with its arrays."""
    try:
        load_tensors(folder.evaluation)
    except UserError:
        return False
    return measured(folder) is not None


def finished_metrics(directory: RunDirectory, progress: Progress | None) -> RunMetrics | None:
    """metrics.json of a run that has no episode left, made again if it is missing or damaged; None if evaluations are
    missing too."""
    if progress is None or progress.coming:
        return None
    folders = [directory.start] * progress.start
    folders += [episode_folder(directory, progress, task) for task in range(progress.finished)]
    broken = [folder for folder in folders if not intact(folder)]
    if not broken:
        return write_metrics(directory, progress)
    if any(folder.weights.exists() for folder in broken):
        return None
    try:
        return read_metrics(directory.metrics)  # it has what cannot be computed any more
    except UserError:
        return None
