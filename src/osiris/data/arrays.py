"""Images that are already in Python or in a NumPy file: arrays, and torch data sets."""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from osiris.data.assemble import Part, Source, by_episode
from osiris.data.base import ArrayImages, Benchmark, Images
from osiris.data.config import BenchmarkConfig
from osiris.data.decode import decode
from osiris.data.known import IMAGENET_MEAN, IMAGENET_STD
from osiris.data.own import finish
from osiris.data.records import LARGEST_DEFAULT, natural
from osiris.errors import UserError

FIELDS = ("images", "labels", "episodes", "test_images", "test_labels", "test_episodes", "class_names")


def from_arrays(
    images: Any,
    labels: Any = None,
    episodes: Any = None,
    test: tuple[Any, ...] | None = None,
    class_names: Sequence[str] | None = None,
    name: str = "arrays",
    config: BenchmarkConfig | None = None,
) -> Benchmark:
    """A stream from arrays: uint8 images [N, H, W, 3], [N, 3, H, W] or grey [N, H, W]; labels and episodes [N].

    `test` is (images, labels) or (images, labels, episodes). Without it, and with labels, a fifth is held out.
    Labels and episodes may be numbers, strings or dates; episodes come in sorted order.
    """
    config = config or BenchmarkConfig()
    return by_episode(name, array_source(name, images, labels, episodes, test, class_names, config), config)


