"""The whole state of a run, to disk and back to the same bits. No pickles: `weights_only=True` and safetensors.

progress.json names the file. A state that is damaged or does not fit its run is refused and named, never repaired by a
guess. An error of the system (no permission, too many open files) is an error, and nothing is known about the file.
"""

from __future__ import annotations

import copy
import errno
import functools
import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from msgspec.structs import replace
from safetensors import SafetensorError
from torch import Tensor

from osiris.console import warn
from osiris.errors import UserError
from osiris.files import Missing, open_regular, write_atomically
from osiris.runs.directory import RunDirectory
from osiris.runs.progress import LARGEST, Position, Progress, Saved, consistent, read_progress, write_progress


@dataclass(frozen=True)
class MemoryContent:
    """What the memory of a state holds: its filled slots."""

    images: Tensor
    """uint8 [N, 3, H, W]"""
    task: Tensor
    """int64 [N]: the episode of each image."""
    size: int
    """Slots, filled or not."""


@dataclass(frozen=True)
class State:
    """Everything that a run needs to go on, besides its config and the images of the episode it is in."""

    engine: dict[str, Any]
    """Networks, terms and memory (`model`), `optimiser`, `scaler`."""
    progress: Progress
    """Its newest state is this one."""

    @property
    def position(self) -> Position:
        return self.progress.position

    @property
    def memory(self) -> MemoryContent:
        model = self.engine["model"]
        filled = model["memory.task"] >= 0
        return MemoryContent(model["memory.images"][filled], model["memory.task"][filled], len(filled))

    def forget(self, found: Tensor) -> None:
        """Replace some filled slots of the memory (bool [N]), with all that belongs to them, by copies of others."""
        others = (~found).nonzero().flatten()
        assert len(others)
        for slot in found.nonzero().flatten().tolist():
            for name, value in self.engine["model"].items():
                if name.startswith("memory.") and isinstance(value, Tensor) and value.ndim > 0:
                    value[slot] = value[int(others[slot % len(others)])]


class CannotWrite(UserError):
    """A file cannot be written any more; what was saved before is intact."""


def digest(state: Any) -> str:
    """The checksum of every tensor and number, by which a damaged file is recognised."""
    total = hashlib.blake2b(digest_size=16)
    for name, value in _leaves(state, ""):
        total.update(name.encode())
        if isinstance(value, Tensor):
            total.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
        else:
            total.update(repr(value).encode())
    return total.hexdigest()


