"""One more episode of a state: as a benchmark with one more task, and what it did to the features."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import torch
from msgspec.structs import replace

from osiris.console import notice
from osiris.data.benchmark import Benchmark, Split, TaskContent
from osiris.data.benchmarks import episode_from
from osiris.data.folder import Listing
from osiris.data.images import Subset
from osiris.errors import UserError
from osiris.evaluation.embedding import Embedder
from osiris.evaluation.health import fixed_subset
from osiris.evaluation.metrics_file import write_record
from osiris.evaluation.observations import (
    FILE,
    Observation,
    Observations,
    Reference,
    movement,
    read_observations,
    read_reference,
    score_reference,
)
from osiris.evaluation.runs import files_by_task
from osiris.training.config import Config
from osiris.training.loop import Extension
from osiris.training.schedule import Phase, steps_per_epoch

MOST_IMAGES = 1000
"""Images of the memory whose movement is measured."""


def memory_of(state: dict[str, Any]) -> dict[str, Any]:
    model = state["engine"]["model"]
    task = model["memory.task"]
    return {"images": model["memory.images"], "task": task, "filled": int((task >= 0).sum())}


def episode_size(images: Any) -> int | None:
    """How many images `Learner.observe` was given; damaged ones count too. None if that is not known."""
    if isinstance(images, str | Path):
        path = Path(images).expanduser()
        return (len(Listing(path).files) or None) if path.is_dir() else 1
    return len(images) if hasattr(images, "__len__") else None


def extension(state: dict[str, Any] | None, config: Config, images: Any, name: str | None) -> Extension:
    """The next episode after a state, as a benchmark with one more task, and the phases of all of them.

    An episode that was interrupted is continued. The same images under the same name as the last finished episode are
    that episode: then there is nothing to learn.
    """
    past: list[TaskContent] = [] if state is None else list(state["data"])
    done = 0 if state is None else int(state["position"]["task"])
    size = config.data.image_size if state is None else int(memory_of(state)["images"].shape[-1])
    if name is None:
        name = Path(images).name if isinstance(images, str | Path) else f"episode {done + 1}"
    episode = episode_from(images, name, size)
    content = episode.contents[0]
    if done < len(past):
        if done + 1 < len(past) or content["order"] != past[done]["order"]:
            raise UserError(
                f"task {done + 1} ({past[done]['name']}) is not finished: give its images again, unchanged, to finish "
                "it first (a run of osiris train: use osiris train --resume)."
            )
        content = past[done]
    elif past and content == past[-1]:
        notice(f"{name} is already learned: nothing to do. Give it another name to learn from it again.")
        done -= 1
    contents = [*past[:done], content]
    sizes = [one["train"] for one in contents]
    before = sum(sizes[:-1])
    task = torch.cat([torch.full((before,), -1), torch.full((sizes[-1],), done)])
    later = Subset(episode.train.images, torch.arange(-before, len(episode.train)))  # earlier images are gone
    benchmark = Benchmark(
        name=config.data.benchmark,
        train=Split(later, task),
        bank=Split(episode.train.images, task[before:]),
        test=None,
        class_names=(),
        tasks=((),) * (done + 1),
        mean=episode.mean if state is None else tuple(state["normalisation"][0]),
        std=episode.std if state is None else tuple(state["normalisation"][1]),
        checksum=hashlib.sha256(repr(contents).encode()).hexdigest(),
        notices=episode.notices,
        task_names=tuple(one["name"] for one in contents),
        contents=tuple(contents),
    )
    epochs, batch = config.learning.epochs, config.learning.batch_size
    plan = [
        Phase(number, benchmark.training_indices(number), epochs * steps_per_epoch(count, batch), min(batch, count))
        for number, count in enumerate(sizes)
    ]
    return benchmark, plan


def measure(path: Path, state: dict[str, Any], folder: Path | None, device: torch.device) -> None:
    """Add what is missing to observations.json, for every finished episode whose weights are still there.

    `folder`: labelled images; default: those of the call before. A kill loses nothing: the next call adds it.
    """
    observations, weights = read_observations(path), files_by_task(path / "checkpoints")
    memory = memory_of(state)
    images = memory["images"][fixed_subset(memory["filled"], MOST_IMAGES)].numpy()
    assert len(images) > 1, "an episode has at least four images, and each is offered to the memory"
    reference = _open_reference(folder, observations, images.shape[-1])
    by_task = {one.task: one for one in observations.episodes}
    finished = [task for task in weights if task < state["position"]["task"]]
    missing = [task for task in finished if task not in by_task or _lacks(by_task[task], reference)]
    before: tuple[int, torch.Tensor] | None = None
    for task in missing:
        embedder = Embedder(weights[task], device)
        after = embedder.embed_batch(images)
        known = by_task.get(task)
        if known is None:
            if task - 1 in weights and (before is None or before[0] != task - 1):
                before = task - 1, Embedder(weights[task - 1], device).embed_batch(images)
            moved = movement(before[1], after) if before is not None and before[0] == task - 1 else (None, None)
            known = Observation(task=task, drift=moved[0], same_neighbours=moved[1])
        if reference is not None and _lacks(known, reference):
            earlier = next((one.reference for one in by_task.values() if one.reference is not None), None)
            known = replace(known, reference=score_reference(reference, embedder.embed_batch, earlier))
        by_task[task], before = known, (task, after)
    place = str(folder.absolute()) if folder is not None else observations.reference
    episodes = tuple(by_task[task] for task in sorted(by_task))
    write_record(path / FILE, Observations(reference=place, episodes=episodes))


def _lacks(known: Observation, reference: Reference | None) -> bool:
    return reference is not None and (known.reference is None or known.reference.digest != reference.digest)


def _open_reference(folder: Path | None, observations: Observations, size: int) -> Reference | None:
    if folder is None and observations.reference is not None:
        folder = Path(observations.reference)
        if not folder.is_dir():
            notice(f"the labelled images of earlier calls are not in {folder} any more; name them with --reference.")
            return None
    if folder is None:
        return None
    reference = read_reference(folder, size)
    notice(*reference.notices)
    return reference
