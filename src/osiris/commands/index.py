"""Commands on the index of a state: `osiris index`, `search`, `duplicates` and `novel`."""

from __future__ import annotations

import io
import json as json_module
import math
import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from rich.markup import escape
from rich.table import Table
from tyro.conf import Positional

from osiris.commands import command, typed_encoder
from osiris.console import console, duration, notice, printable, say
from osiris.data.images import UndecodableImage, decode
from osiris.data.video import EVERY, frames_of
from osiris.errors import UserError
from osiris.files import require_writable, write_atomically
from osiris.index.store import absolute
from osiris.learner import Learner
from osiris.learner.duplicates import Twin, TwinGroup
from osiris.reporting.benchmark_images import contact_sheet

THUMBNAIL = 128
Noted = tuple[Path, str]
"""An image of a contact sheet, and what stands below its name."""
COLUMNS = 6
"""Images per row of a contact sheet."""
MOST_GROUPS = 12
"""On a contact sheet."""


@command("index")
def index_command(
    state: Positional[Path],
    folders: Positional[tuple[Path, ...]] = (),
    refresh: bool = False,
    minutes: float | None = None,
    recall: float = 0.95,
    every: float = EVERY,
    encoder: str | None = None,
    json: bool = False,
) -> None:
    """Make or update the index of all images below some folders, by which `osiris search` finds them.

    Only new and changed files are embedded; files that are gone are marked. After an episode of `osiris observe`, a
    sample of the files is embedded again and the vectors of the others are mapped. What was embedded before an
    interruption is kept: repeat the command to continue.

    Examples:
      osiris index state photos
      osiris index state clips/2026-11.mp4                a frame of each second, by its time in the video
      osiris index state photos --refresh --minutes 10    embed again what an earlier encoder embedded

    Args:
        state: The directory of a state or of a finished run; the index is the folder `index` in it.
        folders: Folders of images, at any depth, or video files. Only files below them are read.
        refresh: Embed files of earlier versions of the encoder again, the oldest versions first.
        minutes: Stop after this time; the next call continues. None means no limit.
        recall: Say how many images to embed again if the estimated recall@10 of mapped vectors is lower.
        every: Of a video: seconds between two frames.
        encoder: For a state whose encoder is your own: `package.module:function`, as it was given to `osiris observe`
            or `osiris train`.
        json: Print what was done as JSON.
    """

    if not 0 <= recall <= 1:
        raise UserError(f"--recall {recall}: give a number from 0 to 1.")
    if minutes is not None and not minutes > 0:
        raise UserError(f"--minutes {minutes}: give a positive number.")
    learner = Learner(state, encoder=typed_encoder(encoder))
    done = learner.index(tuple(frames_of(one, every) for one in folders), refresh, minutes)
    status = learner.index_status()
    assert status is not None
    notice(*done.notices)
    if json:
        print_json(done=done, index=status)
    else:
        counts = [(done.new, "new"), (done.changed, "changed"), (done.unchanged, "unchanged")]
        counts += [(done.found, "found again"), (done.copies, "copies of known files"), (done.gone, "gone")]
        counts += [(done.again, "embedded again"), (sum(done.left_out.values()), "left out")]
        say(", ".join(f"{count:,} {name}" for count, name in counts if count) or "no images")
        say(str(status))
    shown = shlex.join(map(str, (state, *folders)))
    if done.gone:
        notice(
            f"{done.gone:,} files are gone. They are not searched, and are known again if they come back; "
            f"`osiris forget {shlex.quote(str(state))} FOLDER` removes what the index has of a folder."
        )
    if done.waiting:
        notice(f"the time was too short for {done.waiting:,} images: osiris index {shown} continues.")
    if poor := status.below(recall):
        expected = poor * (done.seconds_per_image or 0)
        limit = f" --minutes {math.ceil(expected / 60)}" if expected else ""
        about = f", about {duration(expected)}" if expected else ""
        notice(f"embed again: {poor:,} images{about}: osiris index {shown} --refresh{limit}")


