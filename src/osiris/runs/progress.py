"""progress.json: which episodes a run has, where it stands, and which files belong to that.

It is written last: a file that it does not name does not belong to the run. Readers read it, then what it names; if
that has vanished meanwhile, another process has written, and they read it again (`consistent`).
"""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from msgspec import Meta, field
from msgspec.structs import replace

from osiris.data.benchmark import TaskContent
from osiris.data.config import LARGEST_SIDE
from osiris.errors import UserError
from osiris.evaluation.encoder_files import Deviation, Mean
from osiris.evaluation.scores import Record, read_record, write_record
from osiris.files import Missing
from osiris.runs.directory import START, EpisodeFolder, RunDirectory, folder_name

FORMAT = 4
LARGEST = 2**53
"""The largest count: a file with a larger one was not written by a run."""
ATTEMPTS = 10
"""To read a run that another process changes meanwhile."""

Count = Annotated[int, Meta(ge=0, le=LARGEST)]
FolderName = Annotated[str, Meta(pattern=r"^\d{2,9}-[A-Za-z0-9+-][A-Za-z0-9.+-]{0,79}$")]
Result = TypeVar("Result")

Stage = Literal["train", "curve", "end", "evaluate"]
"""The stage of an episode. curve: an evaluation between two steps; end: all steps are done, not the episode's end."""


class OtherFormat(UserError):
    """A file of another version of osiris. It is intact: nothing may replace it."""


@dataclass
class Position:
    """Where a run stands: an episode, a stage of it, and the steps done in it."""

    task: Count = 0
    stage: Stage = "train"
    step: Count = 0
    bad_steps: Count = 0
    seconds: Annotated[float, Meta(ge=0)] = 0.0
    """Time so far, over all starts."""
    refused: list[Count] = dataclasses.field(default_factory=list)
    """Episodes at whose end the encoder stayed what it was before them."""

    @property
    def between(self) -> bool:
        """At the end of an episode, before the next one."""
        return self.step == 0 and self.stage == "train"

    @property
    def episode(self) -> int:
        """The episode that is being learned, or that has just ended."""
        return self.task - 1 if self.between and self.task else self.task


class KnownEpisode(Record, frozen=True, kw_only=True):
    """An episode that is learned, is being learned, or (with `osiris train`) is to come."""

    folder: FolderName
    name: str
    train: Count
    test: Count
    order: str

    @property
    def content(self) -> TaskContent:
        """In this order: digests depend on it."""
        return TaskContent(name=self.name, train=self.train, test=self.test, order=self.order)


class Saved(Record, frozen=True, kw_only=True):
    """A state on disk, and where the run stood."""

    file: Annotated[str, Meta(pattern=r"^\d{2,9}-[A-Za-z0-9+-][A-Za-z0-9.+-]{0,79}/state-\d{6,16}\.pt$")]
    """In the folder of episodes. A number is never used again."""
    digest: Annotated[str, Meta(pattern="^[0-9a-f]{32}$")]
    position: Position
    log: Count
    """Length of log.jsonl in bytes."""
    memory: list[Count]
    """Images in the memory, by episode."""


class Progress(Record, frozen=True, kw_only=True):
    """All that is known about a run without its weights, its memory and its numbers."""

    format: int
    counter: Count = 0
    """Of the states that were saved."""
    episodes: list[KnownEpisode] = field(default_factory=list)
    saved: list[Saved] = field(default_factory=list)
    """The newest state, and the one before it, with which a run continues if the newest is damaged."""
    back: Saved | None = None
    """The state at the end of the episode before, with which `osiris observe` can take the last one back."""
    taken_back: bool = False
    """Whether an episode was taken back, and none was begun since."""
    start: bool = False
    """Whether the run started from a pretrained encoder, whose files are in episodes/00-start."""
    settings: dict[str, Any] = field(default_factory=dict)
    """The config, flat, without what may change."""
    planned: Annotated[int, Meta(ge=1, le=LARGEST)] = 1
    """The number of episodes that were known when the run was opened: the weight of ewc depends on it."""
    mean: tuple[Mean, Mean, Mean] = (0.5, 0.5, 0.5)
    std: tuple[Deviation, Deviation, Deviation] = (0.5, 0.5, 0.5)
    """Channel statistics that images are normalised with."""
    architecture: dict[str, Any] = field(default_factory=dict)
    """The description from which an encoder that osiris does not define is built."""
    memory_size: Count = 0
    image_size: Annotated[int, Meta(ge=0, le=LARGEST_SIDE)] = 0
    reference: str | None = None
    """The folder of labelled images that was named last."""

    @property
    def position(self) -> Position:
        return self.saved[0].position if self.saved else Position()

    @property
    def finished(self) -> int:
        """Episodes that are learned."""
        return self.position.task

    @property
    def begun(self) -> int:
        """Episodes of which something was saved."""
        return self.position.episode + 1 if self.saved else 0

    @property
    def coming(self) -> bool:
        return self.finished < len(self.episodes)

    @property
    def contents(self) -> list[TaskContent]:
        return [one.content for one in self.episodes]

    @property
    def unfinished(self) -> TaskContent | None:
        """The first known episode that is not learned: the one that was interrupted, or (`osiris train`) the next."""
        return self.contents[self.finished] if self.coming else None

    @property
    def states(self) -> list[Saved]:
        """Those that belong to the run, the newest first."""
        return [*self.saved, *([] if self.back is None or self.back in self.saved else [self.back])]

    @property
    def folders(self) -> list[str]:
        """Those of the start and of the episodes that were begun."""
        return [START] * self.start + [one.folder for one in self.episodes[: self.begun]]

    def with_state(self, state: Saved, way_back: bool) -> Progress:
        """After a save. The way back stays until something of a new episode is saved."""
        older = [one for one in self.states if one.position.task <= state.position.task]
        ends = [one for one in older if one.position.between and one.position.task == state.position.episode]
        back = next(iter(ends), None) if way_back else None
        return replace(self, counter=self.counter + 1, saved=[state, *older[:1]], back=back, taken_back=False)

    def without_last(self) -> Progress:
        """Before the last episode that was begun."""
        assert self.back is not None
        kept = self.episodes[: self.back.position.task]
        return replace(self, episodes=kept, saved=[self.back], back=None, taken_back=True)


