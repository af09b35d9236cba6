"""`osiris map`: one HTML file with everything in it, for a browser without a server or a network."""

from __future__ import annotations

import base64
import hashlib
import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files

import numpy as np
from markupsafe import Markup
from PIL import Image

from osiris.reporting.writer import render_template

SHEET = 2048
"""Side of an atlas of thumbnails, in pixels."""
LEAST_CELL, MOST_CELL, PIXELS = 48, 128, 45_000_000
"""Side of a thumbnail in the atlas, and of all of them together: about 15 MB."""
MOST_PICTURES = 20_000
"""Of more images, only points are in the file."""
SHOWN_NEAR = 12


@dataclass(frozen=True)
class MapImages:
    """One row for each image, in the order of time."""

    names: list[str]
    places: np.ndarray
    """float [n, 2]"""
    near: np.ndarray
    """int [n, k]: rows of the nearest images"""
    cosines: np.ndarray
    """float [n, k]"""
    step: np.ndarray
    """int [n]: of `steps`"""
    steps: list[str]
    month: list[str]
    taken: list[str]
    """By the clock of the camera; empty: not known."""
    folder: list[str]
    group: np.ndarray
    medoids: list[int]
    novelty: np.ndarray
    size: np.ndarray
    """int [n, 2]: width and height"""
    tags: list[str] | None
    """Proposed labels; empty: none."""
    twins: list[dict[str, object]]
    """kind, images (rows), goes (whether each could go)"""
    approximate: bool


@dataclass(frozen=True)
class Atlas:
    """Thumbnails in sheets, row by row, each in a square cell."""

    cell: int
    sheets: list[str]
    """WebP, in base64."""
    known: np.ndarray
    """bool [n]: whether there is a thumbnail."""


def make_atlas(pictures: Iterable[Image.Image | None], count: int) -> Atlas:
    cell = int(np.clip((PIXELS / max(1, count)) ** 0.5, LEAST_CELL, MOST_CELL)) // 8 * 8
    across = SHEET // cell
    sheets, known, sheet = list[str](), np.zeros(count, bool), Image.new("RGB", (SHEET, SHEET))

    def finish(rows: int) -> None:
        content = io.BytesIO()
        sheet.crop((0, 0, SHEET, rows * cell)).save(content, "WEBP", quality=78, method=2)
        sheets.append(base64.b64encode(content.getvalue()).decode())

    for number, picture in enumerate(pictures):
        row, column = divmod(number % across**2, across)
        if picture is not None:
            known[number] = True
            scale = cell / max(picture.size)
            small = picture.resize([max(1, round(scale * side)) for side in picture.size], Image.Resampling.BICUBIC)
            sheet.paste(small, (column * cell + (cell - small.width) // 2, row * cell + (cell - small.height) // 2))
        if number + 1 == count or (number + 1) % across**2 == 0:
            finish(row + 1)
            sheet = Image.new("RGB", (SHEET, SHEET))
    return Atlas(cell, sheets, known)


def map_page(title: str, images: MapImages, atlas: Atlas | None, link: Sequence[str] | None) -> Markup:
    """`link`: addresses of the files, relative to the page; None: the page has no way to them."""
    data = {
        "title": title,
        "names": images.names,
        "x": _numbers(images.places[:, 0], "<f4"),
        "y": _numbers(images.places[:, 1], "<f4"),
        "near": _numbers(images.near[:, :SHOWN_NEAR], "<u4"),
        "cosines": _numbers(255 * np.clip(images.cosines[:, :SHOWN_NEAR], 0, 1), "u1"),
        "beside": min(SHOWN_NEAR, images.near.shape[1]),
        "step": _numbers(images.step, "<u2"),
        "steps": images.steps,
        "taken": images.taken,
        "kinds": {
            "month": _coded(images.month),
            "folder": _coded(images.folder),
            **({} if images.tags is None else {"tag": _coded(images.tags)}),
            "group": {
                "names": [f"group {one + 1}" for one in range(len(images.medoids))],
                "codes": _numbers(images.group, "<u2"),
            },
        },
        "medoids": images.medoids,
        "novelty": _numbers(images.novelty, "<f4"),
        "width": _numbers(images.size[:, 0], "<u4"),
        "height": _numbers(images.size[:, 1], "<u4"),
        "twins": images.twins,
        "approximate": images.approximate,
        "atlas": None if atlas is None else {"cell": atlas.cell, "sheet": SHEET, "known": _numbers(atlas.known, "u1")},
        "link": link,
    }
    script = source("map.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return render_template(
        "map.html",
        title=title,
        count=len(images.names),
        style=source("map.css"),
        script=script,
        digest=digest,
        data=_inside_script(data),
        sheets=[Markup(sheet) for sheet in ([] if atlas is None else atlas.sheets)],
        linked=link is not None,
    )


def source(name: str) -> Markup:
    return Markup((files("osiris.reporting") / "templates" / name).read_text(encoding="utf-8"))


def _inside_script(data: object) -> Markup:
    """JSON in which nothing ends a script or begins a comment."""
    text = json.dumps(data, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return Markup(text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"))


def _numbers(values: np.ndarray, kind: str) -> str:
    return base64.b64encode(np.ascontiguousarray(values).astype(kind).tobytes()).decode()


def _coded(values: Sequence[str]) -> dict[str, object]:
    names, codes = np.unique(values, return_inverse=True)
    return {"names": names.tolist(), "codes": _numbers(codes, "<u2")}