@command("search")
def search_command(
    state: Positional[Path],
    places: Positional[tuple[Path, ...]],
    count: int = 12,
    out: Path | None = None,
    encoder: str | None = None,
    json: bool = False,
) -> None:
    """Find the images whose features are nearest to those of one image: `osiris search STATE [FOLDER ...] IMAGE`.

    Searches the index of the state (`osiris index`), or what it has below the given folders; folders that are not in
    the index are embedded now. Prints a table of files and cosine similarities. With folders, the images found are
    drawn on a contact sheet: only files below folders of this call are opened.

    Examples:
      osiris search state cat.jpg
      osiris search state photos cat.jpg --count 30 --out cats.png
      osiris search state cat.jpg --json

    Args:
        state: The directory of a state or of a finished run.
        places: The image to search for; before it, folders in which to search.
        count: How many images to find.
        out: The contact sheet: the query, then the images found, in order. None means search.png; none with --json.
        encoder: For a state whose encoder is your own: `package.module:function`, as it was given to `osiris observe`
            or `osiris train`.
        json: Print the images found as JSON.
    """

    if not places:
        raise UserError("give the image to search for: osiris search STATE [FOLDER ...] IMAGE.")
    *folders, query = places
    sheet = _sheet(out, "search.png", json, folders)
    if count < 1:
        raise UserError(f"--count {count}: give a positive number.")
    if not query.is_file():
        problem = "is not a file" if query.exists() else "does not exist"
        raise UserError(f"{query} {problem}; give the image to search for.")
    learner = Learner(state, encoder=typed_encoder(encoder))
    found = learner.search(query, folders, count)
    notice(*found.notices, *_mapped(learner))
    if json:
        print_json(query=query, searched=found.searched, hits=found.hits)
    else:
        rows = [(relative(hit.path), f"{hit.similarity:.3f}") for hit in found.hits]
        print_table(f"nearest to {query}, of {found.searched:,} images", ("image", "similarity"), rows)
    rows = {"query": [(query, "")]} | _in_rows([(hit.path, f"{hit.similarity:.3f}") for hit in found.hits])
    _draw(sheet, rows, [*folders, query])


@command("duplicates")
def duplicates_command(
    state: Positional[Path],
    folders: Positional[tuple[Path, ...]] = (),
    out: Path | None = None,
    encoder: str | None = None,
    json: bool = False,
) -> None:
    """Find images that the index has twice: the same bytes, the same picture, series, and pictures that look alike.

    The same picture was compressed again, resized, or turned by EXIF; this is decided on pixels, without the encoder.
    A series was taken within seconds (or has consecutive names where no time is known) and looks alike. Look-alikes are
    more similar to the first of their group than almost any two images of different folders. Copies of the first two
    kinds could go; the best one of each group (pixels, then bytes, then date) stays and stands first.

    Examples:
      osiris duplicates state
      osiris duplicates state photos --out duplicates.png
      osiris duplicates state --json

    Args:
        state: The directory of a state or run with an index (`osiris index`).
        folders: Compare only the images of the index below these folders; only these are opened.
        out: The contact sheet, one group per row. None means duplicates.png; none with --json.
        encoder: For a state whose encoder is your own: `package.module:function`, as it was given to `osiris observe`
            or `osiris train`.
        json: Print all groups as JSON.
    """

    sheet = _sheet(out, "duplicates.png", json, folders)
    learner = Learner(state, encoder=typed_encoder(encoder))
    found = learner.duplicates(folders)
    notice(*found.notices, *_mapped(learner))
    if json:
        print_json(could_go=found.could_go, cosine=found.cosine, groups=found.groups)
    else:
        for number, group in enumerate(found.groups, 1):
            say(f"{number}  {group.kind}")
            for twin in group.images:
                say(f"    {_described(twin, group)}")
        counts = Counter(group.kind for group in found.groups)
        kinds = ", ".join(f"{count} of {kind}" for kind, count in counts.items())
        say(f"{len(found.groups)} groups{kinds and f' ({kinds})'}; {found.could_go} images could go")
    rows = {
        f"{number} {group.kind} ({len(group.images)})": [(twin.path, _size(twin)) for twin in group.images[:COLUMNS]]
        for number, group in enumerate(found.groups[:MOST_GROUPS], 1)
    }
    _draw(sheet if found.groups else None, rows, folders)
    if sheet is not None and len(found.groups) > MOST_GROUPS:
        notice(f"the contact sheet has the first {MOST_GROUPS} groups; {len(found.groups) - MOST_GROUPS} are left out.")


def _described(twin: Twin, group: TwinGroup) -> str:
    size = f"{twin.width} x {twin.height}, {twin.bytes:,} bytes" + (f", {twin.taken}" if twin.taken else "")
    alike = (
        f", similarity {twin.similarity:.3f}"
        if group.kind in ("a series", "look-alikes") and twin is not group.images[0]
        else ""
    )
    return f"{relative(twin.path)}  {size}{alike}{', could go' if twin.could_go else ''}"


def _size(twin: Twin) -> str:
    return f"{twin.width} x {twin.height}{', could go' if twin.could_go else ''}"