def known_episodes(contents: list[TaskContent]) -> list[KnownEpisode]:
    return [KnownEpisode(folder=folder_name(task, one["name"]), **one) for task, one in enumerate(contents)]


def read_progress(directory: RunDirectory) -> Progress | None:
    """None if nothing was saved."""
    try:
        progress = read_record(directory.progress, Progress)
    except Missing:
        return None
    if progress.format != FORMAT:
        newer = progress.format > FORMAT
        text = "a newer version of osiris" if newer else "a version of osiris before its first release"
        advice = "update osiris" if newer else "start a new run or state"
        raise OtherFormat(
            f"{directory.progress} was written by {text} (format {progress.format}, not {FORMAT}): {advice}."
        )
    _check(directory.progress, progress)
    return progress


def _check(path: Path, progress: Progress) -> None:
    """Refuse what cannot be true, before anything relies on it."""
    known = len(progress.episodes)
    folders = [one.folder for one in progress.episodes]
    for saved in progress.states:
        position = saved.position
        if position.task > known or (position.task == known and not position.between) or len(saved.memory) > known:
            raise UserError(f"{path} is not that of a run: it stands in task {position.task + 1} of {known}.")
        if saved.file.split("/")[0] not in folders or sum(saved.memory) > progress.memory_size:
            raise UserError(f"{path} is not that of a run: {saved.file} does not belong to it.")
    if len(set(folders)) < known or START in folders:
        raise UserError(f"{path} is not that of a run: two episodes have one folder.")


def write_progress(directory: RunDirectory, progress: Progress) -> None:
    """Write progress.json, then remove what it does not name."""
    write_record(directory.progress, progress)
    remove_unnamed(directory, progress)


def remove_unnamed(directory: RunDirectory, progress: Progress | None) -> None:
    """What a kill in the middle of writing, or an episode that was taken back, has left behind."""
    named = set() if progress is None else set(progress.folders)
    states = set() if progress is None else {one.file for one in progress.states}
    for folder in directory.episodes.iterdir() if directory.episodes.is_dir() else ():
        if folder.name not in named:
            _remove(folder)
            continue
        for file in (*folder.glob("state-*.pt"), *folder.glob(".*.tmp"), *(folder / "points").glob(".*.tmp")):
            if f"{folder.name}/{file.name}" not in states:
                _remove(file)
    for leftover in directory.path.glob(".*.tmp"):
        _remove(leftover)


def _remove(item: Path) -> None:
    whole = item.is_dir() and not item.is_symlink()
    shutil.rmtree(item) if whole else item.unlink(missing_ok=True)


def consistent(directory: RunDirectory, read: Callable[[Progress | None], Result]) -> Result:
    """What `read` makes of the files that progress.json names. If one has vanished or does not fit, progress.json may
    have been replaced meanwhile: then both are read again."""
    for attempt in range(ATTEMPTS):
        progress = read_progress(directory)
        try:
            return read(progress)
        except UserError:
            if attempt + 1 == ATTEMPTS or read_progress(directory) == progress:
                raise
    raise AssertionError("the last attempt returns or raises")


def episode_folder(directory: RunDirectory, progress: Progress, task: int) -> EpisodeFolder:
    return directory.episode(progress.episodes[task].folder)
