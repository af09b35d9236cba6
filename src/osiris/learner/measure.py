"""After each episode: what it did to the features of the memory's images and to KNN on labelled images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from msgspec.structs import replace

from osiris.console import notice
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
from osiris.learner.episode import memory_of

MOST_IMAGES = 1000
"""Images of the memory whose movement is measured."""


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
    for text in reference.notices:
        notice(text)
    return reference
