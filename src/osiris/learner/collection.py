"""The images of a learner's user: an index of their features, and what can be asked of it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from osiris.data.folder import Listing
from osiris.errors import UserError
from osiris.evaluation.embedder import Embedder
from osiris.evaluation.knn import neighbours_of
from osiris.index.newest import as_compared
from osiris.index.status import IndexStatus, index_status
from osiris.index.store import Index, absolute
from osiris.index.update import Updated, update
from osiris.learner.duplicates import Duplicates, find_duplicates
from osiris.learner.indexed import Indexed
from osiris.learner.overview import Overview, overview
from osiris.learner.tags import Tags, propose

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


class Collection(Indexed):
    """Part of `Learner`."""

    def embed(self, images: Any) -> np.ndarray:
        """float32 [N, D]: the features of one image file, or of anything that `observe` takes."""
        return self._embedder()(images).features.numpy()

    def embed_files(self, place: str | Path) -> tuple[list[Path], np.ndarray, list[str]]:
        """(files, features, notices) of one image file or of all below a folder. Files that cannot be decoded are left
        out and named in the notices."""
        return _embed_files(self._embedder(), place)

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
                raise UserError(
                    f"{place} is not a folder of images; what the index has of it stays as it is. If it is gone for "
                    f"good: osiris forget {shlex.quote(str(self.folder))} {shlex.quote(str(place))}."
                )
        newest, index = self._newest(), Index(self._files.index)
        self._remember_folders(places)
        mapped, pairs = newest.view is None, self._memory_pairs
        done = update(index, places, newest.kept, newest.version, refresh, minutes, pairs, newest.as_kept, mapped)
        done.notices += self._changed_since(newest)
        return done

    def index_status(self) -> IndexStatus | None:
        """None if there is no index."""
        index = Index(self._files.index)
        return index_status(index, self._compared().version) if index.exists else None

    def search(self, query: str | Path, folders: Places = (), count: int = 12) -> Found:
        """The images that are nearest to the image `query`: of the index, or of what it has below `folders`. Folders
        that are not in the index are embedded now."""
        places = _paths(folders)
        opened = self._open_index(places) if Index(self._files.index).exists else None
        if opened is not None and (len(opened.gallery) or not places):
            gallery = opened.gallery
            sought = as_compared(opened.encoder.embedder(query).features)
            values, rows = gallery.search(sought, count)
            hits = [Hit(Path(gallery.path(row)), value) for row, value in zip(rows[0].tolist(), values[0].tolist())]
            return Found(hits, len(gallery), opened.notices + self._changed_since(opened.began))
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

    def duplicates(self, folders: Places = ()) -> Duplicates:
        """Groups of images in the index, or in what it has below `folders`: the same bytes, the same picture, and
        pictures that look alike. Only copies of the first two kinds could go."""
        return find_duplicates(self._open_index(_paths(folders)))

    def overview(self, folders: Places = (), anew: bool = False) -> Overview:
        """Of all images of the index, or those below `folders`: a map, neighbours, groups, and what was new when.
        Images that are new since the last call are added to its map, unless `anew`."""
        places = [absolute(one) for one in _paths(folders)]
        return overview(self._open_index([]), places, self.run.metrics.task_names, anew)

    def tags(self, examples: str | Path, folders: Places = (), sure: float = 0.5) -> Tags:
        """Tags for the images of the index, or for those below `folders`, from a few `examples` of each: folders
        TAG/image.jpg. An image gets none if its probability is below `sure` or it is not like the examples."""
        return propose(self._open_index(_paths(folders)), Path(examples), sure)

    def novel(self, folder: str | Path) -> tuple[list[NovelImage], list[str]]:
        """(the images below a folder, the least similar to any image of the index first; notices). An image that is in
        the index itself is compared with the others."""
        opened = self._open_index([])
        gallery = opened.gallery
        paths, features, notices = _embed_files(opened.encoder.embedder, folder)
        values, rows = gallery.search(as_compared(torch.from_numpy(features)), 2)
        images = []
        for path, *pair in zip(paths, values.tolist(), rows.tolist()):
            known = [(value, gallery.path(row)) for value, row in zip(*pair)]
            value, nearest = next((one for one in known if one[1] != absolute(path)), (-1.0, None))
            if nearest is None:
                raise UserError(f"{self.folder}: the index has no other image than {path}.")
            images.append(NovelImage(path, value, Path(nearest)))
        notices = opened.notices + notices + self._changed_since(opened.began)
        return sorted(images, key=lambda one: one.similarity), notices


def _paths(folders: Places) -> list[Path]:
    return [Path(folders)] if isinstance(folders, str | Path) else [Path(one) for one in folders]


def _embed_files(embedder: Embedder, place: str | Path) -> tuple[list[Path], np.ndarray, list[str]]:
    listing = Listing(Path(place)) if Path(place).is_dir() else None
    paths = [Path(place)] if listing is None else listing.paths()
    if not paths:
        raise UserError(f"{place} has no images.")
    embedded = embedder(paths, strict=False)
    notices = [] if listing is None else listing.notices()
    return [paths[row] for row in embedded.rows], embedded.features.numpy(), notices + embedded.notices
