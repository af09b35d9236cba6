"""The whole state of a run, to disk and back to the same bits. No pickles: `weights_only=True` and safetensors.

A state that is damaged or does not fit its run is refused and named, never repaired by a guess.
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import torch
from msgspec import Meta
from safetensors import SafetensorError
from torch import Tensor

from osiris.console import warn
from osiris.data.benchmark import TaskContent
from osiris.errors import UserError
from osiris.evaluation.encoder_files import Deviation, Mean
from osiris.files import write_atomically

FORMAT = 3
LATEST, PREVIOUS, DAMAGED = "latest.pt", "previous.pt", "damaged.pt"
LARGEST = 2**53
"""The largest count in a state: a file with a larger one was not written by a run."""

Count = Annotated[int, Meta(ge=0, le=LARGEST)]


Stage = Literal["train", "curve", "end", "evaluate"]
"""The stage of an episode. curve: an evaluation between two steps; end: all steps are done, not the episode's end."""


@dataclass
class Position:
    """Where a run stands: an episode, a stage of it, and the steps done in it."""

    task: Count = 0
    stage: Stage = "train"
    step: Count = 0
    bad_steps: Count = 0
    seconds: Annotated[float, Meta(ge=0)] = 0.0
    """Time so far, over all starts."""
    refused: list[Count] = field(default_factory=list)
    """Episodes at whose end the encoder stayed what it was before them."""


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
    position: Position
    log: Count
    """Length of log.jsonl in bytes."""
    settings: dict[str, Any]
    """The config, flat, without what may change."""
    episodes: list[TaskContent]
    """All that are known: those that are learned, the one that is being learned, and with `osiris train` those to
    come."""
    planned: Annotated[int, Meta(ge=1, le=LARGEST)]
    """The number of episodes that were known when the run was opened: the weight of ewc depends on it."""
    mean: tuple[Mean, Mean, Mean]
    std: tuple[Deviation, Deviation, Deviation]
    """Channel statistics that images are normalised with."""
    architecture: dict[str, Any]
    """The description from which an encoder that osiris does not define is built."""

    @property
    def unfinished(self) -> TaskContent | None:
        """The first known episode that is not learned: the one that was interrupted, or (`osiris train`) the next."""
        return self.episodes[self.position.task] if self.position.task < len(self.episodes) else None

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


class OtherFormat(UserError):
    """A file of another version of osiris. It is intact: nothing may replace it."""


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


def exists(folder: Path) -> bool:
    return (folder / LATEST).exists() or (folder / PREVIOUS).exists()


def save_state(folder: Path, state: State) -> None:
    """Write latest.pt and keep the one before as previous.pt. A kill at any moment leaves at least one whole file."""
    latest, previous = folder / LATEST, folder / PREVIOUS
    plain = vars(state) | {"position": vars(state.position)}
    record = {"format": FORMAT, "digest": digest(plain), "state": plain}

    def write(temporary: Path) -> None:
        torch.save(record, temporary)
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())  # the new file is safe before the old one moves
        if latest.exists():
            latest.replace(previous)

    with writing(folder):
        write_atomically(latest, write)


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
    if any(exists(place) for place in (folder, folder / "checkpoints", folder.parent / "checkpoints")):
        return "The last checkpoint is intact: solve the problem and give the same command again to continue from it."
    return "Nothing was saved: solve the problem and give the same command again."


def load_state(folder: Path) -> State | None:
    """The newest undamaged state; None if there is none at all."""
    latest, previous = folder / LATEST, folder / PREVIOUS
    damage: list[UserError] = []
    for path in (path for path in (latest, previous) if path.exists()):
        try:
            state = read_state(path)
        except OtherFormat:
            raise
        except UserError as error:
            damage.append(error)
            continue
        if damage:
            warn(f"{damage[0]} Continuing from the checkpoint before it.")
            latest.replace(folder / DAMAGED)  # otherwise the next save would replace the good one with it
        return state
    if damage:
        reasons = " ".join(str(error) for error in damage)
        raise UserError(f"{reasons} No checkpoint in {folder} can be read; remove the run directory to start again.")
    return None


def read_state(path: Path) -> State:
    try:
        record = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        # The first sentence only: torch goes on with the advice to load the file without its safety check.
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0].split(". ")[0].rstrip(".")
        raise UserError(f"{path} is damaged or not an osiris checkpoint ({reason}).") from error
    if not isinstance(record, dict) or "state" not in record or not isinstance(record.get("format"), int):
        raise UserError(f"{path} is not an osiris checkpoint.")
    if record["format"] != FORMAT:
        newer = record["format"] > FORMAT
        text = "a newer version of osiris" if newer else "a version of osiris before its first release"
        advice = "update osiris" if newer else "start a new run or state"
        raise OtherFormat(f"{path} was written by {text} (format {record['format']}, not {FORMAT}): {advice}.")
    try:
        for name, value in _leaves(record["state"], ""):
            if isinstance(value, Tensor) and value.untyped_storage().nbytes() < value.nbytes:
                raise ValueError(f"{name} says that it is larger than what the file has of it")
        if digest(record["state"]) != record.get("digest"):
            raise UserError(f"{path} is damaged: its checksum does not match.")
        state = msgspec.convert(record["state"], State, strict=False)
        _check(state)
    except UserError:
        raise
    except (
        msgspec.ValidationError,
        KeyError,
        IndexError,
        TypeError,
        ValueError,
        AttributeError,
        RuntimeError,
    ) as error:
        raise UserError(f"{path} is not the state of a run ({type(error).__name__}: {str(error)[:200]}).") from None
    return state


def _check(state: State) -> None:
    """Refuse what cannot be true, before anything relies on it."""
    done, known = state.position.task, len(state.episodes)
    if done > known or (done == known and (state.position.step or state.position.stage != "train")):
        raise ValueError(f"it stands in task {done + 1} of {known}")
    model, slots = state.engine["model"], state.memory.size
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
