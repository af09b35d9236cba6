"""The whole state of a run, to disk and back to the same bits. No pickles: `weights_only=True` and safetensors."""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from osiris.console import warn
from osiris.errors import UserError
from osiris.files import write_atomically

FORMAT = 2


class OtherFormat(UserError):
    """A file of another version of osiris. It is intact: nothing may replace it."""


class CannotWrite(UserError):
    """A file cannot be written any more; what was saved before is intact."""


def digest(state: Any) -> str:
    """A checksum over every tensor and number, to recognise a damaged file."""
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


def sealed(state: dict[str, Any]) -> dict[str, Any]:
    """With its format and checksum: what `read_state` reads."""
    return {"format": FORMAT, "digest": digest(state), "state": state}


def exists(folder: Path) -> bool:
    return (folder / "latest.pt").exists() or (folder / "previous.pt").exists()


def save_state(folder: Path, state: dict[str, Any]) -> None:
    """Write latest.pt and keep the one before as previous.pt. A kill at any moment leaves at least one whole file."""
    latest, previous = folder / "latest.pt", folder / "previous.pt"
    record = sealed(state)

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
    """Turn a full, failing or read-only disk into one line. Libraries report it differently (torch: "unexpected pos").
    The path that the system names may lie outside `folder`, for example in the cache."""
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
    """What the user can rely on after a failure."""
    if any(exists(place) for place in (folder, folder / "checkpoints", folder.parent / "checkpoints")):
        return "The last checkpoint is intact: solve the problem and give the same command again to continue from it."
    return "Nothing was saved: solve the problem and give the same command again."


def load_state(folder: Path) -> dict[str, Any] | None:
    """The newest undamaged state; None if there is none at all."""
    latest, previous = folder / "latest.pt", folder / "previous.pt"
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
            latest.replace(folder / "damaged.pt")  # otherwise the next save would replace the good one with it
        return state
    if damage:
        reasons = " ".join(str(error) for error in damage)
        raise UserError(f"{reasons} No checkpoint in {folder} can be read; remove the run directory to start again.")
    return None


def read_state(path: Path) -> dict[str, Any]:
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
    if digest(record["state"]) != record.get("digest"):
        raise UserError(f"{path} is damaged: its checksum does not match.")
    return record["state"]


def save_tensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, Any] | None = None) -> None:
    """A safetensors file; the metadata is one JSON text."""
    plain = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    text = {"osiris": json.dumps(metadata or {}, sort_keys=True)}
    with writing(path.parent):
        write_atomically(path, lambda temporary: save_file(plain, temporary, text))
