"""Images in memory or in NumPy files: arrays, tensors, and torch data sets."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from osiris.data.source import Encoded, Rows, Source, Values, make_source
from osiris.errors import UserError

FIELDS = ("images", "labels", "episodes", "test_images", "test_labels", "test_episodes", "class_names")
EXPANSION = 100
"""A file that unpacks to more than this many times its size, and more than 64 MB, is refused."""


def file_source(path: Path) -> Source:
    """`images` and, if present, the other FIELDS of an .npz file; or the images of an .npy file."""
    path = path.expanduser()
    help_text = f"Give arrays:FILE.npz with the arrays {', '.join(FIELDS)} (all but images optional), or a .npy file."
    try:
        _refuse_bomb(path)
        opened = np.load(path, mmap_mode="r", allow_pickle=False)
        fields = {"images": opened} if isinstance(opened, np.ndarray) else {key: opened[key] for key in opened.files}
    except UserError:
        raise
    except Exception as error:  # NumPy and zipfile raise many types: ValueError, zlib.error, TokenError
        raise UserError(f"cannot read {path}: {error}. {help_text}") from None
    if set(fields) - set(FIELDS) or "images" not in fields:
        raise UserError(f"{path} has the arrays {', '.join(fields) or '(none)'}. {help_text}")
    single = [name for name, values in fields.items() if np.ndim(values) == 0]
    if single:
        raise UserError(f"{path}: {single[0]} is a single value, not an array. {help_text}")
    splits = {"": path.stem} | ({"test_": f"{path.stem} (test)"} if "test_images" in fields else {})
    rows = [
        image_rows(fields[f"{part}images"], name, fields.get(f"{part}labels"), fields.get(f"{part}episodes"))
        for part, name in splits.items()
    ]
    names = fields.get("class_names")
    return make_source(path.stem, *rows, class_names=None if names is None else [str(name) for name in names])


def _refuse_bomb(path: Path) -> None:
    """A small compressed file must not fill the memory."""
    if not zipfile.is_zipfile(path):
        return
    with zipfile.ZipFile(path) as archive:
        unpacked, packed = sum(member.file_size for member in archive.infolist()), path.stat().st_size
    if unpacked > max(EXPANSION * packed, 64 << 20):
        raise UserError(
            f"{path} has {packed:,} bytes and would unpack to {unpacked:,}, which images do not: it is not opened. If "
            "you trust it, write it again with numpy.savez (without compression)."
        )


def image_rows(images: Any, name: str, labels: Values = None, episodes: Values = None) -> Rows:
    """An array or tensor [N, H, W, 3], [N, 3, H, W], [N, H, W] or [N, H, W, 1], or a map-style torch `Dataset` whose
    items are an image or (image, label). Images are uint8, floats in [0, 1], or of Pillow. The labels of a data set are
    read in one pass over its items unless they are given."""
    if not len(images):
        raise UserError(f"{name} is empty.")

    def read(rows: Sequence[int]) -> list[Encoded]:
        return [_pixels(_image_and_label(images[row])[0], name) for row in rows]

    if labels is None and _image_and_label(images[0])[1] is not None:
        items = [_image_and_label(images[row])[1] for row in range(len(images))]
        labels = [item.item() if hasattr(item, "item") else item for item in items]
    return Rows(len(images), read, lambda row: f"{name} image {row}", labels, episodes)


def _image_and_label(item: Any) -> tuple[Any, Any]:
    if isinstance(item, tuple | list):
        return item[0], item[1] if len(item) > 1 else None
    return item, None


def _pixels(item: Any, name: str) -> np.ndarray:
    """uint8 [H, W, 3] or [H, W] of one image."""
    item = item.detach().cpu().numpy() if hasattr(item, "detach") else item
    array = np.asarray(item.convert("RGB") if hasattr(item, "convert") else item)
    if array.dtype.kind == "f":
        if not (array.min() >= 0 and array.max() <= 1):
            raise UserError(
                f"{name}: float images must lie in [0, 1], not {array.min():.2f} to {array.max():.2f}. Convert them to "
                "uint8 from 0 to 255, or remove the normalisation: osiris normalises after augmentation."
            )
        array = np.rint(array * 255).astype(np.uint8)
    if array.ndim == 3 and array.shape[0] in (1, 3) and not (array.shape[2] == 3 and array.shape[1] != 3):
        array = array.transpose(1, 2, 0)
    array = array[:, :, 0] if array.ndim == 3 and array.shape[2] == 1 else array
    if array.dtype != np.uint8 or array.ndim not in (2, 3) or array.shape[2:] not in ((), (3,)):
        shapes = "[H, W, 3], [3, H, W] or [H, W]"
        raise UserError(f"{name}: an image of {array.dtype} and shape {array.shape}; expected uint8 {shapes}.")
    return np.ascontiguousarray(array)
