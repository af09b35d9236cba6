"""The contact sheet shows every image at its place, enlarged without smoothing, and names the rows."""

import numpy as np
import torch
from PIL import ImageFont

from osiris.reporting.benchmark_images import GAP, LINE, MARGIN, SHEET_PAPER, contact_sheet, cut


def rows(*counts: int, height: int = 5, width: int = 7) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(60, 200, (n, 3, height, width), dtype=torch.uint8, generator=generator) for n in counts]


def test_every_image_is_at_its_place_and_exact():
    images = rows(3, 1, 2)
    sheet = np.asarray(contact_sheet(images, ["a", "bb", "long name"], scale=3))
    left = sheet.shape[1] - MARGIN - (3 * (7 * 3 + GAP) - GAP)
    for row, line in enumerate(images):
        for column, image in enumerate(line):
            top, start = MARGIN + row * (15 + GAP), left + column * (21 + GAP)
            tile = sheet[top : top + 15, start : start + 21]
            expected = image.permute(1, 2, 0).numpy().repeat(3, axis=0).repeat(3, axis=1)
            np.testing.assert_array_equal(tile, expected)
    empty = sheet[MARGIN + 15 + GAP : MARGIN + 30 + GAP, left + 21 + GAP : -MARGIN]
    assert (empty == SHEET_PAPER).all(), "a short row leaves paper"


def test_captions_stand_below_their_images_and_are_cut_in_the_middle():
    images = [torch.full((2, 3, 60, 60), 200, dtype=torch.uint8)] * 2
    long = "a very long name of a file 0001.jpg"
    sheet = np.asarray(contact_sheet(images, ["a", "b"], scale=1, captions=[[long, ""], ["", "x\n0.5"]]))
    font = ImageFont.load_default()
    shown = cut(long, 60, font)
    assert font.getlength(shown) <= 60 and shown.startswith("a") and shown.endswith(".jpg") and "..." in shown
    assert cut("short", 60, font) == "short" and cut(long, 1, font) == ""
    left = sheet.shape[1] - MARGIN - 2 * 60 - GAP
    inks = [
        (sheet[top : top + 2 * LINE, start : start + 60] < 100).all(axis=2).sum()
        for top in (MARGIN + 60 + GAP, MARGIN + 60 + 3 * GAP + 2 * LINE + 60)
        for start in (left, left + 60 + GAP)
    ]
    assert [ink > 10 for ink in inks] == [True, False, False, True]
