"""Take the last episode back: progress.json without it, then its files go.

One replaced file decides, so a kill leaves the state before or after; what it leaves behind, the next writer removes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from msgspec.structs import replace

from osiris.errors import UserError
from osiris.runs.directory import RunDirectory, read_config
from osiris.runs.progress import FORMAT, Progress, write_progress
from osiris.runs.run import task_name
from osiris.runs.state import read_state, writing
from osiris.runs.views import write_metrics, write_observations


@contextlib.contextmanager
def nothing_left_if_refused(directory: RunDirectory) -> Iterator[None]:
    """If the first episode of a new state is refused before anything was saved, remove what was written for it."""
    new = not directory.config.exists()
    try:
        yield
    except UserError:
        if new and directory.owner and not directory.progress.exists():
            directory.clear()
        raise


def go_back(directory: RunDirectory, progress: Progress) -> str:
    """Take back the last episode, finished or not; returns its name."""
    if progress.taken_back and _left_behind(directory, progress):  # a kill came between
        write_progress(directory, progress)
        write_views(directory, progress)
        return f"the episode after {progress.contents[progress.finished - 1]['name']}"
    task = progress.finished - (not progress.coming)
    name, back = progress.contents[task]["name"], progress.back
    by_observe = not read_config(directory.path).data.benchmark
    if back is None and task == 0 and not progress.taken_back and by_observe:
        write_progress(directory, Progress(format=FORMAT, counter=progress.counter))
        directory.clear()
        return name
    if back is None or back.position.task != task:
        raise UserError(
            f"{name} cannot be taken back. Only the last episode that osiris observe has begun can, and only once: "
            f"{directory.path} keeps the state before it until that is used, and none before that."
        )
    before = progress.without_last()
    try:
        read_state(directory, back, before)
    except UserError as error:
        raise UserError(f"{error} So {name} cannot be taken back. {_whole(directory, progress)}") from None
    _remove_measured(directory, task)
    with writing(directory.path):
        write_progress(directory, before)
        write_views(directory, before)
    return name


def _left_behind(directory: RunDirectory, progress: Progress) -> bool:
    return any(folder.name not in progress.folders for folder in directory.episodes.iterdir())


def _whole(directory: RunDirectory, progress: Progress) -> str:
    """What can be gone on from, if the way back is damaged."""
    for number, saved in enumerate(progress.saved):
        with contextlib.suppress(UserError):
            read_state(directory, saved, replace(progress, saved=progress.saved[number:]))
            return f"The newest state, {directory.episodes / saved.file}, is whole: osiris observe goes on from it."
    return "The newest state is damaged too: put one of them back from a copy."


def _remove_measured(directory: RunDirectory, task: int) -> None:
    """What `osiris evaluate` measured of an episode, or with it."""
    directory.compatibility.unlink(missing_ok=True)
    done = f"{task_name(task)}.", f"{task_name(task)}-", "metrics.", "compatibility."
    for file in (file for place in directory.evaluations.glob("*/") for file in place.iterdir()):
        if file.name.startswith(done):
            file.unlink()


def write_views(directory: RunDirectory, progress: Progress) -> None:
    write_metrics(directory, progress)
    write_observations(directory, progress)
