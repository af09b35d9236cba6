"""Whole state to the disk and back to the same bits. Nothing is unpickled: `weights_only=True`, safetensors."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from osiris import processes
from osiris.console import warn
from osiris.errors import UserError
from osiris.files import write_atomically

FORMAT = 1


class DiskFull(UserError):
    """Nothing more can be written; what was saved before is intact."""


def digest(state: Any) -> str:
    """A checksum over every tensor and number, so that a damaged file is recognised."""
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


def save_state(folder: Path, state: dict[str, Any]) -> None:
    """latest.pt, with the one before kept as previous.pt. A kill at any moment leaves at least one whole file."""
    latest, previous = folder / "latest.pt", folder / "previous.pt"
    record = {"format": FORMAT, "digest": digest(state), "state": state}

    def write(temporary: Path) -> None:
        torch.save(record, temporary)
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())  # the new one is safe before the old one moves
        if latest.exists():
            latest.replace(previous)

    with room_on_disk(folder):
        write_atomically(latest, write)


@contextmanager
def room_on_disk(folder: Path) -> Iterator[None]:
    """Each library words a full disk its own way (torch: "unexpected pos"); the user is told what it is."""
    try:
        yield
    except (OSError, RuntimeError, SafetensorError) as error:
        told = getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or "No space left" in str(error)
        if told or (isinstance(error, RuntimeError) and "inline_container" in str(error)):
            raise DiskFull(
                f"the disk is full, or there is a quota: {folder} could not be written. The checkpoint before is "
                "intact; make room and give the same command again."
            ) from error
        raise


def load_state(folder: Path) -> dict[str, Any] | None:
    """The newest whole state; a damaged one is passed over with a notice. None where there is none at all."""
    latest, previous = folder / "latest.pt", folder / "previous.pt"
    if not latest.exists() and not previous.exists():
        return None
    damage: list[UserError] = []
    for path in (path for path in (latest, previous) if path.exists()):
        try:
            state = read_state(path)
        except UserError as error:
            damage.append(error)
            continue
        if damage:
            warn(f"{damage[0]} Falling back to the checkpoint before it.")
            latest.replace(folder / "damaged.pt")  # or else the next one saved would push it over the good one
        return state
    reasons = " ".join(str(error) for error in damage)
    raise UserError(f"{reasons} No checkpoint in {folder} can be read; remove the run directory to start again.")


def load_for_all(folder: Path) -> dict[str, Any] | None:
    """`load_state` by the first process, for all of them: they agree on one state and need no common file system."""
    state: dict[str, Any] | None = None
    with processes.together():
        if processes.rank() == 0:
            state = load_state(folder)
    if processes.world_size() == 1 or not processes.agree(state is not None):
        return state
    buffer = io.BytesIO()
    if processes.rank() == 0:
        torch.save(state, buffer)
    return torch.load(io.BytesIO(processes.broadcast(buffer.getvalue())), map_location="cpu", weights_only=True)


def _reason(error: Exception) -> str:
    """The first sentence: torch goes on with advice that would open files of strangers."""
    text = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return text.split(". ")[0].rstrip(".")


def read_state(path: Path) -> dict[str, Any]:
    try:
        record = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise UserError(f"{path} is damaged or no osiris checkpoint ({_reason(error)}).") from error
    if not isinstance(record, dict) or record.get("format") != FORMAT or "state" not in record:
        raise UserError(f"{path} is no osiris checkpoint of this version.")
    if digest(record["state"]) != record["digest"]:
        raise UserError(f"{path} is damaged: its checksum does not match.")
    return record["state"]


def save_tensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, Any] | None = None) -> None:
    """A safetensors file; metadata as one JSON text."""
    plain = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    text = {"osiris": json.dumps(metadata or {}, sort_keys=True)}
    with room_on_disk(path.parent):
        write_atomically(path, lambda temporary: save_file(plain, temporary, text))


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    try:
        with safe_open(path, framework="pt") as file:
            metadata = json.loads((file.metadata() or {}).get("osiris", "{}"))
            return {name: file.get_tensor(name) for name in file.keys()}, metadata  # noqa: SIM118
    except FileNotFoundError:
        raise UserError(f"{path} does not exist.") from None
    except (SafetensorError, OSError, json.JSONDecodeError) as error:
        raise UserError(f"{path} is damaged or no safetensors file ({error}).") from error
