"""A contact sheet: rows of small images with their names, for any benchmark."""

from __future__ import annotations

import math

from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from osiris.report.benchmark_images import GAP, pixels, tiles

MARGIN = 6
PAPER, INK = (255, 255, 255), (40, 40, 40)


def contact_sheet(images_by_row: list[Tensor], row_names: list[str], scale: int = 2) -> Image.Image:
    """Draw uint8 images [n, 3, H, W], one tensor per row, enlarged `scale` times, with the names on the left."""
    assert images_by_row and len(images_by_row) == len(row_names), (len(images_by_row), len(row_names))
    enlarged = [pixels(images).repeat(scale, axis=1).repeat(scale, axis=2) for images in images_by_row]
    pictures, height = tiles(enlarged), enlarged[0].shape[1]
    font = ImageFont.load_default()
    left = max(math.ceil(font.getlength(name)) for name in row_names) + 2 * MARGIN
    sheet = Image.new("RGB", (left + pictures.width + MARGIN, pictures.height + 2 * MARGIN), PAPER)
    sheet.paste(pictures, (left, MARGIN), pictures)
    pen = ImageDraw.Draw(sheet)
    for row, name in enumerate(row_names):
        middle = MARGIN + row * (height + GAP) + height // 2
        pen.text((left - MARGIN, middle), name, fill=INK, font=font, anchor="rm")
    return sheet
