"""What is on disk about the starts, the ends and the progress of a run: written by every launcher, read on any machine
that sees the files. They may be received, and a kill may have cut any line: what does not parse is skipped."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Literal

import msgspec
import psutil

from osiris.files import open_to_append
from osiris.grids.grid import GridDirectory, GridRun
from osiris.runs.directory import RunDirectory
from osiris.runs.records import StepLine, read_line
from osiris.runs.untrusted import harmless

SILENT = 600.0
"""Seconds without a sign of life after which a run on another machine counts as dead."""


CLOCK = 60.0
"""Seconds by which the start of a process and the time of a file may be wrong."""


class JournalEntry(msgspec.Struct, omit_defaults=True):
    """A line of the journal of a run."""

    event: Literal["submit", "start", "end", "drop"]
    time: str = ""
    host: str = ""
    job: str = ""
    """The identifier of the cluster job."""
    code: int = 0
    """The exit code of a run that ended."""
    error: str = ""
    tasks: int = 0
    """The tasks that a trial had learned when a search dropped it."""


def journal_path(directory: GridDirectory, run: GridRun) -> Path:
    return directory.path / "attempts" / f"{run.name}.jsonl"


def record(directory: GridDirectory, run: GridRun, entry: JournalEntry) -> None:
    """Add a line to the journal of a run."""
    journal = journal_path(directory, run)
    journal.parent.mkdir(parents=True, exist_ok=True)
    entry.time = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    cut = _end_of(journal, 1) not in (b"", b"\n")
    with open_to_append(journal) as file:
        file.write(b"\n" * cut + msgspec.json.encode(entry) + b"\n")


def read_journal(directory: GridDirectory, run: GridRun) -> list[JournalEntry]:
    return [*_newest_first(journal_path(directory, run), 2**20)][::-1]


def last_entry(directory: GridDirectory, run: GridRun) -> JournalEntry | None:
    return next(_newest_first(journal_path(directory, run), 2**14), None)


def drop(directory: GridDirectory, run: GridRun, tasks: int) -> None:
    """Record that a search does not train this trial any further."""
    last = last_entry(directory, run)
    if last is None or last.event != "drop":
        record(directory, run, JournalEntry("drop", tasks=tasks))


def last_step(log: Path) -> StepLine:
    """What the log of a run says about its progress; task 0: there is no line yet."""
    for text in reversed(_end_of(log, 2**14).splitlines()):
        with suppress(ValueError):
            if isinstance(line := read_line(text), StepLine):
                return line
    return StepLine(task=0, step=0, terms={})


def in_progress(files: RunDirectory) -> bool:
    """Whether a process holds the run: a live one here, or one elsewhere that wrote to the log lately."""
    words = _end_of(files.lock_file, 200).decode(errors="replace").split()  # process 4711 on HOST
    if len(words) != 4 or not words[1].isdecimal():
        return False
    if words[3] == socket.gethostname():
        try:
            process = psutil.Process(int(words[1]))
            if process.create_time() > files.lock_file.stat().st_mtime + CLOCK:
                return False  # the process was killed, and its number belongs to another one now
            return any("osiris" in word for word in process.cmdline())
        except (psutil.Error, OSError):
            return False
    signs = [path.stat().st_mtime for path in (files.lock_file, files.log) if path.exists()]
    return abs(time.time() - max(signs)) < SILENT


def _newest_first(path: Path, most: int) -> Iterator[JournalEntry]:
    """The entries within the last `most` bytes, without control characters."""
    for line in reversed(_end_of(path, most).splitlines()):
        with suppress(ValueError, RecursionError):
            yield msgspec.convert(harmless(msgspec.json.decode(line)), JournalEntry)


def _end_of(path: Path, most: int) -> bytes:
    """Empty if there is no such file, or if it is something else: reading a pipe would take forever."""
    with suppress(OSError):
        if path.is_file():
            with path.open("rb") as file:
                file.seek(max(0, path.stat().st_size - most))
                return file.read(most)
    return b""
