"""Labelled images of a user, and how features moved: KNN, its interval, and paired tests before and after."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d, cosine_similarity

from osiris.data.folder import Listing
from osiris.data.images import UndecodableImage, decode_all
from osiris.errors import UserError
from osiris.evaluation.evaluate import compare_hits
from osiris.evaluation.health import health
from osiris.evaluation.knn import neighbours_of, rank_classes, vote
from osiris.evaluation.scores import Comparison, ReferenceScores

TEMPERATURE = 0.1
NEIGHBOURS = 5
PIXELS = 32
"""Raw pixels, the baseline of the reference, are compared at this size or less."""


@dataclass(frozen=True)
class Reference:
    """Labelled images: FOLDER/CLASS/image.jpg."""

    images: np.ndarray
    """uint8 [N, 3, H, W]"""
    labels: Tensor
    classes: list[str]
    notices: list[str]

    @property
    def digest(self) -> str:
        names = "\n".join(self.classes).encode(errors="surrogateescape")
        return hashlib.sha256(self.images.tobytes() + self.labels.numpy().tobytes() + names).hexdigest()[:16]

    @property
    def k(self) -> int:
        """Neighbours that vote: a fifth of the images of a class, at most 20."""
        return max(1, min(20, int(self.labels.bincount().float().median()) // 5))


def labelled_files(folder: Path) -> tuple[Listing, list[tuple[str, ...]], list[str]]:
    """(all files, those in the folder of a class, the classes). Nothing is decoded."""
    if not folder.is_dir():
        raise UserError(f"--reference {folder} is not a folder. It holds one subfolder of images per class.")
    listing = Listing(folder, levels=1)
    files = [parts for parts in listing.files if len(parts) > 1]
    classes = list(dict.fromkeys(parts[0] for parts in files))
    if len(classes) < 2:
        raise UserError(f"--reference {folder} needs at least two subfolders of images, one per class.")
    return listing, files, classes


def read_reference(folder: Path, size: int) -> Reference:
    """The images of a folder with one subfolder per class; files that cannot be decoded are left out."""
    listing, files, classes = labelled_files(folder)
    paths, notices = [listing.root.joinpath(*parts) for parts in files], listing.notices()
    images, labels = [], []
    for parts, image in zip(files, decode_all(lambda rows: [paths[row] for row in rows], len(paths), size)):
        if isinstance(image, UndecodableImage):
            notices.append(f"{listing.root.joinpath(*parts)} was left out: {image}")
        else:
            images.append(image)
            labels.append(classes.index(parts[0]))
    if len(set(labels)) < len(classes):
        raise UserError(f"--reference {folder}: some classes have no image that can be decoded. {' '.join(notices)}")
    if min(labels.count(label) for label in set(labels)) < 2:
        raise UserError(
            f"--reference {folder}: each class needs two images or more, as each is classified by the others."
        )
    return Reference(np.stack(images), torch.tensor(labels), classes, notices)


def score_reference(
    reference: Reference, embed: Callable[[np.ndarray], Tensor], earlier: ReferenceScores | None = None
) -> ReferenceScores:
    """`embed`: uint8 images [N, 3, H, W] to features. `earlier`: scores whose baseline holds if the images are the
    same."""
    digest = reference.digest
    features = embed(reference.images)
    hits = leave_one_out(features, reference.labels, reference.k)
    if earlier is not None and earlier.digest == digest:
        pixels = earlier.pixels
    else:
        images = torch.from_numpy(reference.images).float()
        small = adaptive_avg_pool2d(images, min(PIXELS, images.shape[-1]))
        pixels = _percent(leave_one_out(small.flatten(1), reference.labels, reference.k))
    return ReferenceScores(
        digest=digest,
        images=len(reference.labels),
        k=reference.k,
        classes=reference.classes,
        accuracy=_percent(hits),
        hits="".join("1" if hit else "0" for hit in hits.tolist()),
        per_class=[_percent(hits[reference.labels == label]) for label in range(len(reference.classes))],
        pixels=pixels,
        health=health(features),
    )


def against(before: ReferenceScores | None, after: ReferenceScores) -> Comparison | None:
    """Compare two encoders on the same labelled images; None if the images differ."""
    if before is None or before.digest != after.digest or len(before.hits) != len(after.hits):
        return None
    return compare_hits(*(np.array([hit == "1" for hit in one.hits]) for one in (before, after)))


def leave_one_out(features: Tensor, labels: Tensor, k: int) -> Tensor:
    """bool [N]: whether the weighted KNN predicts the label of each image from the other images."""
    values, indices = _others(features, k)
    return rank_classes(vote(values, labels[indices], int(labels.max()) + 1, TEMPERATURE))[:, 0] == labels


def nearest_others(features: Tensor) -> Tensor:
    """int64 [N, 5]: the nearest other images of each image."""
    return _others(features, NEIGHBOURS)[1]


def _others(features: Tensor, k: int) -> tuple[Tensor, Tensor]:
    return neighbours_of(features, features, min(k, len(features) - 1), own=torch.arange(len(features)))


def movement(before: Tensor, after: Tensor) -> tuple[float, float]:
    """(drift, same_neighbours) of features [N, D] of the same images before and after an episode."""
    drift = float((1 - cosine_similarity(before, after, dim=1)).mean())
    pairs = zip(nearest_others(before).tolist(), nearest_others(after).tolist())
    return drift, 100 * float(np.mean([len(set(one) & set(other)) / len(one) for one, other in pairs]))


def _percent(hits: Tensor) -> float:
    return 100 * float(hits.double().mean())
