"""observations.json: what each episode did to the features, on the images of the memory and on labelled images."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from msgspec.structs import replace
from torch import Tensor, nn

from osiris import processes
from osiris.console import notice
from osiris.data.images import ArrayImages
from osiris.errors import UserError
from osiris.evaluation.embedder import Embedder
from osiris.evaluation.features import embed
from osiris.evaluation.fingerprint import json_digest
from osiris.evaluation.health import fixed_subset
from osiris.evaluation.reference import Reference, against, movement, read_reference, score_reference
from osiris.evaluation.scores import ReferenceScores, write_record
from osiris.exact.readout import Readout
from osiris.files import cache_directory, read_json, write_json
from osiris.models.joined import JoinedEncoder
from osiris.models.manifold import JoinedManifold
from osiris.runs.directory import RunDirectory
from osiris.runs.progress import Progress, episode_folder, write_progress
from osiris.runs.records import Observation, Observations
from osiris.runs.views import observations_of, write_observations
from osiris.training.run import Training

MOST_IMAGES = 1000
"""Images of the memory whose movement is measured."""
NEEDS_REFERENCE = "--only-if-better needs labelled images: name their folder with --reference."


def measure(
    directory: RunDirectory,
    memory: Tensor,
    progress: Progress,
    labelled: tuple[Reference | None, str | None],
    device: torch.device,
    frozen: bool = False,
    readouts: Readouts | None = None,
) -> Observations:
    """Add what is missing, for every finished episode whose weights are still there.

    `memory`: images whose features are compared, uint8 [N, 3, H, W]; fewer than two if none are known. `labelled`: see
    `open_reference`. `frozen`: all encoders are readouts of one network. `readouts`: the one in use, and others, after
    the last episode. A kill loses nothing: the next call adds it.
    """
    observations = observations_of(directory, progress)
    folders = [episode_folder(directory, progress, task) for task in range(progress.finished)]
    weights = {task: folder.weights for task, folder in enumerate(folders) if folder.weights.exists()}
    images = memory[fixed_subset(len(memory), MOST_IMAGES)].numpy() if len(memory) > 1 else None
    reference, place = labelled
    memo: dict[int, Tensor] | None = {} if frozen else None
    by_task, start, begin = {one.task: one for one in observations.episodes}, observations.start, None
    if progress.start:
        embedder = Embedder(directory.start.weights, device)
        begin = None if images is None else embedder.embed_batch(images, memo)
        if reference is not None and (start is None or start.digest != reference.digest):
            start = score_reference(reference, partial(embedder.embed_batch, memo=memo))
            write_record(directory.start.observation, start)
    missing = [task for task in weights if task not in by_task or _lacks(by_task[task], reference)]
    before: tuple[int, Tensor] | None = None
    for task in missing:
        embedder = Embedder(weights[task], device)
        after = None if images is None else embedder.embed_batch(images, memo)
        known = by_task.get(task)
        if known is None:
            if images is not None and task - 1 in weights and (before is None or before[0] != task - 1):
                before = task - 1, Embedder(weights[task - 1], device).embed_batch(images, memo)
            moved = None, None
            if after is not None and before is not None and before[0] == task - 1:
                moved = movement(before[1], after)
                if isinstance(embedder.encoder, JoinedManifold):  # its numbers are other ones after each episode
                    moved = None, moved[1]
            away = None if begin is None or after is None else movement(begin, after)[0]
            kept = task not in progress.position.refused
            known = Observation(task=task, drift=moved[0], same_neighbours=moved[1], from_start=away, kept=kept)
        if reference is not None and _lacks(known, reference):
            earlier = next((one.reference for one in by_task.values() if one.reference is not None), start)
            known = replace(
                known, reference=score_reference(reference, partial(embedder.embed_batch, memo=memo), earlier)
            )
            if readouts is not None and task == progress.finished - 1:
                known = replace(known, readout=readouts.used, others=score(reference, readouts, embedder, memo))
        write_record(folders[task].observation, known)
        by_task[task], before = known, None if after is None else (task, after)
    if place != progress.reference:
        progress = replace(progress, reference=place)
        write_progress(directory, progress)
    return write_observations(directory, progress)


@dataclass(frozen=True)
class Readouts:
    """What can be made of the sums of a state: by the values of --readout."""

    used: str
    others: dict[str, Readout]


def score(
    reference: Reference, readouts: Readouts, embedder: Embedder, memo: dict[int, Tensor] | None
) -> dict[str, ReferenceScores]:
    """Of the other readouts of the same layers."""
    assert isinstance(embedder.encoder, JoinedEncoder)
    scores = {}
    for name, readout in readouts.others.items():
        other = embedder.of(embedder.encoder.read_by(readout.to(embedder.device)))
        scores[name] = score_reference(reference, partial(other.embed_batch, memo=memo))
    return scores


def _lacks(known: Observation, reference: Reference | None) -> bool:
    return reference is not None and (known.reference is None or known.reference.digest != reference.digest)


def open_reference(
    directory: RunDirectory, progress: Progress | None, folder: Path | None, size: int, new: bool = False
) -> tuple[Reference | None, str | None]:
    """(the labelled images, the name of their folder). The folder of earlier calls is opened only if it was named on
    this machine: a state that was received from somebody may name any folder. Other images than those of earlier calls
    are refused unless they are `new`."""
    observations = Observations() if progress is None else observations_of(directory, progress)
    named = cache_directory() / "references" / f"{json_digest(str(directory.path.resolve()))}.json"
    given = folder is not None
    if folder is None and observations.reference is not None:
        folder = _named_here(named, observations.reference)
        if folder is None:
            notice(
                f"the labelled images of earlier calls, {observations.reference}, are not measured: name them again "
                "with --reference."
            )
    if folder is None:
        return None, observations.reference
    reference, place = read_reference(folder, size), str(folder.absolute())
    notice(*reference.notices)
    known = next((one.reference for one in reversed(observations.episodes) if one.reference is not None), None)
    if known is not None and known.digest != reference.digest:
        there = f"{known.images} labelled images of {len(known.classes)} classes ({observations.reference})"
        here = f"{len(reference.labels)} of {len(reference.classes)}"
        if place != observations.reference and not new:
            raise UserError(
                f"{directory.path} was measured with {there}; {folder} has {here}. Give the same images, or "
                "--new-reference to measure with these from now on."
            )
        notice(
            f"the labelled images have changed: {there} before, {here} now. Episodes whose weights are kept are "
            "measured again; numbers of others are not comparable."
        )
    if given:
        with suppress(OSError):  # without a cache, later calls have to name it again
            write_json(named, place)
    return reference, place


def _named_here(record: Path, wanted: str) -> Path | None:
    try:
        return Path(wanted) if read_json(record) == wanted and Path(wanted).is_dir() else None
    except (OSError, ValueError):
        return None


class Guard:
    """`--only-if-better`: whether an encoder may replace the one before the episode, by labelled images."""

    def __init__(self, run: Training, labelled: tuple[Reference | None, str | None] | None) -> None:
        """`labelled`: see `open_reference`; only the first process has it."""
        self.run = run
        if run.readout is not None:
            raise UserError("--only-if-better judges what the network itself returns: leave out --readout.")
        reference = processes.broadcast(None if labelled is None else labelled[0])
        if reference is None:
            raise UserError(NEEDS_REFERENCE)
        self.reference = reference

    def __call__(self, before: nn.Module, after: nn.Module) -> bool:
        change = against(self._score(before), self._score(after))
        worse = change is not None and change.significant and change.difference < 0
        if worse:
            self.run.position.refused.append(self.run.position.task)
        return not worse

    def _score(self, encoder: nn.Module) -> ReferenceScores:
        run = self.run

        def embed_images(images: np.ndarray) -> Tensor:
            return embed(encoder, ArrayImages(images), run.benchmark.mean, run.benchmark.std, run.device).cpu()

        return score_reference(self.reference, embed_images)


def verdict(observations: Observations) -> str:
    """What is known about the last episode, in one or two sentences."""
    if not observations.episodes:
        return "nothing is measured yet."
    last, earlier = observations.episodes[-1], observations.episodes[:-1]
    scores, said = last.reference, list[str]()
    if not last.kept:
        said.append("the labelled images got worse, so the encoder stayed what it was before this episode.")
    if scores is None:
        said.append("whether the features got better is not known: give labelled images with --reference.")
        moved = [(last.from_start, "the start"), (last.drift, "before this episode")]
        parts = [f"{value:.3f} from {place}" for value, place in moved if value is not None]
        if parts:
            said.append(f"On images that were learned they moved by {' and '.join(parts)} (1 - cosine).")
        if last.same_neighbours is not None:
            said.append(f"{last.same_neighbours:.0f}% of their nearest neighbours are the same as before.")
        return " ".join(said)
    low, high = scores.interval
    before = next((one.reference for one in reversed(earlier) if one.reference is not None), None)
    changes = {"the start": (observations.start, against(observations.start, scores))}
    changes |= {"the episode before": (before, against(before, scores))}
    parts = [f"chance {scores.chance:.1f}", f"pixels {scores.pixels:.1f}"]
    parts += [f"{name} {old.accuracy:.1f} ({one})" for name, (old, one) in changes.items() if old and one]
    said.append(
        f"labelled images: {scores.accuracy:.1f}% correct (95% interval {low:.1f} to {high:.1f}, "
        f"{scores.images} images); {', '.join(parts)}."
    )
    level = "chance" if low <= scores.chance else "raw pixels" if low <= scores.pixels else None
    if level is not None:
        said.append(f"Not significantly above {level}.")
    judged = {name: one for name, (_, one) in changes.items() if one is not None}
    for name, one in judged.items():
        if one.significant:
            said.append(f"{'Better' if one.difference > 0 else 'WORSE'} than {name}.")
    same = [name for name, one in judged.items() if not one.significant]
    if same:
        said.append(f"No significant change from {' or '.join(same)}.")
    return " ".join([*said, *_advice(last, observations.start)])


def _advice(last: Observation, start: ReferenceScores | None) -> list[str]:
    """Whether another readout of the same sums is significantly better, and how to have it."""
    if last.readout is None or last.reference is None:
        return []
    others = {"start": start} | last.others
    better = {
        name: (scores, change)
        for name, scores in others.items()
        if scores is not None
        and name != last.readout
        and (change := against(last.reference, scores)) is not None
        and change.significant
        and change.difference > 0
    }
    if not better:
        return []
    name = max(better, key=lambda name: better[name][0].accuracy)
    scores, change = better[name]
    return [
        f"--readout {name} would be better: {scores.accuracy:.1f} ({change}). Give it to the next osiris observe; the "
        "sums stay as they are."
    ]