def load_arrays(path: Path, config: BenchmarkConfig) -> Source:
    """`images` and, if present, `labels`, `episodes`, `test_images`, `test_labels`, `test_episodes`, `class_names`."""
    path = path.expanduser()
    help_text = f"Give arrays:FILE.npz with the arrays {', '.join(FIELDS)} (all but images optional), or a .npy file."
    try:
        opened = np.load(path, mmap_mode="r", allow_pickle=False)
        fields = {"images": opened} if isinstance(opened, np.ndarray) else {key: opened[key] for key in opened.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise UserError(f"cannot read {path}: {error}. {help_text}") from None
    strange = sorted(set(fields) - set(FIELDS))
    if strange or "images" not in fields:
        raise UserError(f"{path} has the arrays {', '.join(fields) or '(none)'}. {help_text}")
    test = None
    if "test_images" in fields:
        test = (fields["test_images"], fields.get("test_labels"), fields.get("test_episodes"))
    names = fields.get("class_names")
    class_names = None if names is None else [str(name) for name in names]
    return array_source(
        path.stem, fields["images"], fields.get("labels"), fields.get("episodes"), test, class_names, config
    )


def array_source(
    name: str,
    images: Any,
    labels: Any,
    episodes: Any,
    test: tuple[Any, ...] | None,
    class_names: Sequence[str] | None,
    config: BenchmarkConfig,
) -> Source:
    """Arrays brought to [N, 3, size, size]; the checksum covers their pixels."""
    notices: list[str] = []
    pixels = as_images(images, config.image_size, name, notices)
    digest = hashlib.sha256(pixels.data)
    opened_test = None
    if test is not None:
        test_pixels = as_images(test[0], pixels.shape[2], name, [])
        digest.update(test_pixels.data)
        opened_test = (ArrayImages(test_pixels), *test[1:])
    return label_source(
        name, ArrayImages(pixels), labels, episodes, opened_test, class_names, digest.hexdigest(), notices
    )


def label_source(
    name: str,
    images: Images,
    labels: Any,
    episodes: Any,
    test: tuple[Any, ...] | None,
    class_names: Sequence[str] | None,
    content: str,
    notices: list[str],
) -> Source:
    """Number the labels and episodes of `images` and of `test` = (images, labels[, episodes])."""
    label, classes = _classes(labels, len(images), class_names, name)
    episode, episode_names = _number(episodes, len(images), f"{name}: episodes")
    if episode is None:
        episode, episode_names = np.zeros(len(images), dtype=np.int64), ("all",)
    test_part = None
    if test is not None:
        test_images: Images = test[0]
        test_labels, test_episodes = test[1], test[2] if len(test) > 2 else None
        test_label = _as_known(test_labels, len(test_images), classes, class_names is not None, f"{name}: test labels")
        if len(episode_names) == 1 and test_episodes is None:
            test_episodes = np.full(len(test_images), episode_names[0])
        test_episode = _as_known(test_episodes, len(test_images), episode_names, False, f"{name}: test episodes")
        test_part = Part(test_images, test_label, test_episode)
    return finish(
        Source(
            name=name,
            train=Part(images, label, episode),
            test=test_part,
            class_names=classes,
            mean=IMAGENET_MEAN,
            std=IMAGENET_STD,
            checksum=content,
            episode_names=episode_names,
            notices=tuple(notices),
        )
    )


def as_images(images: Any, size: int | None, name: str, notices: list[str]) -> np.ndarray:
    """uint8 [N, 3, size, size], whatever the order of the axes was."""
    array = images.numpy() if isinstance(images, torch.Tensor) else np.asarray(images)
    if array.dtype != np.uint8:
        raise UserError(f"{name}: images must be uint8 from 0 to 255, not {array.dtype}. Convert them first.")
    if array.ndim == 3:
        array = np.repeat(array[:, None], 3, axis=1)
    elif array.ndim == 4 and array.shape[3] in (1, 3) and array.shape[1] != 3:
        array = array.transpose(0, 3, 1, 2)
    elif array.ndim == 4 and array.shape[3] == 3 and array.shape[2] != 3:
        array = array.transpose(0, 3, 1, 2)  # three rows high: the last axis are the colours
    if array.ndim == 4 and array.shape[1] == 1:
        array = np.repeat(array, 3, axis=1)
    if array.ndim != 4 or array.shape[1] != 3 or not len(array):
        raise UserError(f"{name}: images of shape {array.shape}; expected [N, H, W, 3], [N, 3, H, W] or [N, H, W].")
    height, width = array.shape[2:]
    wanted = size or min(height, width, LARGEST_DEFAULT)
    if (height, width) == (wanted, wanted):
        return np.ascontiguousarray(array)
    if size is None:
        notices.append(
            f"images of {width}x{height} are scaled and cropped to {wanted}x{wanted}; --image-size changes it."
        )
    return np.stack([decode(np.ascontiguousarray(image.transpose(1, 2, 0)), wanted) for image in array])


def _number(values: Any, count: int, what: str) -> tuple[np.ndarray | None, tuple[str, ...]]:
    """Sorted distinct values and, for each entry, which one it is."""
    if values is None:
        return None, ()
    array = values.numpy() if isinstance(values, torch.Tensor) else np.asarray(values)
    if array.shape != (count,):
        raise UserError(f"{what} have the shape {array.shape}; expected one for each of the {count} images.")
    if array.dtype.kind not in "iubUM":
        raise UserError(f"{what} must be whole numbers, strings or dates, not {array.dtype}.")
    distinct, number = np.unique(array, return_inverse=True)
    if array.dtype.kind == "U":  # `day2` before `day10`
        order = sorted(range(len(distinct)), key=lambda position: natural(str(distinct[position])))
        distinct, number = distinct[order], np.argsort(order)[number]
    return number.astype(np.int64), tuple(str(value) for value in distinct)


def _classes(
    labels: Any, count: int, class_names: Sequence[str] | None, name: str
) -> tuple[np.ndarray | None, tuple[str, ...]]:
    """With `class_names` the labels are positions in it; otherwise the distinct labels are the names."""
    number, distinct = _number(labels, count, f"{name}: labels")
    if number is None or class_names is None:
        return number, distinct
    if len(set(class_names)) < len(class_names):
        raise UserError(f"{name}: class_names has the same name twice.")
    array = np.asarray(labels)
    if array.dtype.kind not in "iu" or array.min() < 0 or array.max() >= len(class_names):
        raise UserError(f"{name}: labels must be whole numbers from 0 to {len(class_names) - 1}, one per class name.")
    return array.astype(np.int64), tuple(class_names)


def _as_known(values: Any, count: int, names: tuple[str, ...], positions: bool, what: str) -> np.ndarray:
    """The test part's values by the numbers of the training part, which must know them all."""
    if values is None:
        raise UserError(f"{what} are missing: give one for each test image, as for the training images.")
    number, distinct = _number(values, count, what)
    assert number is not None
    known = {str(position) if positions else name: position for position, name in enumerate(names)}
    strange = [value for value in distinct if value not in known]
    if strange:
        raise UserError(f"{what} have {strange[0]!r}, which has no training images.")
    return np.asarray([known[value] for value in distinct], dtype=np.int64)[number]
