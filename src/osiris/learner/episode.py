"""One more episode of a state, as a benchmark with one more task."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import torch

from osiris.console import notice
from osiris.data.benchmark import Benchmark, Split, TaskContent
from osiris.data.benchmarks import episode_from
from osiris.data.folder import Listing
from osiris.data.images import Subset
from osiris.errors import UserError
from osiris.training.config import Config
from osiris.training.loop import Extension
from osiris.training.schedule import Phase, steps_per_epoch


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