def relative(path: Path) -> str:
    """To the current directory, if it is below it."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


@command("novel")
def novel_command(
    state: Positional[Path],
    folder: Positional[Path],
    count: int = 12,
    out: Path | None = None,
    every: float = EVERY,
    encoder: str | None = None,
    json: bool = False,
) -> None:
    """List the images of a folder or a video, those least like the images of the index first.

    Examples:
      osiris novel state photos/2027-01
      osiris novel state photos/2027-01 --count 30 --json
      osiris novel state clips/2027-01.mp4                 what is new, and when in the video

    Args:
        state: The directory of a state or run with an index (`osiris index`).
        folder: The new images, or a video file. Those that are in the index themselves are compared with the others in
            it.
        count: How many images to show, the least similar ones first.
        out: The contact sheet. None means novel.png; none with --json.
        every: Of a video: seconds between two frames.
        encoder: For a state whose encoder is your own: `package.module:function`, as it was given to `osiris observe`
            or `osiris train`.
        json: Print the images as JSON.
    """

    folder = frames_of(folder, every)
    sheet = _sheet(out, "novel.png", json, [folder])
    if count < 1:
        raise UserError(f"--count {count}: give a positive number.")
    learner = Learner(state, encoder=typed_encoder(encoder))
    images, notices = learner.novel(folder)
    notice(*notices, *_mapped(learner))
    if json:
        print_json(images=images[:count])
    else:
        rows = [(relative(one.path), f"{one.similarity:.3f}", relative(one.nearest)) for one in images[:count]]
        print_table(f"least like the index, of {len(images):,}", ("image", "similarity", "to"), rows)
    _draw(sheet, _in_rows([(one.path, f"{one.similarity:.3f}") for one in images[:count]]), [folder])


def _mapped(learner: Learner) -> list[str]:
    """What to know about vectors of earlier versions."""
    status = learner.index_status()
    return [] if status is None else [str(one) for one in status.versions if not one.current]


def print_json(**values: Any) -> None:
    """On standard output. Paths are strings; other characters than ASCII are escaped."""

    plain = msgspec.to_builtins(values, enc_hook=str)
    print(json_module.dumps(plain, indent=1))


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], numbered: bool = True) -> None:
    table = Table(title=escape(printable(title)) or None)
    for column in ("", *columns) if numbered else columns:
        left = column in ("image", "to", "tag", "surest")
        table.add_column(column, justify="left" if left else "right", overflow="fold")
    for place, row in enumerate(rows, 1):
        table.add_row(*([str(place)] if numbered else []), *map(printable, row))
    console.print(table, markup=False)


def _sheet(out: Path | None, default: str, json: bool, folders: Sequence[Path]) -> Path | None:
    """Where the contact sheet goes; None if there is to be none."""
    if out is None and (json or not folders):
        return None
    out = out or Path(default)
    if out.suffix.lower() not in (".png", ".jpg", ".jpeg", ".webp"):
        raise UserError(f"--out {out}: the contact sheet is an image; use a name that ends in .png or .jpg.")
    if not folders:
        raise UserError(f"--out {out}: name the folders of the images too; only files below them are opened.")
    require_writable(out.parent)
    return out


def _in_rows(paths: list[Noted]) -> dict[str, list[Noted]]:
    starts = range(0, len(paths), COLUMNS)
    return {f"{start + 1} to {min(start + COLUMNS, len(paths))}": paths[start : start + COLUMNS] for start in starts}


def _draw(out: Path | None, rows: dict[str, list[Noted]], named: Sequence[Path]) -> None:
    """A contact sheet, with name and note below each image. Files that are not `named` and not below a named folder are
    not opened: an index may come from somebody else."""

    if out is None:
        return
    allowed = [absolute(one) for one in named]

    def thumbnail(path: Path) -> np.ndarray:
        place = absolute(path)
        try:
            if not any(place == one or place.startswith(one.rstrip("/") + "/") for one in allowed):
                raise UndecodableImage("it is in no folder of this call")
            return decode(path, THUMBNAIL)
        except UndecodableImage as error:
            notice(f"{path} cannot be read any more ({error}); its place on the contact sheet is grey.")
            return np.full((3, THUMBNAIL, THUMBNAIL), 128, dtype=np.uint8)

    images = [torch.from_numpy(np.stack([thumbnail(path) for path, _ in row])) for row in rows.values()]
    captions = [[f"{printable(path.name)}\n{note}".replace("\t", " ") for path, note in row] for row in rows.values()]
    sheet = contact_sheet(images, [*rows], scale=1, captions=captions)
    kind = {".jpg": "JPEG", ".jpeg": "JPEG"}.get(out.suffix.lower(), out.suffix[1:].upper())
    content = io.BytesIO()  # on a full disk, Pillow raises errors of many types
    sheet.save(content, kind)
    write_atomically(out, lambda temporary: temporary.write_bytes(content.getvalue()))
    say(f"contact sheet: {out}")
