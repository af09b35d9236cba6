"""Video files: some of their frames as image files, whose names say where in the video they are.

Frames are written once, to the cache, and every command takes their folder for the video. A camera that never stops is
not a file: record it in pieces.
"""

from __future__ import annotations

import math
import shutil
import tempfile
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

from PIL import Image

from osiris.console import notice, printable, progress
from osiris.data.source import hash_lines, stamp
from osiris.errors import UserError, install_extra
from osiris.files import cache_directory

EXTENSIONS = (".mp4", ".m4v", ".mov", ".mkv", ".webm", ".avi", ".mpg", ".mpeg", ".mts", ".m2ts", ".wmv", ".3gp")
EVERY = 1.0
"""Seconds between two frames, unless `--every` says otherwise."""
SIDE = 512
"""Frames are written with a short side of at most so many pixels."""
NOTICES = ".notices"
"""A file that no listing of images shows."""


def is_video(path: Path) -> bool:
    return path.suffix.lower() in EXTENSIONS and path.is_file()


def frames_of(path: Path, every: float = EVERY) -> Path:
    """The folder with a frame of the video for every so many seconds; a path that is no video as it is."""
    if not is_video(path):
        return path
    if not every > 0 or not math.isfinite(every):
        raise UserError(f"--every {every}: give the seconds between two frames, a positive number.")
    key = hash_lines([str(path.resolve()), stamp(path), repr(every), str(SIDE)])[:12]
    place = cache_directory() / "video" / f"{path.stem}-{key}"
    if not place.is_dir():
        place.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=".", dir=place.parent))
        try:
            _write(path, every, temporary)
            if not place.is_dir():  # another process may have been faster
                temporary.rename(place)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    text = (place / NOTICES).read_text(encoding="utf-8")
    notice(*text.splitlines())
    return place


def _write(path: Path, every: float, folder: Path) -> None:
    try:
        import av
    except ImportError:
        raise UserError(f"{path} is a video: install PyAV to read it ({install_extra('video')}).") from None
    shown, count, last, broken = printable(str(path)), 0, 0.0, []
    try:
        container = av.open(str(path))
    except (OSError, ValueError) as error:  # av.FFmpegError is both, by kind
        raise UserError(f"{shown} cannot be read as a video: {_reason(error)}.") from None
    with container:
        if not container.streams.video:
            raise UserError(f"{shown} has no pictures, only sound.")
        stream = container.streams.video[0]
        stream.thread_type = "AUTO"
        total = float(container.duration or 0) / 1e6
        with progress(f"reading {path.name}", max(1, math.ceil(total / every))) as ticker:
            for number, time, frame in _frames(container, stream, broken):
                last = max(last, time)
                if time < count * every and count:
                    continue
                try:
                    image = upright(frame)
                    image.save(folder / f"{path.stem} {time_code(time)} frame {number}.jpg", quality=92)
                except (OSError, ValueError, MemoryError) as error:
                    broken.append(_reason(error))
                    continue
                count = max(count + 1, math.floor(time / every) + 1)
                ticker.advance()
    if not any(folder.glob("*.jpg")):
        raise UserError(
            f"no frame of {shown} can be decoded{f' ({broken[0]})' if broken else ''}. Was it copied completely?"
        )
    notices = []
    if broken:
        notices.append(f"{shown} is damaged in {len(broken)} place(s) ({broken[0]}): the frames around them are used.")
    if total and last < total - max(2.0, 2 * every):
        notices.append(f"{shown} says that it lasts {time_code(total)}, but ends at {time_code(last)}.")
    (folder / NOTICES).write_text("\n".join(notices), encoding="utf-8")


def _frames(container: Any, stream: Any, broken: list[str]) -> Iterator[tuple[int, float, Any]]:
    """(number, seconds from the first one, frame) of all frames that can be decoded. What is damaged is skipped."""
    number, first = 0, None
    rate = stream.average_rate or Fraction(25)
    packets = container.demux(stream)
    while True:
        try:
            packet = next(packets)
        except StopIteration:
            return
        except (OSError, ValueError) as error:  # the rest of the file cannot be read
            broken.append(_reason(error))
            return
        try:
            decoded = packet.decode()
        except (OSError, ValueError) as error:
            broken.append(_reason(error))
            continue
        for frame in decoded:
            time = float(frame.time) if frame.time is not None else float(number / rate)
            first = time if first is None else first
            yield number, max(0.0, time - first), frame
            number += 1


def upright(frame: Any) -> Image.Image:
    """As it is shown: turned as the file says, in RGB, with a short side of at most SIDE pixels."""
    image: Image.Image = frame.to_image()
    turn = round(float(getattr(frame, "rotation", 0) or 0)) % 360
    if turn:
        image = image.rotate(turn, expand=True)
    side = min(image.size)
    if side > SIDE:
        image = image.resize((round(image.width * SIDE / side), round(image.height * SIDE / side)))
    return image


def time_code(seconds: float) -> str:
    """`01-02-03.040`, which sorts in time and is allowed in the name of a file."""
    milliseconds = round(1000 * seconds)
    minutes, rest = divmod(milliseconds, 60_000)
    return f"{minutes // 60:02d}-{minutes % 60:02d}-{rest // 1000:02d}.{rest % 1000:03d}"


def _reason(error: Exception) -> str:
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return printable(str(text)).rstrip(".")
