"""metrics.json and observations.json: views of the files of the episodes, written after progress.json. One that is
missing, damaged or older than progress.json is made again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from osiris.console import warn
from osiris.errors import UserError
from osiris.evaluation.evaluate import compare_arrays
from osiris.evaluation.scores import (
    Comparison,
    CurveScores,
    Measured,
    ReferenceScores,
    read_measured,
    read_record,
    write_record,
)
from osiris.files import Missing, flat, load_tensors
from osiris.runs.directory import EpisodeFolder, RunDirectory, read_config
from osiris.runs.progress import Progress, episode_folder
from osiris.runs.records import Observation, Observations, RunMetrics, build_metrics, read_metrics
from osiris.runs.untrusted import read_received


def recorded_method(directory: RunDirectory) -> tuple[str, str]:
    """(name, what it learns) of the method of a run. One that was composed in Python is not known by its name here."""
    record = flat(read_received(directory.config, dict))
    name = record.get("composition.name", record.get("config.method.method"))
    return str(name), str(record.get("composition.learns", "continual"))


def measured(folder: EpisodeFolder) -> Measured | None:
    """The evaluation of an episode; None if it is missing or damaged."""
    try:
        return read_measured(folder.evaluation)
    except UserError:
        return None


def make_metrics(directory: RunDirectory, progress: Progress) -> RunMetrics | None:
    """Of the evaluations on disk; None if that of the last episode is missing or damaged, or one that a run with labels
    needs."""
    folders = [episode_folder(directory, progress, task) for task in range(progress.finished)]
    found = [measured(folder) for folder in folders]
    if not found or found[-1] is None or found[-1].setting is None:
        return None
    (name, learns), config = recorded_method(directory), read_config(directory.path)
    start = measured(directory.start) if progress.start else None
    if progress.start and start is None:
        return None
    last, setting, compared = found[-1], found[-1].setting, {}
    if setting.labelled and None in found:
        return None
    try:
        if start is not None and setting.labelled:
            compared = against_start(directory.start, folders[-1], last, len(setting.task_names))
        return build_metrics(
            name,
            setting,
            config.seed,
            [None if one is None else one.numbers for one in found],
            learns == "continual" and setting.fingerprint.stream is None,
            _curve(folders),
            config.preset,
            None if start is None else start.numbers,
            compared,
        )
    except (AssertionError, IndexError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(
            f"the evaluations in {directory.episodes} do not fit together ({type(error).__name__}: {error})."
        ) from None


def _curve(folders: list[EpisodeFolder]) -> list[CurveScores]:
    curve = []
    for path in (path for folder in folders for path in folder.points):
        try:
            curve.append(read_record(path, CurveScores))
        except UserError:
            warn(f"{path} is damaged, and the encoder between two steps is gone: metrics.json will not have it.")
    return curve


def against_start(
    start: EpisodeFolder, last: EpisodeFolder, evaluation: Measured, tasks: int
) -> Mapping[str, tuple[Comparison | None, list[Comparison | None]]]:
    """Protocol -> (overall, by task): the predictions of the last evaluation against those of the start."""
    before, after = (load_tensors(folder.evaluation)[0] for folder in (start, last))
    return {name: compare_arrays(before, after, name, tasks) for name in evaluation.numbers.protocols}


def current_metrics(directory: RunDirectory, progress: Progress | None) -> RunMetrics:
    """metrics.json, or what it should be if it is older than progress.json or damaged. A run that was copied without
    progress.json has metrics.json alone."""
    try:
        metrics = read_metrics(directory.metrics)
        if progress is None or len(metrics.evaluations) + len(metrics.lost) == progress.finished:
            return metrics
    except Missing:
        if progress is None or progress.coming or not progress.finished:
            raise
        metrics = None
    except UserError:
        if progress is None:
            raise
        metrics = None
    again = make_metrics(directory, progress) if progress.finished else None
    if again is not None:
        return again
    if metrics is None:
        return read_metrics(directory.metrics)  # says what is wrong with it
    raise UserError(
        f"{directory.metrics} is not of the {progress.finished} episodes in {directory.progress}, and cannot be made "
        "again, because evaluations are missing. Give the images of the last episode again."
    )


def write_metrics(directory: RunDirectory, progress: Progress) -> RunMetrics | None:
    """metrics.json, if it differs from what is there; None if the evaluation of the last episode is gone. What it has
    of evaluations between steps stays, if their files are gone."""
    metrics = make_metrics(directory, progress)
    if metrics is None:
        return None
    directory.require_present()
    try:
        there = read_metrics(directory.metrics)
    except UserError:
        there = None
    known = [] if there is None else there.curve or []
    if (
        there is not None
        and metrics == replace(there, curve=metrics.curve)
        and all(one in known for one in metrics.curve or [])
    ):
        return there
    if there != metrics:
        write_record(directory.metrics, metrics)
    return metrics


def observations_of(directory: RunDirectory, progress: Progress | None) -> Observations:
    """What was measured of each episode; of a copy without progress.json, what observations.json says."""
    if progress is None:
        return _read(directory.observations, Observations) or Observations()
    folders = [episode_folder(directory, progress, task) for task in range(progress.finished)]
    found = [_read(folder.observation, Observation) for folder in folders]
    start = _read(directory.start.observation, ReferenceScores) if progress.start else None
    return Observations(
        reference=progress.reference,
        episodes=tuple(one for one in found if one is not None),
        start=start,
    )


def _read(path: Any, kind: Any) -> Any:
    """None if it is missing, or damaged: the next `observe` measures it again."""
    try:
        return read_record(path, kind)
    except Missing:
        return None
    except UserError as error:
        warn(f"{error} It is measured again with the next episode.")
        return None


def write_observations(directory: RunDirectory, progress: Progress) -> Observations:
    """observations.json, if it differs from what is there."""
    seen = observations_of(directory, progress)
    try:
        there = read_record(directory.observations, Observations)
    except UserError:
        there = None
    if seen != there:
        write_record(directory.observations, seen)
    return seen
