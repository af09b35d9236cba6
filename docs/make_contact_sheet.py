"""Draw the picture of tinyworld for the README: `python docs/make_contact_sheet.py`."""

from __future__ import annotations

from pathlib import Path

import torch
from PIL import Image

from osiris.data import tinyworld
from osiris.reporting.benchmark_images import contact_sheet

IMAGES = 9


def main() -> None:
    """Three columns, one per environment; a row per class."""
    columns = []
    for _, tasks in tinyworld.ENVIRONMENTS:
        classes = [label for task in tasks for label in tinyworld.TASKS[task]]
        rows = [torch.from_numpy(tinyworld.render("train", IMAGES, [label])[0]) for label in classes]
        columns.append(contact_sheet(rows, [tinyworld.CLASS_NAMES[label] for label in classes], scale=1))
    size = sum(column.width for column in columns), max(column.height for column in columns)
    sheet = Image.new("RGB", size, "white")
    left = 0
    for column in columns:
        sheet.paste(column, (left, 0))
        left += column.width
    target = Path(__file__).parent / "pictures" / "tinyworld.png"
    target.parent.mkdir(exist_ok=True)
    sheet.quantize(192).save(target, optimize=True)
    print(target, sheet.size, target.stat().st_size)


if __name__ == "__main__":
    main()
