"""`osiris search`: the images of a folder that are nearest to one image."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

THUMBNAIL = 96
COLUMNS = 6


@dataclass(frozen=True)
class Args:
    """Find the images below a folder whose features are nearest to those of one image.

    Prints a table of files and cosine similarities, and draws the images on a contact sheet.

    Examples:
      osiris search state photos cat.jpg
      osiris search state photos cat.jpg --count 30 --out cats.png
    """

    state: Annotated[Path, tyro.conf.Positional]
    """The directory of a state or of a finished run."""
    folder: Annotated[Path, tyro.conf.Positional]
    """Where to search: all images below this folder."""
    query: Annotated[Path, tyro.conf.Positional]
    """The image to search for."""
    count: int = 12
    """How many images to find."""
    out: Path = Path("search.png")
    """The contact sheet: the query, then the images found, in order."""


def run(args: Args) -> int:
    from rich.table import Table

    from osiris.console import console, notice, printable, say
    from osiris.errors import UserError
    from osiris.files import require_writable
    from osiris.learner import Learner

    if args.count < 1:
        raise UserError(f"--count {args.count}: give a positive number.")
    if args.out.suffix.lower() not in (".png", ".jpg", ".jpeg", ".webp"):
        raise UserError(f"--out {args.out}: the contact sheet is an image; use a name that ends in .png or .jpg.")
    if not args.query.is_file():
        raise UserError(f"{args.query} does not exist; give the image file to search for.")
    require_writable(args.out.parent)
    hits, notices = Learner(args.state).search(args.folder, args.query, args.count)
    notice(*notices)
    table = Table(title=f"nearest to {printable(str(args.query))}")
    for column in ("", "image", "similarity"):
        table.add_column(column, justify="left" if column == "image" else "right", overflow="fold")
    for place, (path, similarity) in enumerate(hits, 1):
        table.add_row(str(place), printable(str(path)), f"{similarity:.3f}")
    console.print(table, markup=False)
    draw(args.query, [path for path, _ in hits], args.out)
    say(f"contact sheet: {args.out}")
    return 0


def draw(query: Path, paths: list[Path], out: Path) -> None:
    """The query in a row of its own, then the images found, COLUMNS to a row."""
    import numpy as np
    import torch

    from osiris.data.decode import decode
    from osiris.files import write_atomically
    from osiris.report.benchmark_images import contact_sheet

    rows = [[query], *(paths[start : start + COLUMNS] for start in range(0, len(paths), COLUMNS))]
    images = [torch.from_numpy(np.stack([decode(path, THUMBNAIL) for path in row])) for row in rows]
    names = [
        "query",
        *(f"{start + 1} to {min(start + COLUMNS, len(paths))}" for start in range(0, len(paths), COLUMNS)),
    ]
    sheet = contact_sheet(images, names, scale=1)
    kind = {".jpg": "JPEG", ".jpeg": "JPEG"}.get(out.suffix.lower(), out.suffix[1:].upper())
    write_atomically(out, lambda temporary: sheet.save(temporary, kind))
