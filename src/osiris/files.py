"""Atomic files: a reader sees the old content or the new one, never half of it."""

from __future__ import annotations

import contextlib
import csv
import errno
import io
import json
import math
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec
from safetensors import SafetensorError, safe_open

from osiris.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor


FORMULA = re.compile(r"[=@\t\r]|[+-](?![\d.\s]|$)")
"""What a spreadsheet evaluates; numbers with a sign are none."""


class Missing(UserError):
    """A file that is not there, or not there any more."""


def cache_directory() -> Path:
    """OSIRIS_CACHE, else `osiris` in XDG_CACHE_HOME, else ~/.cache/osiris. Empty and relative XDG paths are ignored."""
    if given := os.environ.get("OSIRIS_CACHE"):
        return Path(given).expanduser()
    standard = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (standard if standard.is_absolute() else Path.home() / ".cache") / "osiris"


def open_regular(path: Path) -> BinaryIO:
    """Open a file for reading. What is not a file is refused: reading a pipe would take forever."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise UserError(f"{path} is not a regular file.")
    return os.fdopen(descriptor, "rb")


def read_bytes(path: Path) -> bytes:
    with open_regular(path) as file:
        return file.read()


def open_to_append(path: Path) -> BinaryIO:
    """Open a file for reading and appending, or create it; nothing is written through a hard link, or into a pipe."""
    make_own(path)
    if path.exists() and not path.is_file():
        raise UserError(f"{path} is not a regular file.")
    return path.open("a+b")


def make_own(path: Path) -> None:
    """Before a file is appended to or cut: if it has other names (hard links, as in a backup by `cp -al`), this name
    gets a copy of its own, and they keep what they have."""
    with contextlib.suppress(FileNotFoundError):
        if path.stat().st_nlink > 1:
            write_atomically(path, lambda temporary: shutil.copyfile(path, temporary))


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a temporary file beside `path`, flush it to the disk, then move it into place."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        temporary.touch(exist_ok=False)  # readable for others as the umask says
        write(temporary)
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        error.filename = str(path)  # libraries name no file, or the temporary one
        raise
    finally:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()


def require_writable(folder: Path) -> None:
    """Refuse an output folder that cannot be created or written, before any work is done."""
    existing = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    if not existing.is_dir():
        raise UserError(f"cannot write to {folder}: {existing} is a file. Choose another --out.")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise UserError(f"cannot write to {folder}: permission denied for {existing}. Choose another --out.")


def write_text(path: Path, text: str) -> None:
    write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def csv_text(rows: Iterable[Iterable[object]]) -> str:
    """Names come from run directories, also received ones: a spreadsheet must not take one for a formula."""
    text = io.StringIO()
    plain = (["'" + cell if isinstance(cell, str) and FORMULA.match(cell) else cell for cell in row] for row in rows)
    csv.writer(text, lineterminator="\n").writerows(plain)
    return text.getvalue()


def write_csv(path: Path, rows: Iterable[Iterable[object]]) -> None:
    write_text(path, csv_text(rows))


def write_json(path: Path, value: Any) -> None:
    """Sorted keys and repr floats: the same value gives the same bytes."""
    write_text(path, json.dumps(value, indent=1, sort_keys=True, allow_nan=False) + "\n")


def read_json(path: Path, finite: bool = True) -> Any:
    """`finite`: refuse numbers that are not finite, which `write_json` could not write again."""
    number = _finite if finite else float
    try:
        return json.loads(read_bytes(path).decode(), parse_float=number, parse_constant=number)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"it has a number that is not finite, {text[:20]}")
    return value


def flat(record: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested objects as one: `{"learning": {"epochs": 2}}` becomes `{"learning.epochs": 2}`."""
    entries: dict[str, Any] = {}
    for name, value in record.items():
        entries |= flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return entries


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors of a safetensors file on the CPU, and what osiris recorded with them."""
    with _opened(path) as file:
        return {name: file.get_tensor(name) for name in file.keys()}, _metadata(file)  # noqa: SIM118


def load_metadata(path: Path) -> dict[str, Any]:
    """What osiris recorded with the tensors of a safetensors file, without reading these."""
    with _opened(path) as file:
        return _metadata(file)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """A safetensors file. The library reports every failure to open it as a file that is missing, so it is opened
    before: an error of the system stays what it is."""
    try:
        with open_regular(path), safe_open(path, framework="pt") as file:
            yield file
    except FileNotFoundError:
        if path.exists():
            raise OSError(errno.EIO, "it cannot be opened", str(path)) from None
        raise Missing(f"{path} does not exist.") from None
    except UserError:
        raise
    except (SafetensorError, ValueError, RecursionError) as error:
        raise UserError(f"{path} is damaged or not a safetensors file ({error}).") from error


def _metadata(file: Any) -> dict[str, Any]:
    return msgspec.json.decode((file.metadata() or {}).get("osiris", "{}"), type=dict)


def save_tensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, Any] | None = None) -> None:
    """A safetensors file; the metadata is one JSON text."""
    from safetensors.torch import save_file  # imports torch

    plain = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    text = {"osiris": json.dumps(metadata or {}, sort_keys=True)}
    write_atomically(path, lambda temporary: save_file(plain, temporary, text))
