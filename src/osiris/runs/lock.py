"""One process at a time writes a directory: the file .lock in it, held until its descriptor is closed."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import stat
import time
from pathlib import Path

from osiris.errors import UserError
from osiris.files import make_own

LOCK = ".lock"
NO_LOCK = "OSIRIS_NO_LOCK"
"""The environment variable that every command obeys."""


def lock_directory(path: Path) -> int:
    """Create the directory and its file .lock, and keep other processes out until the descriptor is closed (with
    OSIRIS_NO_LOCK=1, for file systems without locks, nobody is kept out)."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        refuse_links_to_elsewhere(path)
        lock = _open(path)
        while os.environ.get(NO_LOCK) != "1" and not _held(
            lock, path
        ):  # another process, or this one, has put another file in its place
            os.close(lock)
            lock = _open(path)
    except OSError as error:
        raise UserError(f"cannot write to {path}: {error.strerror}. Choose another directory.") from None
    if os.fstat(lock).st_nlink <= 1:
        os.truncate(lock, 0)
        with contextlib.suppress(OSError):  # on a full disk the lock has no name, but it is one
            os.write(lock, f"process {os.getpid()} on {socket.gethostname()}".encode())
    return lock


def _open(path: Path) -> int:
    lock = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
    if not stat.S_ISREG(os.fstat(lock).st_mode):
        os.close(lock)
        raise UserError(f"{path / LOCK} is not a regular file. Remove it.")
    return lock


def _held(lock: int, path: Path) -> bool:
    """Take the lock; whether it is that of the file that is there now."""
    try:
        _acquire(lock, path)
    except UserError:
        os.close(lock)
        raise
    if os.fstat(lock).st_nlink > 1:  # a copy of the directory has the same file, which stays as it is
        make_own(path / LOCK)
    with contextlib.suppress(FileNotFoundError):
        return os.fstat(lock).st_ino == (path / LOCK).stat().st_ino
    return False


def unlock(lock: int) -> None:
    if os.fstat(lock).st_nlink <= 1:
        os.truncate(lock, 0)
    os.close(lock)


def _acquire(lock: int, path: Path) -> None:
    """The kernel releases this lock with its process, so a stale lock file never blocks. After an elastic restart, the
    process before us may need a moment to end."""
    patience = 10.0 if int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) else 0.0
    deadline = time.monotonic() + patience
    while True:
        try:
            return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise UserError(
                    f"the file system of {path} does not support locks ({error.strerror}), so osiris cannot keep other "
                    f"processes out. Choose another directory, or set {NO_LOCK}=1 if you are sure that no other "
                    "process uses this directory: two would overwrite each other's files."
                ) from None
            if time.monotonic() >= deadline:
                holder = os.read(lock, 200).decode(errors="replace").strip() or "another process"
                raise UserError(
                    f"{path} is in use by {holder}. Wait until it ends, or choose another directory."
                ) from None
            time.sleep(0.2)


def refuse_links_to_elsewhere(path: Path) -> None:
    """A received run or grid may hold links to files of the user: writing through them would overwrite those."""
    root = path.resolve()
    for folder, folders, files in os.walk(path):
        for name in (*folders, *files):
            item = Path(folder) / name
            if item.is_symlink() and not item.resolve().is_relative_to(root):
                raise UserError(f"{item} is a link to {item.resolve()}, outside {path}. Remove the link.")
