"""A contact sheet: rows of small images with their names, for any benchmark."""

from __future__ import annotations

import math

from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

GAP = 2
"""Pixels between images."""
MARGIN = 6
PAPER, INK = (255, 255, 255), (40, 40, 40)


def contact_sheet(images_by_row: list[Tensor], row_names: list[str], scale: int = 2) -> Image.Image:
    """Draw uint8 images [n, 3, H, W], one tensor per row, each image `scale` times as large, the names on the left."""
    assert len(images_by_row) == len(row_names), (len(images_by_row), len(row_names))
    assert images_by_row and scale >= 1
    font = ImageFont.load_default()
    label_width = max(math.ceil(font.getlength(name)) for name in row_names) + 2 * MARGIN
    columns = max(len(images) for images in images_by_row)
    height, width = (side * scale for side in images_by_row[0].shape[2:])
    size = (label_width + columns * (width + GAP) - GAP + MARGIN, len(row_names) * (height + GAP) - GAP + 2 * MARGIN)
    sheet = Image.new("RGB", size, PAPER)
    pen = ImageDraw.Draw(sheet)
    for row, (images, name) in enumerate(zip(images_by_row, row_names)):
        top = MARGIN + row * (height + GAP)
        pen.text((label_width - MARGIN, top + height // 2), name, fill=INK, font=font, anchor="rm")
        for column, pixels in enumerate(images.permute(0, 2, 3, 1).contiguous().numpy()):
            tile = Image.fromarray(pixels).resize((width, height), Image.Resampling.NEAREST)
            sheet.paste(tile, (label_width + column * (width + GAP), top))
    return sheet
