"""The evaluations of a run on disk: computed from its encoders, again from its weights if damaged, and metrics.json."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from osiris import processes
from osiris.config import Config
from osiris.console import warn
from osiris.data.benchmark import Benchmark
from osiris.errors import UserError
from osiris.evaluation.config import ProtocolConfig
from osiris.evaluation.evaluate import compare_arrays, evaluate_encoder
from osiris.evaluation.fingerprint import protocol_fingerprint
from osiris.evaluation.scores import Comparison, CurveScores, Percentages, Scores, read_record, write_record
from osiris.files import load_tensors, write_json
from osiris.framework.methods import Method
from osiris.runs.directory import CURVE, START, RunDirectory, task_name
from osiris.runs.records import RunMetrics, build_metrics
from osiris.runs.state import State
from osiris.training.build import encoder_weights


@dataclass(frozen=True)
class Results:
    """The evaluations of an open run."""

    config: Config
    directory: RunDirectory
    benchmark: Benchmark
    device: torch.device

    def evaluate(self, encoder: nn.Module, name: str, where: dict[str, int] | None = None) -> Scores | None:
        """Every number of an encoder, to disk. Of a point between two steps (curve-...), the numbers alone are kept,
        with `where` it is."""
        protocol, folder = self.config.evaluation, self.directory.evaluation
        evaluation = evaluate_encoder(encoder, self.benchmark, protocol, self.device)
        if evaluation is None:
            return None
        self.directory.require_present()
        if name.startswith(CURVE):
            write_json(folder / f"{name}.json", (where or {}) | evaluation.numbers.plain())
        else:
            evaluation.save(folder, name, protocol.keep_features)
        return evaluation.numbers

    def repair(self, learned: int, architecture: nn.Module) -> None:
        """Compute evaluations of the start and of learned episodes that are missing or damaged again, from their
        weights, which are loaded into a copy of `architecture`."""
        directory, needed = self.directory, _evaluated(self.directory, learned)
        gone = {START, *map(task_name, range(self.benchmark.learned))} if self.benchmark.learned else set()
        alone = {name for name, weights in needed.items() if name in gone or not weights.exists()}
        if directory.owner:
            _remove_damaged_arrays(directory, alone)
        broken = [name for name in needed if _broken(directory, name, numbers_only=name in alone)]
        for name in processes.broadcast(broken):
            path, weights = directory.evaluation / f"{name}.json", needed[name]
            if name in gone:
                if directory.owner:
                    warn(f"{path} is damaged or missing, and its images are gone: metrics.json will not have it.")
                continue
            tensors = processes.broadcast(processes.on_first(self._weights_for, path, weights))
            assert tensors is not None
            encoder = copy.deepcopy(architecture)
            encoder.load_state_dict(tensors)
            self.evaluate(encoder, name)

    def _weights_for(self, evaluation: Path, weights: Path) -> dict[str, Tensor]:
        """The encoder from which a damaged evaluation is computed again."""
        try:
            tensors = encoder_weights(weights)
        except UserError as error:
            raise UserError(
                f"{evaluation} is damaged or missing, and cannot be computed again: {error} Restore one of them from a "
                f"copy, or remove {self.directory.path} to start again."
            ) from None
        warn(f"{evaluation} is damaged or missing; it is computed again from {weights}.")
        return tensors

    def write_metrics(self, method: Method, tasks: int, untrained: dict[str, Percentages] | None) -> RunMetrics:
        """metrics.json of a run over `tasks` episodes. `untrained`: accuracies of untrained encoders, by protocol; with
        a pretrained encoder, those of the start take their place."""
        config, benchmark, directory = self.config, self.benchmark, self.directory
        scores = [_read(directory.scores(task)) for task in range(tasks)]
        curve = {path: _read(path, CurveScores) for path in directory.curve_scores()}
        for path in (path for path, scores_there in curve.items() if scores_there is None):
            warn(f"{path} is damaged, and the encoder between two steps is gone: metrics.json will not have it.")
        start, last = _read(directory.start_scores), task_name(tasks - 1)
        if start is not None:
            untrained = {name: one.accuracy for name, one in start.protocols.items()}
        metrics = build_metrics(
            method.name,
            benchmark,
            config.seed,
            scores,
            untrained,
            protocol_fingerprint(benchmark, config.evaluation, config.encoder.description),
            method.stream == "continual",
            [one for one in curve.values() if one is not None],
            config.preset,
            start,
            {} if start is None else against_start(directory.evaluation, last, benchmark, config.evaluation),
        )
        directory.require_present()
        if _read(directory.metrics, RunMetrics) != metrics:
            write_record(directory.metrics, metrics)
        if metrics.harm:
            warn(metrics.harm)
        return metrics


def finished_metrics(directory: RunDirectory, state: State | None) -> RunMetrics | None:
    """metrics.json, if no episode is left and if it agrees with the evaluations on disk."""
    if not directory.metrics.exists() or (state is not None and state.unfinished is not None):
        return None
    if state is None:  # the user has removed the checkpoints of a finished run
        return read_record(directory.metrics, RunMetrics)
    try:
        metrics = read_record(directory.metrics, RunMetrics)
    except UserError as error:
        warn(f"{error} It is computed again from {directory.evaluation}.")
        return None
    learned = state.position.task
    if any(weights.exists() and _broken(directory, name) for name, weights in _evaluated(directory, learned).items()):
        return None
    found = [_read(directory.scores(task)) for task in range(learned)]
    kept = metrics.evaluated if len(metrics.evaluations) + len(metrics.lost) == len(found) else {}
    stale = [task for task, scores in enumerate(found) if scores is not None and scores != kept.get(task)]
    return None if stale else metrics


def _evaluated(directory: RunDirectory, learned: int) -> dict[str, Path]:
    """Name -> weights of what is evaluated: the start, if the run has one, and the learned episodes."""
    start = {START: directory.start_weights} if directory.start_weights.exists() else {}
    return start | {task_name(task): directory.weights(task) for task in range(learned)}


def _broken(directory: RunDirectory, name: str, numbers_only: bool = False) -> bool:
    """Whether an evaluation is missing or damaged: its numbers or its arrays."""
    return _read(directory.evaluation / f"{name}.json") is None or not (
        numbers_only or _intact(directory.evaluation / f"{name}.safetensors")
    )


def _intact(arrays: Path) -> bool:
    try:
        load_tensors(arrays)
    except UserError:
        return False
    return True


def _remove_damaged_arrays(directory: RunDirectory, names: Iterable[str]) -> None:
    """Of evaluations that cannot be computed again: figures do without arrays, but not with damaged ones."""
    for path in (directory.evaluation / f"{name}.safetensors" for name in names):
        if path.exists() and not _intact(path):
            warn(f"{path} is damaged and cannot be computed again: it is removed.")
            path.unlink()


def _read(path: Path, kind: type[Any] = Scores) -> Any:
    """A record of the run directory; None if it is missing or damaged."""
    try:
        return read_record(path, kind)
    except UserError:
        return None


def against_start(
    folder: Path, last: str, benchmark: Benchmark, protocol: ProtocolConfig
) -> dict[str, tuple[Comparison | None, list[Comparison | None]]]:
    """Protocol -> (overall, by task): the predictions of the last evaluation in a folder against those of the start."""
    files = [folder / f"{name}.safetensors" for name in (START, last)]
    if not benchmark.labelled or not all(file.exists() for file in files):
        return {}
    before, after = (load_tensors(file)[0] for file in files)
    return {name: compare_arrays(before, after, name, benchmark.task_count) for name in protocol.protocols}
