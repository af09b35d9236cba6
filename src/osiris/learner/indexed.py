"""A state and its index: which encoder is the newest, and vectors that can be compared with what it embeds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import torch

from osiris.devices import open_device
from osiris.errors import UserError
from osiris.evaluation.embedder import Embedder
from osiris.evaluation.fingerprint import json_digest
from osiris.files import Missing, cache_directory, read_json, write_json
from osiris.index.gallery import Gallery, incomparable
from osiris.index.newest import (
    Compared,
    Identity,
    Newest,
    as_compared,
    identity,
    open_embedder,
    read_compared,
    read_newest,
)
from osiris.index.records import Version
from osiris.index.store import Index, absolute
from osiris.index.update import Pairs, follow, forget
from osiris.learner.estimator import Estimator
from osiris.runs.directory import RunDirectory
from osiris.runs.progress import ATTEMPTS, Progress, consistent

if TYPE_CHECKING:
    from osiris.config import Config
    from osiris.runs.run import Run
    from osiris.runs.state import State

Read = TypeVar("Read")


@dataclass(frozen=True)
class Opened:
    """An index, and the encoder whose features can be compared with it."""

    gallery: Gallery
    encoder: Newest
    notices: list[str]
    began: Compared
    """The newest weights when it was opened."""
    index: Path
    """Its folder."""


class Indexed(Estimator):
    """Part of `Learner`."""

    @property
    def config(self) -> Config:
        raise NotImplementedError

    @property
    def run(self) -> Run:
        raise NotImplementedError

    def _state(self) -> State:
        raise NotImplementedError

    @property
    def _files(self) -> RunDirectory:
        return RunDirectory(self.folder)

    @property
    def _device(self) -> torch.device:
        return open_device(self.config.engine.device, self.config.engine.tf32)

    def _open_index(self, folders: Sequence[Path], embeds: bool = True) -> Opened:
        """The index, or what it has below `folders`, for the newest encoder. What cannot be compared with it is made
        comparable if that takes a minute and nobody else is at work on the index; otherwise the answer is that of the
        encoder with which most vectors can be compared."""
        newest, index, notices = self._newest(), Index(self._files.index), list[str]()
        if not index.exists:
            raise UserError(f"{self.folder} has no index: make one with osiris index STATE FOLDER.")
        encoder = newest
        if incomparable(index, newest.version):
            notices += self._follow(index, newest, folders)
            index = Index(index.folder)
            encoder = self._encoder_of_most(index, newest)
        left = sum(incomparable(index, encoder.version).values())
        partly = 0 < left < sum(int(part.live.sum()) for part in index.parts)
        places = [absolute(one) for one in folders] or None
        gallery = Gallery(index, encoder.version, places, encoder.view, partly)
        if encoder is not newest:
            notices.append(
                f"this is by the encoder after episode {encoder.version.episode}, not by the newest one: `osiris index "
                "STATE FOLDER...` brings the index up to date."
            )
        if partly:
            notices.append(
                f"{left:,} images of the index are of another encoder and were left out: `osiris index STATE FOLDER` "
                "brings them up to date; if their folder is gone, `osiris forget STATE FOLDER` removes them."
            )
        return Opened(gallery, encoder, notices, newest, index.folder)

    def _follow(self, index: Index, newest: Newest, folders: Sequence[Path]) -> list[str]:
        named = [*folders, *self._named_folders()]
        try:
            mapped, pairs = newest.view is None, self._memory_pairs
            done = follow(index, named, newest.kept, newest.version, pairs, newest.as_kept, mapped)
        except UserError as error:
            return [f"the index stays as it is: {error}"]
        again = f"{done.again:,} images were embedded again, because the encoder has learned more."
        return [again] * bool(done.again) + done.notices

    def _encoder_of_most(self, index: Index, newest: Newest) -> Newest:
        """The newest encoder, or an earlier one whose weights are there and with which more vectors can be compared."""
        best, least = newest, sum(incomparable(index, newest.version).values())
        for episode in {part.version.episode for part in index.parts} if least else ():
            weights = self.run.weights.get(episode - 1)
            known = None if weights is None else read_compared(weights.absolute(), identity(weights), episode)
            if weights is None or known is None:
                continue
            missed = sum(incomparable(index, known.version).values())
            if missed < least:
                best, least = read_newest(weights.absolute(), identity(weights), episode, self._device), missed
        return best

    def _changed_since(self, began: Compared) -> list[str]:
        if self._compared().same == began.same:
            return []
        return [f"{self.folder} has learned meanwhile; this is by the encoder before. Repeat the command."]

    def _forget_indexed(self, files: Sequence[Path]) -> int:
        """An index without its manifest has files all the same: of an update that was killed."""
        index = Index(self._files.index)
        return forget(index, self._compared().version, files) if index.folder.is_dir() else 0

    @property
    def _folders_record(self) -> Path:
        return cache_directory() / "indexed" / f"{json_digest(str(self.folder.resolve()))}.json"

    def _named_folders(self) -> list[Path]:
        """Folders that were named for this index on this machine: an index that was received may name any file."""
        try:
            known = read_json(self._folders_record)
        except (OSError, ValueError, UserError):
            return []
        return [Path(one) for one in known if isinstance(one, str)] if isinstance(known, list) else []

    def _remember_folders(self, folders: Sequence[Path]) -> None:
        named = {*map(str, self._named_folders()), *map(absolute, folders)}
        try:
            write_json(self._folders_record, sorted(named))
        except (OSError, UnicodeError):  # without a cache, calls have to name them again
            return

    def _latest(self) -> tuple[int, Path]:
        """(episode from 1, weights) of the newest encoder."""
        run = self.run
        run.checkpoint()  # refuses a state without weights
        task, path = list(run.weights.items())[-1]
        return task + 1, path

    def _embedder(self) -> Embedder:
        device = self._device
        return self._of_latest(lambda path, written, _: open_embedder(path, written, device))

    def _newest(self) -> Newest:
        device = self._device
        return self._of_latest(lambda path, written, episode: read_newest(path, written, episode, device))

    def _compared(self) -> Compared:
        return self._of_latest(read_compared)

    def _of_latest(self, read: Callable[[Path, Identity, int], Read]) -> Read:
        """Of (weights, which file that is, episode from 1). Another process may remove or replace them meanwhile: then
        again."""

        def latest(_: Progress | None) -> Read:
            for _attempt in range(ATTEMPTS):
                episode, path = self._latest()
                try:
                    written = identity(path)
                    found = read(path.absolute(), written, episode)
                    if identity(path) == written:
                        return found
                except FileNotFoundError:
                    raise Missing(f"{path} does not exist.") from None
            raise UserError(f"{self.folder} changes all the time. Wait until other processes have ended.")

        return consistent(self._files, latest)

    def _memory_pairs(self, old: Version) -> Pairs | None:
        """Vectors of the memory's images by an encoder whose weights are still there, and by the current one."""
        weights = self.run.weights.get(old.episode - 1)
        if weights is None or read_compared(weights.absolute(), identity(weights), old.episode).version != old:
            return None
        images, today = self._state().memory.images.numpy(), self._embedder()
        before, after = Embedder(weights, today.device).embed_batch(images), today.embed_batch(images)
        return as_compared(before), as_compared(after)
