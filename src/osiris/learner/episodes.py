"""Which images `Learner.observe` was given, and whether they can be the next episode."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

from osiris.console import notice
from osiris.data.benchmark import Benchmark, grown
from osiris.data.config import BenchmarkConfig
from osiris.data.folder import Listing
from osiris.data.load import episode_from
from osiris.data.source import natural
from osiris.errors import UserError
from osiris.runs.directory import RunDirectory
from osiris.runs.progress import Progress

CAMERA = re.compile("[1-9][0-9]{2}[A-Z0-9_]{5}")
"""Folders below DCIM, as the standard of cameras names them."""


class Learned(Exception):
    """The images are those of an earlier episode of the same name: there is nothing to do."""


def check_folder(state: Path, images: Any, name: str | None) -> None:
    """Refuse what cannot be a folder of images, before anything is written."""
    if not isinstance(images, str | Path):
        return
    folder, usage = Path(images).expanduser(), "Use: osiris observe STATE FOLDER."
    if RunDirectory(folder).config.exists():
        raise UserError(f"{folder} is a state or run, not a folder of images. {usage}")
    if state.is_dir() and not RunDirectory(state).config.exists() and Listing(state).files:
        raise UserError(f"{state} has images in it, but the state needs a directory of its own. {usage}")
    if not folder.exists():
        raise UserError(f"{folder} does not exist; give a folder of images.")
    if not folder.is_dir():
        raise UserError(f"{folder} is a file; give a folder with four or more images.")
    episodes = episodes_in(folder)
    if name is None and len(episodes) > 1 and all(map(_looks_like_episode, episodes)):
        shown = ", ".join(one.name for one in episodes[:3])
        raise UserError(
            f"{folder} has {len(episodes)} folders that look like episodes ({shown}{', ...' * (len(episodes) > 3)}). "
            "Give one of them, or --each to learn from each in order, or --name NAME to take all images as one episode."
        )


def _looks_like_episode(folder: Path) -> bool:
    """Folders of a camera (100MEDIA, 101_PANA) do not: a card has several of one month."""
    return any(map(str.isdigit, folder.name)) and not CAMERA.fullmatch(folder.name)


def episodes_in(folder: Path) -> list[Path]:
    """The folders of images in a folder, in order; none if it has images beside them."""
    parts = Listing(folder).files
    if any(len(part) == 1 for part in parts):
        return []
    return [folder / name for name in sorted({part[0] for part in parts}, key=natural)]


def each_episode(folder: Path) -> list[Path]:
    """What `--each` learns from; refuses a folder in which images would be left out, or that has no images."""
    if episodes := episodes_in(folder):
        return episodes
    loose = [part[0] for part in Listing(folder).files if len(part) == 1]
    if not loose:
        raise UserError(f"{folder} has no images.")
    raise UserError(
        f"{folder} has images that are in none of its folders ({loose[0]}{', ...' * (len(loose) > 1)}): move them "
        "into one, or leave out --each to take all images as one episode."
    )


def episode_size(images: Any) -> int | None:
    """How many images `Learner.observe` was given; damaged ones count too. None if that is not known."""
    if isinstance(images, str | Path):
        return len(Listing(Path(images)).files) or None
    return len(images) if hasattr(images, "__len__") else None


def next_benchmark(known: Progress | None, images: Any, name: str | None, data: BenchmarkConfig) -> Benchmark:
    """The episodes of a state, and the given images as the next one.

    An episode that was interrupted is continued. The same images under the same name as the last finished episode are
    that episode: what a kill left undone is done. Those of an earlier one raise `Learned`. A folder with the images of
    an earlier episode, and another name, is refused unless the name was given.
    """
    past = [] if known is None else known.contents
    done = 0 if known is None else known.finished
    image_size = data.image_size if known is None else known.image_size
    asked, folder = name is not None, isinstance(images, str | Path)
    if name is None:
        name = Path(images).name if isinstance(images, str | Path) else f"episode {done + 1}"
    episode = episode_from(images, name, image_size)
    content = episode.contents[0]
    said = f"{name} is already learned: nothing to do. To learn from it again, give it another name with --name."
    last = done == len(past) and past[-1:] == [content]
    if content in past[:done] and not last:
        raise Learned(said)
    if done < len(past):
        unfinished = past[done]
        if done + 1 < len(past) or content["order"] != unfinished["order"]:
            raise UserError(
                f"episode {done + 1} ({unfinished['name']}) is not finished: give its images again, unchanged, to "
                "finish it first, or leave it with osiris undo STATE (a run of osiris train: use osiris train "
                "--resume)."
            )
        episode = replace(episode, contents=(unfinished,))
    elif last:
        notice(said)
        done -= 1
    else:
        same = [old["name"] for old in past if old["order"] == content["order"]]
        if same and folder and not asked:
            raise UserError(
                f"the images of {name} were learned before, as {', '.join(same)}: nothing to do. To learn from them "
                f"again, give them a name of their own: --name {shlex.quote(name)}."
            )
        if same:
            notice(f"the images of {name} were learned before, as {', '.join(same)}; they are learned again.")
    benchmark = grown(past[:done], episode)
    return replace(benchmark, name=data.benchmark or benchmark.name)  # a run of osiris train keeps its name
