"""The images of a study's benchmark, if this machine has them: rendered for tinyworld, otherwise from the cache."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from osiris.config import from_dict
from osiris.data.benchmark import Benchmark
from osiris.data.config import BenchmarkConfig
from osiris.data.images import Images
from osiris.data.load import is_at_hand, load_benchmark
from osiris.errors import UserError
from osiris.reporting.studies import Study
from osiris.runs.untrusted import read_received

GAP = 2
LINE = 12
"""Height of a line of text on a contact sheet."""
Font = ImageFont.ImageFont | ImageFont.FreeTypeFont
MARGIN, SHEET_PAPER, SHEET_INK = 6, (255, 255, 255), (40, 40, 40)
"""Pixels around a contact sheet, and its colours."""


@dataclass(frozen=True)
class StudyImages:
    """The benchmark of a study, or why there are no images."""

    benchmark: Benchmark | None
    reason: str = ""


def find_images(study: Study) -> StudyImages:
    """Never fetches or decodes a data set: a report must not wait for a download."""
    path = study.runs[0].files.config
    if not path.exists():
        return StudyImages(None, "images are left out: config.json was not copied along with the run")
    try:
        config: BenchmarkConfig = from_dict(read_received(path, dict)["config"]["data"], BenchmarkConfig)
        if not config.benchmark:
            return StudyImages(
                None,
                "images are left out: they were given one folder at a time, and only those of the "
                "memory are part of the state",
            )
        if not is_at_hand(config):
            return StudyImages(None, f"images are left out: {study.benchmark} is not in the cache of this machine")
        benchmark = load_benchmark(config)
    except (UserError, OSError, KeyError, TypeError, ValueError) as error:
        return StudyImages(None, f"images are left out: {error}")
    if benchmark.checksum != study.metrics.fingerprint.split:
        return StudyImages(
            None, f"images are left out: the {study.benchmark} on this machine is not the one of the runs"
        )
    return StudyImages(benchmark)


def evenly_spaced(count: int, most: int) -> np.ndarray:
    """Positions of at most `most` of `count` items."""
    return np.linspace(0, count - 1, min(most, count)).astype(int)


def take(images: Images, indices: Sequence[int] | np.ndarray) -> np.ndarray:
    """Some of the images: uint8 [n, H, W, 3]."""
    return pixels(images.take(torch.as_tensor(np.asarray(indices), dtype=torch.int64)))


def pixels(images: Tensor) -> np.ndarray:
    return images.permute(0, 2, 3, 1).contiguous().numpy()


def tiles(rows: Sequence[np.ndarray], row_gap: int = GAP) -> Image.Image:
    """Rows of uint8 [n, H, W, 3] as one picture with transparent gaps, for any background."""
    height, width = rows[0].shape[1:3]
    columns = max(len(row) for row in rows)
    size = (columns * (width + GAP) - GAP, len(rows) * (height + row_gap) - row_gap)
    sheet = Image.new("RGBA", size, (0, 0, 0, 0))
    for y, row in enumerate(rows):
        for x, tile in enumerate(row):
            sheet.paste(Image.fromarray(tile), (x * (width + GAP), y * (height + row_gap)))
    return sheet


def mosaic(images: np.ndarray, columns: int) -> Image.Image:
    """Images uint8 [n, H, W, 3] in rows of `columns`."""
    return tiles([images[start : start + columns] for start in range(0, len(images), columns)])


def framed(tile: np.ndarray, good: bool) -> np.ndarray:
    """A tile with a frame: solid green for right, striped orange for wrong (stripes are visible without colour)."""
    framed_tile = tile.copy()
    height, width = tile.shape[:2]
    thick = max(1, height // 16)
    y, x = np.mgrid[:height, :width]
    edge = (y < thick) | (y >= height - thick) | (x < thick) | (x >= width - thick)
    if not good:
        edge &= ((x + y) // max(2, 2 * thick)) % 2 == 0
    framed_tile[edge] = (0, 158, 115) if good else (213, 94, 0)
    return framed_tile


def contact_sheet(
    images_by_row: list[Tensor],
    row_names: list[str],
    scale: int = 2,
    captions: Sequence[Sequence[str]] | None = None,
) -> Image.Image:
    """Draw uint8 images [n, 3, H, W], one tensor per row, enlarged `scale` times, with the names on the left.
    `captions`: lines below each image; what does not fit is cut."""
    assert images_by_row and len(images_by_row) == len(row_names), (len(images_by_row), len(row_names))
    enlarged = [pixels(images).repeat(scale, axis=1).repeat(scale, axis=2) for images in images_by_row]
    height, width = enlarged[0].shape[1:3]
    font = ImageFont.load_default()
    below = GAP if captions is None else 2 * GAP + LINE * max(text.count("\n") + 1 for row in captions for text in row)
    pictures = tiles(enlarged, below)
    left = max(math.ceil(font.getlength(name)) for name in row_names) + 2 * MARGIN
    space = 0 if captions is None else below
    sheet = Image.new("RGB", (left + pictures.width + MARGIN, pictures.height + 2 * MARGIN + space), SHEET_PAPER)
    sheet.paste(pictures, (left, MARGIN), pictures)
    pen = ImageDraw.Draw(sheet)
    for row, name in enumerate(row_names):
        top = MARGIN + row * (height + below)
        pen.text((left - MARGIN, top + height // 2), name, fill=SHEET_INK, font=font, anchor="rm")
        for place, caption in enumerate(captions[row] if captions is not None else ()):
            for line, text in enumerate(caption.split("\n")):
                start = left + place * (width + GAP), top + height + GAP + line * LINE
                pen.text(start, cut(text, width, font), fill=SHEET_INK, font=font)
    return sheet


def cut(text: str, width: int, font: Font) -> str:
    """With its middle left out, if it is too long: names differ at their ends."""
    if font.getlength(text) <= width:
        return text
    for kept in range(len(text) - 1, 0, -1):
        shorter = f"{text[: kept // 2]}...{text[len(text) - (kept + 1) // 2 :]}"
        if font.getlength(shorter) <= width:
            return shorter
    return ""
