"""A figure as a file: its panels in a grid, with title, legend and basis, as SVG and as PNG."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import matplotlib
from PIL import Image, ImageDraw, ImageFont

from osiris.files import write_atomically, write_text
from osiris.report import svg
from osiris.report.figure import DPI, Drawn, Rendered, data_uri
from osiris.report.legend import swatch_parts
from osiris.report.style import GROUND, INK, MUTED, Style

POINTS = 72.0
TITLE, CAPTION, LEGEND, BASIS = 12.0, 9.5, 8.5, 7.5
"""Sizes of text in points."""


@dataclass(frozen=True)
class Word:
    """A line of text at a place (points; y is the base line)."""

    text: str
    x: float
    y: float
    size: float
    colour: str = INK
    bold: bool = False


@dataclass(frozen=True)
class Placed:
    """A panel at a place, in points."""

    item: Rendered
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True)
class Layout:
    """Everything on the sheet, and its size."""

    width: float
    height: float
    panels: list[Placed]
    words: list[Word]
    swatches: list[tuple[Style, float, float]]


def save(drawn: Drawn, folder: Path) -> None:
    """NAME.svg and NAME.png."""
    layout = lay_out(drawn)
    figure = drawn.figure
    about = f"{figure.see} ({figure.basis})" if figure.basis else figure.see
    write_text(folder / f"{figure.name}.svg", _vector(layout, figure.title, about))
    sheet = _pixels(layout)
    write_atomically(folder / f"{figure.name}.png", lambda path: sheet.save(path, format="PNG", dpi=(DPI, DPI)))


def lay_out(drawn: Drawn) -> Layout:
    columns = max(1, min(drawn.figure.columns, len(drawn.panels)))
    words, panels = [Word(drawn.figure.title, 6, 18, TITLE, bold=True)], []
    y, width = 26.0, text_width(drawn.figure.title, TITLE, bold=True) + 12
    for start in range(0, len(drawn.panels), columns):
        x, tallest = 0.0, 0.0
        for item in drawn.panels[start : start + columns]:
            size, caption = _size(item), 0.0
            if item.pixels is not None and item.caption:
                words.append(Word(shortened(item.caption, size[0], CAPTION), x + 6, y + 11, CAPTION, bold=True))
                caption = 16.0
            margin = 6.0 if item.pixels is not None else 0.0
            panels.append(Placed(item, x + margin, y + caption, *size))
            x += size[0] + 2 * margin
            tallest = max(tallest, size[1] + caption + margin)
        width, y = max(width, x), y + tallest
    rows, swatches, y = _legend(drawn, width, y + 4)
    words += rows
    if drawn.figure.basis:
        words.append(Word(drawn.figure.basis, 6, y + 12, BASIS, MUTED))
        y += 18
    return Layout(width, y + 2, panels, words, swatches)


def _legend(drawn: Drawn, width: float, y: float) -> tuple[list[Word], list[tuple[Style, float, float]], float]:
    """As many columns as fit."""
    entries = drawn.figure.legend
    if not entries:
        return [], [], y
    cell = max(text_width(name, LEGEND) for name, _ in entries) + 46
    columns = max(1, int((width - 6) // cell))
    words, swatches = [], []
    for number, (name, style) in enumerate(entries):
        row, column = divmod(number, columns)
        x, top = 6 + column * cell, y + 13 * row
        swatches.append((style if drawn.figure.markers else style.plain, x, top))
        words.append(Word(name, x + 35, top + 9, LEGEND))
    return words, swatches, y + 13 * math.ceil(len(entries) / columns) + 2


def _size(item: Rendered) -> tuple[float, float]:
    return (item.pixels[0] * 0.75, item.pixels[1] * 0.75) if item.pixels else svg.size(item.markup)


def _vector(layout: Layout, title: str, about: str) -> str:
    parts = []
    for placed in layout.panels:
        if placed.item.pixels is None:
            parts.append(svg.placed(placed.item.markup, placed.x, placed.y))
        else:
            parts.append(
                f'<image x="{placed.x:g}" y="{placed.y:g}" width="{placed.width:g}" height="{placed.height:g}" '
                f'style="image-rendering: pixelated" xlink:href="{data_uri(placed.item.image)}"/>'
            )
    for style, x, y in layout.swatches:
        parts.append(f'<g transform="translate({x:g} {y:g})">{swatch_parts(style, style.colour)}</g>')
    for word in layout.words:
        weight = "; font-weight: 600" if word.bold else ""
        parts.append(
            f'<text x="{word.x:g}" y="{word.y:g}" fill="{word.colour}" '
            f'style="font-size: {word.size:g}px{weight}; font-family: {svg.FONT}">{svg.escape(word.text)}</text>'
        )
    return svg.document(parts, layout.width, layout.height, title, about, GROUND)


def _pixels(layout: Layout) -> Image.Image:
    sheet = Image.new("RGB", (_dots(layout.width), _dots(layout.height)), GROUND)
    pen = ImageDraw.Draw(sheet)
    for placed in layout.panels:
        picture = placed.item.image.convert("RGBA")
        target = (_dots(placed.width), _dots(placed.height))
        if picture.size != target:
            picture = picture.resize(target, Image.Resampling.NEAREST)
        sheet.paste(picture, (_dots(placed.x), _dots(placed.y)), picture)
    for style, x, y in layout.swatches:
        _draw_swatch(pen, style, x, y)
    for word in layout.words:
        font = font_of(word.size, word.bold)
        pen.text((_dots(word.x), _dots(word.y)), word.text, fill=word.colour, font=font, anchor="ls")
    return sheet


def _draw_swatch(pen: ImageDraw.ImageDraw, style: Style, x: float, y: float) -> None:
    """The line with its dashes, and a mark of the marker's kind: round, or with as many corners."""
    middle, at, end = _dots(y + 6), x + 1, x + 29
    pattern = [28.0] if isinstance(style.dash, str) else [2 * length for length in style.dash[1]]
    while at < end:
        for number, length in enumerate(pattern):
            stop = min(at + length, end)
            if number % 2 == 0 and at < end:
                pen.line([(_dots(at), middle), (_dots(stop), middle)], fill=style.colour, width=_dots(1.6))
            at = stop
    if style.marker:
        corners = {"s": 4, "D": 4, "d": 4, "^": 3, "v": 3, "<": 3, ">": 3, "p": 5, "h": 6}.get(style.marker)
        turn = {"D": 45, "d": 45, "v": 180, "<": 90, ">": 270}.get(style.marker, 0)
        centre = (_dots(x + 15), middle)
        if corners is None:
            radius = _dots(1.8 if style.marker == "." else 3)
            pen.circle(centre, radius, fill=style.colour)
        else:
            pen.regular_polygon((centre[0], centre[1], _dots(3.8)), corners, turn, fill=style.colour)


@cache
def font_of(size: float, bold: bool = False) -> ImageFont.FreeTypeFont:
    """matplotlib brings the fonts along."""
    name = "DejaVuSans-Bold.ttf" if bold else "DejaVuSans.ttf"
    return ImageFont.truetype(str(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / name), _dots(size))


def text_width(text: str, size: float, bold: bool = False) -> float:
    """In points."""
    return font_of(size, bold).getlength(text) * POINTS / DPI


def shortened(text: str, width: float, size: float) -> str:
    """As much of a caption as fits above a picture."""
    while len(text) > 4 and text_width(text, size, bold=True) > width:
        text = text[:-2].rstrip(" ,:…") + "…"
    return text


def _dots(points: float) -> int:
    return max(1, round(points * DPI / POINTS))
