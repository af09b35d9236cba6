"""A torch `Dataset` as a stream: kept decoded when it fits, read item by item when it does not."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from osiris.console import progress
from osiris.data.arrays import label_source
from osiris.data.assemble import by_episode
from osiris.data.base import ArrayImages, Benchmark, Images
from osiris.data.config import BenchmarkConfig
from osiris.data.decode import UndecodableImage, decode
from osiris.data.lazy import LazyImages
from osiris.data.own import decode_limit
from osiris.data.records import LARGEST_DEFAULT
from osiris.errors import UserError


def from_dataset(
    dataset: Any,
    episodes: Any = None,
    test: Any = None,
    class_names: Sequence[str] | None = None,
    name: str = "dataset",
    config: BenchmarkConfig | None = None,
) -> Benchmark:
    """A stream from a map-style `Dataset` whose items are an image or (image, label).

    Images are PIL images, uint8 arrays [H, W, 3], or tensors [3, H, W] (uint8, or floats in [0, 1]). `episodes` has
    one entry per item; `test` is another such data set, with labels.
    """
    config = config or BenchmarkConfig()
    notices: list[str] = []
    digest = hashlib.sha256()
    size = config.image_size or _first_size(dataset, name, notices)
    images, labels = _read(dataset, size, name, digest, config)
    opened_test = None
    if test is not None:
        test_images, test_labels = _read(test, size, f"{name} (test)", digest, config)
        test_episodes = None
        if episodes is not None and labels is not None and test_labels is not None:
            test_episodes = _episodes_by_class(np.asarray(episodes), labels, test_labels, name)
        opened_test = (test_images, test_labels, test_episodes)
    source = label_source(name, images, labels, episodes, opened_test, class_names, digest.hexdigest(), notices)
    return by_episode(name, source, config)


def pixels_of(item: Any, name: str) -> np.ndarray:
    """[H, W, 3] or [H, W] uint8 of one image, before scaling."""
    if isinstance(item, torch.Tensor):
        array = item.detach().cpu().numpy()
        array = array.transpose(1, 2, 0) if array.ndim == 3 and array.shape[0] in (1, 3) else array
    else:
        array = np.asarray(item.convert("RGB") if hasattr(item, "convert") else item)
    if array.dtype.kind == "f":
        if not (array.min() >= 0 and array.max() <= 1):
            raise UserError(
                f"{name}: float images must lie in [0, 1] (found {array.min():.2f} to {array.max():.2f}). Leave out "
                "normalisation: it is done after augmentation."
            )
        array = np.rint(array * 255).astype(np.uint8)
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    if array.dtype != np.uint8 or array.ndim not in (2, 3):
        raise UserError(f"{name}: an image of {array.dtype} and shape {array.shape}; expected uint8 [H, W, 3].")
    return np.ascontiguousarray(array)


def _image_and_label(item: Any) -> tuple[Any, Any]:
    if isinstance(item, tuple | list):
        return item[0], item[1] if len(item) > 1 else None
    return item, None


def _first_size(dataset: Any, name: str, notices: list[str]) -> int:
    height, width = pixels_of(_image_and_label(dataset[0])[0], name).shape[:2]
    size = min(height, width, LARGEST_DEFAULT)
    if (height, width) != (size, size):
        notices.append(f"images are scaled and cropped to {size}x{size}, by the first one; image_size changes it.")
    return size


def _read(
    dataset: Any, size: int, name: str, digest: hashlib._Hash, config: BenchmarkConfig
) -> tuple[Images, np.ndarray | None]:
    """One pass over the items: labels and checksum, and the pixels if they may stay."""
    count = len(dataset)
    if not count:
        raise UserError(f"{name} is empty.")
    keep = count * 3 * size * size <= decode_limit(config)
    array = np.empty((count if keep else 1, 3, size, size), dtype=np.uint8)
    labels: list[Any] = []
    with progress(f"reading {name}", count) as ticker:
        for number in range(count):
            image, label = _image_and_label(dataset[number])
            try:
                pixels = decode(pixels_of(image, name), size)
            except UndecodableImage as error:
                raise UserError(f"{name}: item {number} is not an image: {error}") from None
            array[number if keep else 0] = pixels
            digest.update(pixels.data)
            if label is not None:
                labels.append(label.item() if hasattr(label, "item") else label)
            ticker.advance()
    if labels and len(labels) < count:
        raise UserError(f"{name}: {count - len(labels)} of {count} items have no label. All must have one, or none.")
    digest.update(repr(labels).encode())
    images: Images = ArrayImages(array) if keep else _lazy(dataset, count, size, name)
    return images, np.asarray(labels) if labels else None


def _lazy(dataset: Any, count: int, size: int, name: str) -> LazyImages:
    return LazyImages(
        count,
        size,
        read=lambda numbers: [pixels_of(_image_and_label(dataset[number])[0], name) for number in numbers],
        origin=lambda number: f"{name} item {number}",
    )


def _episodes_by_class(episodes: np.ndarray, labels: np.ndarray, test_labels: np.ndarray, name: str) -> np.ndarray:
    """A test image belongs to the episode of its class, which must be the only one."""
    home: dict[Any, Any] = {}
    for label, episode in zip(labels.tolist(), episodes.tolist()):
        if home.setdefault(label, episode) != episode:
            raise UserError(
                f"{name}: class {label!r} comes in several episodes, so that its test images have no episode. Leave "
                "out `test` (a fifth is then held out), or use from_arrays with episodes for the test images."
            )
    strange = sorted(set(test_labels.tolist()) - set(home), key=str)
    if strange:
        raise UserError(f"{name}: the test part has the class {strange[0]!r}, which has no training images.")
    return np.asarray([home[label] for label in test_labels.tolist()])
