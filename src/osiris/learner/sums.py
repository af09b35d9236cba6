"""States of methods that learn by sums: an image is taken out again, and the states of two places become one."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from msgspec.structs import replace
from torch import Tensor

from osiris.console import notice
from osiris.errors import UserError
from osiris.evaluation.encoder_files import load_checkpoint
from osiris.exact.readout import Readout
from osiris.files import load_tensors, save_tensors
from osiris.framework.composition import resolve
from osiris.framework.summed import Summed, SummedManifold, SummedReadout, image_digests
from osiris.learner.observations import Readouts
from osiris.models.joined import JoinedEncoder
from osiris.models.manifold import JoinedManifold
from osiris.runs.directory import RunDirectory, differences, folder_name, read_config, settings
from osiris.runs.progress import KnownEpisode, Position, Progress, episode_folder
from osiris.runs.state import State, load_state, read_state, rewrite_states, save_state
from osiris.runs.views import write_metrics, write_observations

NOT_SETTINGS = ("seed", "engine.threads")
"""What two states need not share to be joined."""


def by_sums(directory: RunDirectory) -> bool:
    """Whether the method of a state learns by sums."""
    return resolve(read_config(directory.path).method).sums is not None


def summed_of(directory: RunDirectory, weights: Path, constants: Mapping[str, Tensor]) -> Summed:
    """What a state learns with, from its weights."""
    config, loaded = read_config(directory.path), load_checkpoint(weights)
    module, mean, std, size = loaded.module, loaded.mean, loaded.std, loaded.image_size
    assert mean is not None and std is not None and size is not None
    if isinstance(module, JoinedManifold):
        return SummedManifold(module.eval(), std)
    assert isinstance(module, JoinedEncoder)
    settings = config.encoder
    summed = SummedReadout(module.eval(), settings.encoder, settings.readout or "joined", mean, std, size)
    summed.restore(constants)
    return summed


def readouts_of(summed: Any, total: Any) -> Readouts | None:
    """What can be made of the sums of a state; None for other methods than `readout`. The start is not among them: it
    is measured by itself."""
    if not isinstance(summed, SummedReadout):
        return None
    alike = summed.share(total) == 0
    kinds: tuple[str, ...] = ("joined",) if alike else ("joined", "whitened")
    used = "joined" if alike and summed.readout == "whitened" else summed.readout
    others: dict[str, Readout] = {}
    for kind in kinds:
        if kind != used:
            others[kind] = Readout(summed.encoder.layers.sizes, summed.size)
            others[kind].set(summed.map(total, kind))
    return Readouts(used, others)


def forget_images(directory: RunDirectory, images: Sequence[Tensor]) -> int:
    """Take images, uint8 [3, H, W], out of the sums of every state on disk, and make the encoder again; returns how
    many were found. The weights of earlier episodes, which may have seen them, are removed."""
    state = load_state(directory)
    if state is None:
        raise UserError(f"{directory.path} has not learned anything yet.")
    by_digest = dict(zip(_rows(image_digests(torch.stack(list(images)))), images))
    found = [row for row in _rows(state.engine["learned"]) if row in by_digest]
    if not found:
        return 0
    if len(found) == len(state.engine["learned"]):
        raise UserError("the state would have learned from no image; remove the whole state instead.")
    weights = _last_weights(directory, state.progress)
    summed = summed_of(directory, weights, state.engine["constants"])

    def without(one: State) -> bool:
        engine = one.engine
        for sums, seen in (("total", "learned"), ("part", "present")):
            rows = _rows(engine[seen])
            gone = [by_digest[row] for row in rows if row in by_digest]
            if gone:
                left = summed.from_tensors(engine["sums"][sums]) - summed.over(torch.stack(gone))
                engine["sums"][sums] = left.tensors()
                engine[seen] = engine[seen][torch.tensor([row not in by_digest for row in rows])]
        if "total" in engine["sums"] and len(engine["learned"]):
            summed.set(summed.from_tensors(engine["sums"]["total"]))
            engine["model"] |= {f"encoder.{name}": value.clone() for name, value in summed.encoder.state_dict().items()}
        return bool(len(engine["learned"])) or bool(len(engine["present"]))

    progress = state.progress
    alone = [replace(progress, saved=[saved]) for saved in progress.states]
    states = [State(read_state(directory, one.saved[0], one), one) for one in alone]
    for one in states:
        without(one)
    _rewrite_weights(directory, progress, states)  # first: after a kill, the same call finds the images in the states
    rewrite_states(directory, without)
    return len(found)


def _rewrite_weights(directory: RunDirectory, progress: Progress, states: Sequence[State]) -> None:
    """The weights of episodes at whose end there is a state become those of the state; others are removed."""
    whole = {state.position.episode: state for state in states if state.position.between}
    for task in range(progress.finished):
        weights = episode_folder(directory, progress, task).weights
        if task in whole and weights.exists():
            model, metadata = whole[task].engine["model"], load_tensors(weights)[1]
            encoder = {name: value for name, value in model.items() if name.startswith("encoder.")}
            save_tensors(weights, encoder, metadata)
        else:
            weights.unlink(missing_ok=True)


def _rows(digests: Tensor) -> list[bytes]:
    return [bytes(row) for row in digests.tolist()]


def _last_weights(directory: RunDirectory, progress: Progress) -> Path:
    if not progress.finished:
        raise UserError(f"{directory.path} has not finished an episode yet; osiris undo goes back to its beginning.")
    return episode_folder(directory, progress, progress.finished - 1).weights


def join(first: str | Path, second: str | Path, out: str | Path) -> Progress:
    """Write a state that has learned what two states have: their sums are added. Neither of them changes.

    For methods that learn by sums, the result is the state that has seen the images of both, up to rounding.
    """
    first, second, out = Path(first), Path(second), Path(out)
    if out.exists() and any(out.iterdir()):
        raise UserError(f"{out} is not empty; choose a new directory for the joined state.")
    states = [_whole_state(RunDirectory(path)) for path in (first, second)]
    _refuse_unlike(first, second, states)
    one, two = states
    target = RunDirectory(out)
    shutil.copytree(first, out, ignore=shutil.ignore_patterns(".lock", "index", "report", "state-*.pt", ".*.tmp"))
    with target as directory:
        episodes = [*one.progress.episodes[: one.progress.finished]]
        for episode in two.progress.episodes[: two.progress.finished]:
            folder = folder_name(len(episodes), episode.name)
            shutil.copytree(
                RunDirectory(second).episodes / episode.folder,
                directory.episodes / folder,
                ignore=shutil.ignore_patterns("state-*.pt", ".*.tmp"),
            )
            episodes.append(replace(episode, folder=folder))
        progress = _joined_progress(one.progress, two.progress, episodes)
        weights = directory.episode(episodes[-1].folder).weights
        metadata = load_tensors(weights)[1]
        summed = summed_of(directory, weights, one.engine["constants"])
        engine = _joined_engine(one.engine, two.engine, summed)
        encoder = {name: value for name, value in engine["model"].items() if name.startswith("encoder.")}
        save_tensors(weights, encoder, metadata | {"task": len(episodes) - 1})
        position = Position(task=len(episodes), seconds=one.progress.position.seconds + two.progress.position.seconds)
        length = directory.log.stat().st_size if directory.log.exists() else 0
        progress = save_state(directory, progress, engine, position, length, way_back=False)
        write_metrics(directory, progress)
        write_observations(directory, progress)
    notice("the evaluation of each episode is that of the state that learned it; the next one is of both.")
    return progress


def _whole_state(directory: RunDirectory) -> State:
    if not directory.config.exists():
        raise UserError(f"{directory.path} is not a state.")
    if not by_sums(directory):
        method = read_config(directory.path).method.method
        raise UserError(
            f"{directory.path} was trained ({method}): two trained networks cannot be added. States of a method that "
            "learns by sums can (osiris observe with a pretrained encoder)."
        )
    state = load_state(directory)
    if state is None or not state.progress.finished:
        raise UserError(f"{directory.path} has not finished an episode yet.")
    if state.progress.coming:
        raise UserError(f"{directory.path} has an unfinished episode: finish it, or take it back with osiris undo.")
    return state


def _refuse_unlike(first: Path, second: Path, states: list[State]) -> None:
    known = [
        {name: value for name, value in settings(read_config(path)).items() if name not in NOT_SETTINGS}
        for path in (first, second)
    ]
    if other := differences(*known):
        raise UserError(f"{first} and {second} have other settings: {other}. Only states of one encoder can be joined.")
    one, two = (state.engine for state in states)
    network = [name for name in one["model"] if name.startswith("encoder.") and not _from_sums(name)]
    same = states[0].progress.image_size == states[1].progress.image_size
    if not same or not all(torch.equal(one["model"][name], two["model"][name]) for name in network):
        raise UserError(f"{first} and {second} have other networks or image sizes: their sums cannot be added.")
    both = set(_rows(one["learned"])) & set(_rows(two["learned"]))
    if both:
        raise UserError(
            f"{len(both)} images were learned by both {first} and {second}: they would count twice. Take them out of "
            "one of them with osiris forget STATE FILE."
        )


def _from_sums(name: str) -> bool:
    """Whether a tensor of the encoder is made from the sums."""
    return ".readout." in name or name.endswith((".projection", ".sign"))


def _joined_progress(one: Progress, two: Progress, episodes: list[KnownEpisode]) -> Progress:
    return replace(one, episodes=episodes, saved=[], back=None, taken_back=False, planned=one.planned + two.planned)


def _joined_engine(one: dict[str, Any], two: dict[str, Any], summed: Summed) -> dict[str, Any]:
    total = summed.from_tensors(one["sums"]["total"]) + summed.from_tensors(two["sums"]["total"])
    summed.set(total)
    model = dict(one["model"]) | {f"encoder.{name}": value for name, value in summed.encoder.state_dict().items()}
    learned = torch.cat([one["learned"], two["learned"]])
    return one | {"model": model, "sums": {"total": total.tensors()}, "learned": learned, "present": learned[:0]}
