"""The images of a learner's user: an index of their features, and what can be asked of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from torch.nn.functional import normalize

from osiris.console import progress
from osiris.data.folder import Listing
from osiris.devices import open_device
from osiris.errors import UserError
from osiris.evaluation.embedder import Embedder
from osiris.evaluation.knn import neighbours_of
from osiris.files import Missing
from osiris.index.gallery import Gallery
from osiris.index.records import Version, version_of
from osiris.index.status import IndexStatus, index_status
from osiris.index.store import Index, absolute
from osiris.index.update import Pairs, Updated, forget, update
from osiris.learner.estimator import Estimator
from osiris.runs.directory import RunDirectory
from osiris.runs.progress import Progress, consistent

if TYPE_CHECKING:
    from osiris.config import Config
    from osiris.runs.run import Run
    from osiris.runs.state import State

Read = TypeVar("Read")
Places = str | Path | Sequence[str | Path]
"""Folders of images."""


@dataclass(frozen=True)
class Hit:
    path: Path
    similarity: float
    """Cosine to the image that it was compared with."""


@dataclass(frozen=True)
class Found:
    hits: list[Hit]
    """The nearest first."""
    searched: int
    """Images."""
    notices: list[str]


@dataclass(frozen=True)
class NovelImage:
    path: Path
    similarity: float
    nearest: Path
    """The most similar image of the index."""


class Collection(Estimator):
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

    def embed(self, images: Any) -> np.ndarray:
        """float32 [N, D]: the features of one image file, or of anything that `observe` takes."""
        return self._embedder()(images).features.numpy()

    def embed_files(self, place: str | Path) -> tuple[list[Path], np.ndarray, list[str]]:
        """(files, features, notices) of one image file or of all below a folder. Files that cannot be decoded are left
        out and named in the notices."""
        listing = Listing(Path(place)) if Path(place).is_dir() else None
        paths = [Path(place)] if listing is None else listing.paths()
        if not paths:
            raise UserError(f"{place} has no images.")
        embedded = self._embedder()(paths, strict=False)
        notices = [] if listing is None else listing.notices()
        return [paths[row] for row in embedded.rows], embedded.features.numpy(), notices + embedded.notices

    def index(self, folders: Places, refresh: bool = False, minutes: float | None = None) -> Updated:
        """Make the index of all images below some folders, or bring it up to date: only new and changed files are
        embedded. After an episode, vectors of the encoder before it are mapped.

        Args:
            folders: Only files below them are read.
            refresh: Embed the files of earlier versions of the encoder again, the oldest versions first.
            minutes: The time for all of it. Another call continues.
        """
        places = _paths(folders)
        if not places:
            raise UserError("name the folders of the images: only files below them are read.")
        for place in places:
            if not place.expanduser().is_dir():
                raise UserError(f"{place} is not a folder of images; what the index has of it stays as it is.")
        embedder, version = self._embedder(), self._version()
        index = Index(self._files.index)
        return update(index, places, embedder, version, refresh, minutes, self._memory_pairs)

    def index_status(self) -> IndexStatus | None:
        """None if there is no index."""
        index = Index(self._files.index)
        return index_status(index, self._version()) if index.exists else None

    def search(self, query: str | Path, folders: Places = (), count: int = 12) -> Found:
        """The images that are nearest to the image `query`: of the index, or of what it has below `folders`. Folders
        that are not in the index are embedded now."""
        places, index = _paths(folders), Index(self._files.index)
        gallery = self._gallery(index, places) if index.exists else None
        if gallery is not None and (len(gallery) or not places):
            values, rows = gallery.search(_normalised(self.embed(query)), count)
            hits = [Hit(Path(gallery.path(row)), value) for row, value in zip(rows[0].tolist(), values[0].tolist())]
            return Found(hits, len(gallery), [])
        if not places:
            raise UserError(
                f"{self.folder} has no index: name a folder, or make an index with osiris index STATE FOLDER."
            )
        paths, parts, notices = list[Path](), [], list[str]()
        for place in places:
            files, features, said = self.embed_files(place)
            paths, parts, notices = paths + files, [*parts, features], notices + said
        bank, sought = torch.from_numpy(np.concatenate(parts)), torch.from_numpy(self.embed(query))
        values, rows = neighbours_of(bank, sought, count)
        hits = [Hit(paths[row], value) for row, value in zip(rows[0].tolist(), values[0].tolist())]
        notices.append(
            f"{len(paths)} images were embedded for this search; osiris index STATE FOLDER keeps their vectors."
        )
        return Found(hits, len(paths), notices)

    def duplicates(self, cosine: float = 0.95, folders: Places = ()) -> list[list[Hit]]:
        """Groups of images in the index (or in what it has below `folders`) that are connected by similarities of at
        least `cosine`, the largest groups first; in each, the similarity to its first image."""
        gallery = self._gallery(self._existing_index(), _paths(folders))
        with progress("comparing", len(gallery)) as ticker:
            groups = gallery.groups(cosine, ticker)
        found = []
        for group in groups:
            vectors = gallery.vectors(group)
            similarity = (vectors @ vectors[0]).tolist()
            found.append([Hit(Path(gallery.path(row)), value) for row, value in zip(group.tolist(), similarity)])
        return found

    def novel(self, folder: str | Path) -> tuple[list[NovelImage], list[str]]:
        """(the images below a folder, the least similar to any image of the index first; notices). An image that is in
        the index itself is compared with the others."""
        gallery = self._gallery(self._existing_index(), [])
        paths, features, notices = self.embed_files(folder)
        values, rows = gallery.search(_normalised(features), 2)
        images = []
        for path, *pair in zip(paths, values.tolist(), rows.tolist()):
            known = [(value, gallery.path(row)) for value, row in zip(*pair)]
            value, nearest = next((one for one in known if one[1] != absolute(path)), (-1.0, None))
            if nearest is None:
                raise UserError(f"{self.folder}: the index has no other image than {path}.")
            images.append(NovelImage(path, value, Path(nearest)))
        return sorted(images, key=lambda one: one.similarity), notices

    def _existing_index(self) -> Index:
        index = Index(self._files.index)
        if not index.exists:
            raise UserError(f"{self.folder} has no index: make one with osiris index STATE FOLDER.")
        return index

    def _gallery(self, index: Index, folders: list[Path]) -> Gallery:
        return Gallery(index, self._version(), [absolute(one) for one in folders] or None)

    def _forget_indexed(self, files: Sequence[Path]) -> int:
        """An index without its manifest has files all the same: of an update that was killed."""
        index = Index(self._files.index)
        return forget(index, self._version(), files) if index.folder.is_dir() else 0

    def _latest(self) -> tuple[int, Path]:
        """(episode from 1, weights) of the newest encoder."""
        run = self.run
        run.checkpoint()  # refuses a state without weights
        task, path = list(run.weights.items())[-1]
        return task + 1, path

    def _embedder(self) -> Embedder:
        device = open_device(self.config.engine.device, self.config.engine.tf32)
        return self._of_latest(lambda _, path, written: _open_embedder(path, written, device))

    def _version(self) -> Version:
        return self._of_latest(lambda episode, path, written: _read_version(path, written, episode))

    def _of_latest(self, read: Callable[[int, Path, int], Read]) -> Read:
        """Of (episode from 1, weights, their time). Another process may remove them meanwhile: then again."""

        def latest(_: Progress | None) -> Read:
            episode, path = self._latest()
            try:
                return read(episode, path.absolute(), path.stat().st_mtime_ns)
            except FileNotFoundError:
                raise Missing(f"{path} does not exist.") from None

        return consistent(self._files, latest)

    def _memory_pairs(self, old: Version) -> Pairs | None:
        """Vectors of the memory's images by an encoder whose weights are still there, and by the current one."""
        weights = self.run.weights.get(old.episode - 1)
        if weights is None or version_of(weights, old.episode).digest != old.digest:
            return None
        images, today = self._state().memory.images.numpy(), self._embedder()
        before, after = Embedder(weights, today.device).embed_batch(images), today.embed_batch(images)
        return normalize(before, dim=1).numpy(), normalize(after, dim=1).numpy()


def _paths(folders: Places) -> list[Path]:
    return [Path(folders)] if isinstance(folders, str | Path) else [Path(one) for one in folders]


def _normalised(features: np.ndarray) -> np.ndarray:
    return normalize(torch.from_numpy(features), dim=1).numpy()


@lru_cache(maxsize=2)
def _open_embedder(path: Path, written: int, device: torch.device) -> Embedder:
    """Kept between calls; `written` is the time of the file, so that newer weights are loaded again."""
    return Embedder(path, device)


@lru_cache(maxsize=2)
def _read_version(path: Path, written: int, episode: int) -> Version:
    return version_of(path, episode)
