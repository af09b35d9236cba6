"""checkpoints/before: the state as it was before the last episode began, so that the episode can be taken back.

A copy of the checkpoint and of the weights: hard links where the file system has them, which need room of their own
only once the episode has been saved twice.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from osiris.errors import UserError
from osiris.files import write_atomically
from osiris.runs.directory import RunDirectory, curve_prefix, read_config, task_name
from osiris.runs.state import LATEST, PREVIOUS, State, exists, load_state, writing


def keep_before(directory: RunDirectory) -> None:
    """Called between two episodes. A kill leaves the copy as it was, or none; the next call makes it again."""
    checkpoints = directory.checkpoints
    new = checkpoints / f".{directory.before.name}.tmp"
    with writing(directory.path):
        directory.remove_leftovers()
        if directory.before.exists():
            directory.before.replace(new)
            shutil.rmtree(new)
        new.mkdir()
        for file in (directory.metrics, directory.observations):
            if file.exists():
                shutil.copyfile(file, new / file.name)
        for file in list(directory.all_weights().values())[-1:]:  # --keep-tasks may remove them
            _link(file, new / file.name)
        _link(checkpoints / (LATEST if (checkpoints / LATEST).exists() else PREVIOUS), new / LATEST)
        new.replace(directory.before)
        directory.taken_back.unlink(missing_ok=True)


def _link(file: Path, copy: Path) -> None:
    copy.unlink(missing_ok=True)
    try:
        os.link(file, copy)
    except OSError:
        shutil.copyfile(file, copy)


@contextlib.contextmanager
def nothing_left_if_refused(directory: RunDirectory) -> Iterator[None]:
    """If the first episode of a new state is refused before anything was saved, remove what was written for it."""
    new = not directory.config.exists()
    try:
        yield
    except UserError:
        if new and directory.owner and not exists(directory.checkpoints):
            directory.clear()
        raise


def go_back(directory: RunDirectory, state: State, finished: bool) -> str:
    """Take back the last finished episode, or an unfinished one; returns its name.

    The checkpoint is replaced last, and then the copy is removed: after a kill, the same call completes it.
    """
    if directory.before.exists() and not exists(directory.before):
        shutil.rmtree(directory.before)
        return f"the episode after {state.episodes[state.position.task - 1]['name']}"
    task = state.position.task - finished
    if not finished and state.unfinished is None:
        raise UserError(f"{directory.path} has no unfinished episode; --undo takes back a finished one.")
    if finished and state.unfinished is not None:
        raise UserError(f"{state.unfinished['name']} is not finished; --discard takes it back.")
    before, name = load_state(directory.before), state.episodes[task]["name"]
    once = not directory.taken_back.exists()  # a mistaken repetition must not remove the whole state
    if before is None and task == 0 and once and not read_config(directory.path).data.benchmark:
        directory.clear()
        return name
    if before is None or before.position.task != task or before.unfinished is not None:
        raise UserError(
            f"{name} cannot be taken back. Only the last episode that osiris observe has begun can, and only once: "
            f"{directory.path} keeps one copy of its state, made when an episode begins, until it is used."
        )
    done = f"{task_name(task)}.", f"{task_name(task)}-", curve_prefix(task), "compatibility.", "metrics."
    places = directory.checkpoints, directory.evaluation, *directory.evaluations.glob("*/")
    for file in (file for place in places for file in place.iterdir()):
        if file.name.startswith(done):
            file.unlink()
    with writing(directory.path):
        for file in (directory.metrics, directory.observations):
            kept = directory.before / file.name
            if kept.exists():
                write_atomically(file, lambda temporary, kept=kept: shutil.copyfile(kept, temporary))
            else:
                file.unlink(missing_ok=True)
        weights = directory.before / directory.weights(task - 1).name
        if weights.exists() and not directory.weights(task - 1).exists():
            write_atomically(directory.weights(task - 1), lambda temporary: _link(weights, temporary))
        (directory.checkpoints / PREVIOUS).unlink(missing_ok=True)
        directory.taken_back.touch()
        (directory.before / LATEST).replace(directory.checkpoints / LATEST)
    shutil.rmtree(directory.before)
    return name