def _leaves(state: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(state, dict):
        for key in sorted(state, key=str):
            yield from _leaves(state[key], f"{path}/{key}")
    elif isinstance(state, (list, tuple)):
        for index, value in enumerate(state):
            yield from _leaves(value, f"{path}/{index}")
    else:
        yield path, state


def save_state(
    directory: RunDirectory, progress: Progress, engine: dict[str, Any], position: Position, log: int, way_back: bool
) -> Progress:
    """Write a new file, then progress.json, which names it; then remove what that does not name any more. `way_back`:
    keep the state at the end of the episode before."""
    folder, model = progress.episodes[position.episode].folder, engine["model"]
    name = f"{folder}/state-{progress.counter + 1:06d}.pt"
    held = model["memory.task"][model["memory.task"] >= 0]
    state = Saved(
        file=name,
        digest=digest(engine),
        position=copy.deepcopy(position),
        log=log,
        memory=torch.bincount(held.cpu(), minlength=position.episode + 1).tolist(),
    )
    images = model["memory.images"]
    progress = replace(progress, memory_size=len(images), image_size=images.shape[-1])
    with writing(directory.path):
        write_atomically(directory.episodes / name, lambda temporary: torch.save({"engine": engine}, temporary))
        progress = progress.with_state(state, way_back)
        write_progress(directory, progress)
    return progress


def rewrite_states(directory: RunDirectory, change: Callable[[State], bool]) -> None:
    """Change the memory in every state of a run; one that is damaged, or for which `change` says False, goes."""
    progress = read_progress(directory)
    assert progress is not None
    written = dict[str, Saved]()
    for number, saved in enumerate(progress.states, progress.counter + 1):
        known = replace(progress, saved=[saved])
        try:
            state = State(read_state(directory, saved, known), known)
        except UserError as error:
            warn(f"{error} It is removed.")
            continue
        if change(state):
            name = f"{saved.file.split('/')[0]}/state-{number:06d}.pt"
            engine, filled = state.engine, state.engine["model"]["memory.task"]
            write = functools.partial(torch.save, {"engine": engine})
            write_atomically(directory.episodes / name, write)
            held = torch.bincount(filled[filled >= 0], minlength=len(saved.memory)).tolist()
            written[saved.file] = replace(saved, file=name, digest=digest(engine), memory=held)
    back = None if progress.back is None else written.get(progress.back.file)
    newest = [written[one.file] for one in progress.saved if one.file in written]
    counter = progress.counter + len(progress.states)
    with writing(directory.path):
        write_progress(directory, replace(progress, counter=counter, saved=newest, back=back))


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Raise `CannotWrite` if the disk is full, failing or read-only, which libraries report differently (torch:
    "unexpected pos"). The path in the message may lie outside `folder`, for example in the cache."""
    try:
        yield
    except (OSError, RuntimeError, SafetensorError) as error:
        number, place = getattr(error, "errno", None), getattr(error, "filename", None) or folder
        full = number in (errno.ENOSPC, errno.EDQUOT) or "No space left" in str(error)
        full = full or (isinstance(error, RuntimeError) and "inline_container" in str(error))
        if not full and (number is None or isinstance(error, BrokenPipeError)):
            raise
        reason = "the disk is full, or the quota is used up" if full else os.strerror(number or 0)
        raise CannotWrite(f"{place}: {reason}. {advice(folder)}") from error


def advice(folder: Path) -> str:
    """A sentence on what is saved after a failure, and how to continue."""
    try:
        progress = read_progress(RunDirectory(folder))
    except (UserError, OSError):
        progress = None
    if progress is not None and progress.saved:
        return "What was saved is intact: solve the problem and give the same command again to continue from it."
    return "Nothing was saved: solve the problem and give the same command again."


def load_state(directory: RunDirectory) -> State | None:
    """The newest undamaged state; None if nothing was saved, or if all states were removed. Nothing is written: a
    damaged file goes with the next save."""
    return consistent(directory, lambda progress: None if progress is None else _newest(directory, progress))


def _newest(directory: RunDirectory, progress: Progress) -> State | None:
    damage, gone = list[UserError](), 0
    for number, saved in enumerate(progress.saved):
        known = replace(progress, saved=progress.saved[number:])
        try:
            state = State(read_state(directory, saved, known), known)
        except UserError as error:
            gone += isinstance(error, Missing)
            damage.append(error)
            continue
        if damage:
            _notice_changes(directory, progress, damage)
            place = f"{known.contents[saved.position.episode]['name']}, {_place(saved.position)}"
            warn(f"{damage[0]} Continuing from the state saved before it: {directory.episodes / saved.file} ({place}).")
        return state
    _notice_changes(directory, progress, damage)
    if gone < len(damage):
        reasons = " ".join(str(error) for error in damage)
        raise UserError(f"{reasons} {_what_is_whole(directory, progress)}")
    return None


def _notice_changes(directory: RunDirectory, progress: Progress, damage: list[UserError]) -> None:
    """What looks like damage may be the work of another process, which has saved meanwhile: then all is read again."""
    if damage and read_progress(directory) != progress:
        raise damage[0]


def _place(position: Position) -> str:
    return "at its end" if position.between else f"at step {position.step}"


def _what_is_whole(directory: RunDirectory, progress: Progress) -> str:
    """How to go on from a run whose newest states are damaged."""
    back = progress.back
    if back is not None and back not in progress.saved:
        try:
            read_state(directory, back, replace(progress, saved=[back]))
        except UserError:
            back = None
    if back is None:
        return (
            f"No state in {directory.episodes} can be read: put the file back from a copy, or start a new run or state "
            "elsewhere. The weights of the episodes are files of their own, and can be used."
        )
    name = progress.contents[back.position.episode]["name"]
    return (
        f"The state at the end of {name} is whole, {directory.episodes / back.file}: osiris undo {directory.path} goes "
        "back to it."
    )


def read_state(directory: RunDirectory, saved: Saved, progress: Progress) -> dict[str, Any]:
    """Networks, optimiser and memory of a saved state; a `UserError` if the file is damaged, or `Missing`."""
    path = directory.episodes / saved.file
    try:
        file = open_regular(path)
    except FileNotFoundError:
        raise Missing(f"{path} does not exist.") from None
    with file:
        try:
            record = torch.load(file, map_location="cpu", weights_only=True)
        except (OSError, MemoryError):
            raise
        except Exception as error:
            if "can't allocate memory" in str(error):
                raise MemoryError(f"there is too little memory to read {path}.") from error
            # The first sentence only: torch goes on with the advice to load the file without its safety check.
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0].split(". ")[0].rstrip(".")
            raise UserError(f"{path} is damaged or not a state of osiris ({reason}).") from error
    if not isinstance(record, dict) or not isinstance(record.get("engine"), dict):
        raise UserError(f"{path} is not a state of osiris.")
    engine = record["engine"]
    try:
        for name, value in _leaves(engine, ""):
            if isinstance(value, Tensor) and value.untyped_storage().nbytes() < value.nbytes:
                raise ValueError(f"{name} says that it is larger than what the file has of it")
        if digest(engine) != saved.digest:
            raise UserError(f"{path} is damaged, or of another run: its checksum is not that of progress.json.")
        _check(engine, progress)
    except UserError:
        raise
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, RuntimeError, RecursionError) as error:
        raise UserError(f"{path} is not the state of a run ({type(error).__name__}: {str(error)[:200]}).") from None
    return engine


def _check(engine: dict[str, Any], progress: Progress) -> None:
    """Refuse what cannot be true, before anything relies on it."""
    known, model = len(progress.episodes), engine["model"]
    slots = len(model["memory.task"])
    if not all(isinstance(value, Tensor) for value in model.values()):
        raise ValueError("its networks are not tensors")
    images, offers = model["memory.images"], int(model["memory._extra_state"])
    if model["memory.task"].dtype != torch.int64 or model["memory.task"].ndim != 1:
        raise ValueError("its memory does not say which tasks its images are of")
    if images.ndim != 4 or images.dtype != torch.uint8 or images.shape[1] != 3 or images.shape[2] != images.shape[3]:
        raise ValueError("its memory holds no images")
    if not 0 <= offers <= LARGEST or int((model["memory.task"] >= 0).sum()) != min(offers, slots):
        raise ValueError("its memory is not filled as it says")
    for name, value in model.items():
        if name.startswith("memory.") and value.ndim > 0 and len(value) != slots:
            raise ValueError(f"{name} has {len(value)} slots, not {slots}")
    if slots and int(model["memory.task"].max()) >= known:
        raise ValueError("its memory holds images of tasks that it does not know")
