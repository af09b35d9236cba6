"""A figure is a list of panels. The page lays the panels out as the screen allows; files hold them in a grid.

Panels are drawn once, as SVG and as pixels, and put together here: what is in the file is what is on the page.
"""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Canvas
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from PIL import Image

from osiris.files import write_atomically, write_text
from osiris.report import svg
from osiris.report.style import GROUND, INK, MUTED, SETTINGS, Style

DPI = 160
POINTS = 72.0


@dataclass(frozen=True)
class Panel:
    """One set of axes. `draw` fills it; sizes are inches."""

    draw: Callable[[Axes], None]
    width: float = 3.7
    height: float = 2.5
    about: str = ""
    """What a reader who cannot see it should know; the figure's own sentence by default."""


@dataclass(frozen=True)
class Picture:
    """A panel of pixels, such as a contact sheet. `scale`: screen pixels per image pixel."""

    image: Image.Image
    caption: str
    scale: float = 2.0
    about: str = ""


@dataclass(frozen=True)
class Figure:
    """Panels with what a figure must say: what to see, under which protocol, over how many seeds, made by what."""

    name: str
    title: str
    see: str
    """One sentence: what to see in it."""
    panels: Sequence[Panel | Picture]
    protocol: str = ""
    runs: tuple[int, ...] = ()
    """Numbers of the runs (see the list of commands) it is made of."""
    seeds: str = ""
    legend: Sequence[tuple[str, Style]] = ()
    columns: int = 3
    """In the files; the page decides for itself."""
    markers: bool = True
    """Whether lines in the legend carry markers."""
    wide: bool = False
    """Each panel takes the whole width of the page."""
    note: str = ""

    @property
    def basis(self) -> str:
        """`class-agnostic KNN, 3 seeds`"""
        return ", ".join(part for part in (self.protocol, self.seeds) if part)


@dataclass(frozen=True)
class Rendered:
    """A panel, drawn."""

    markup: str
    """A bare <svg>."""
    image: Image.Image
    caption: str = ""
    about: str = ""
    pixels: tuple[int, int] | None = None
    """Of a picture: its size on the page."""


@dataclass(frozen=True)
class Drawn:
    """A figure, drawn."""

    figure: Figure
    panels: list[Rendered] = field(default_factory=list)

    def save(self, folder: Path) -> None:
        """NAME.svg and NAME.png."""
        head, foot = _title_strip(self), _foot_strip(self)
        parts = [*([head] if head else []), *_rows(self), *([foot] if foot else [])]
        width = max(sum(_points(item)[0] for item in row) for row in parts)
        pieces, y = [], 0.0
        canvas_height = sum(max(_points(item)[1] for item in row) for row in parts)
        sheet = Image.new("RGB", (_dots(width), _dots(canvas_height)), GROUND)
        for row in parts:
            x = 0.0
            for item in row:
                pieces.append(svg.placed(item.markup, x, y))
                picture = item.image.convert("RGBA")
                target = (_dots(_points(item)[0]), _dots(_points(item)[1]))
                if picture.size != target:
                    picture = picture.resize(target, Image.Resampling.NEAREST)
                sheet.paste(picture, (_dots(x), _dots(y)), picture)
                x += _points(item)[0]
            y += max(_points(item)[1] for item in row)
        about = f"{self.figure.see} ({self.figure.basis})" if self.figure.basis else self.figure.see
        write_text(
            folder / f"{self.figure.name}.svg",
            svg.document(pieces, width, canvas_height, self.figure.title, about, GROUND),
        )
        write_atomically(
            folder / f"{self.figure.name}.png", lambda path: sheet.save(path, format="PNG", dpi=(DPI, DPI))
        )


def draw(figure: Figure) -> Drawn:
    """Draw every panel."""
    rendered = []
    for number, panel in enumerate(figure.panels):
        prefix = f"{figure.name}-{number}"
        if isinstance(panel, Picture):
            rendered.append(_picture(panel, figure))
        else:
            rendered.append(_panel(panel, prefix, panel.about or figure.see))
    return Drawn(figure, rendered)


def canvas_of(panel: Panel) -> Canvas:
    """The matplotlib figure of a panel, laid out."""
    with matplotlib.rc_context(SETTINGS):
        canvas = Canvas(figsize=(panel.width, panel.height), layout=ConstrainedLayoutEngine(w_pad=0.05, h_pad=0.05))
        FigureCanvasAgg(canvas)
        panel.draw(canvas.subplots())
    return canvas


def _panel(panel: Panel, prefix: str, about: str) -> Rendered:
    with matplotlib.rc_context(SETTINGS):
        canvas = canvas_of(panel)
        pixels = io.BytesIO()
        canvas.savefig(pixels, format="png", dpi=DPI)
        canvas.set_layout_engine("none")  # laid out once is enough
        text = io.StringIO()
        canvas.savefig(text, format="svg", metadata={"Date": None})
    return Rendered(svg.tidy(text.getvalue(), prefix), Image.open(pixels).convert("RGBA"), about=about)


def _picture(picture: Picture, figure: Figure) -> Rendered:
    width, height = (round(side * picture.scale) for side in picture.image.size)
    points = (width * 0.75, height * 0.75)
    title = 15 if picture.caption else 0
    text = (
        f'<text x="4" y="11" fill="{INK}" style="font-size: 9.5px; font-weight: 600; font-family: {svg.FONT}">'
        f"{_escape(picture.caption)}</text>"
        if picture.caption
        else ""
    )
    markup = (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'viewBox="0 0 {points[0] + 8:g} {points[1] + title + 6:g}">{text}'
        f'<image x="4" y="{title}" width="{points[0]:g}" height="{points[1]:g}" style="image-rendering: pixelated" '
        f'xlink:href="{data_uri(picture.image)}"/></svg>'
    )
    sheet = Image.new("RGBA", (_dots(points[0] + 8), _dots(points[1] + title + 6)), (0, 0, 0, 0))
    if picture.caption:
        strip = _text_strip(picture.caption, points[0] + 8, title, INK, 9.5, bold=True).image
        sheet.paste(strip, (0, 0), strip)
    scaled = picture.image.convert("RGBA").resize((_dots(points[0]), _dots(points[1])), Image.Resampling.NEAREST)
    sheet.paste(scaled, (_dots(4), _dots(title)))
    return Rendered(
        markup, sheet, picture.caption, picture.about or f"{figure.title}: {picture.caption}", (width, height)
    )


def data_uri(image: Image.Image) -> str:
    file = io.BytesIO()
    image.save(file, format="PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def _rows(drawn: Drawn) -> list[list[Rendered]]:
    columns = max(1, min(drawn.figure.columns, len(drawn.panels)))
    return [drawn.panels[start : start + columns] for start in range(0, len(drawn.panels), columns)]


def _width(drawn: Drawn) -> float:
    return max(sum(_points(item)[0] for item in row) for row in _rows(drawn))


def _title_strip(drawn: Drawn) -> list[Rendered]:
    return [_text_strip(drawn.figure.title, _width(drawn), 22, INK, 12, bold=True)]


def _foot_strip(drawn: Drawn) -> list[Rendered]:
    """The legend, in as many rows as the width asks for, and the basis of the figure."""
    figure, width = drawn.figure, _width(drawn)
    handles = [handle(style, name, figure.markers) for name, style in figure.legend]
    longest = max((len(name) for name, _ in figure.legend), default=0)
    columns = max(1, min(len(handles), int(width // (longest * 5.2 + 34)))) if handles else 1
    height = 14 + 13 * math.ceil(len(handles) / columns)

    def fill(axes: Axes) -> None:
        axes.set_axis_off()
        if handles:
            axes.legend(handles=handles, ncols=columns, loc="upper left", fontsize=8, borderpad=0, handlelength=2.6)
        axes.text(0.0, 0.0, figure.basis, transform=axes.transAxes, fontsize=7.5, color=MUTED, va="bottom")

    if not handles and not figure.basis:
        return []
    return [_panel(Panel(fill, width / POINTS, height / POINTS), f"{figure.name}-foot", figure.basis)]


def handle(style: Style, name: str, markers: bool = True) -> Line2D:
    return Line2D([], [], label=name, marker=style.marker if markers else "", **style.line)


def _text_strip(text: str, width: float, height: float, colour: str, size: float, bold: bool = False) -> Rendered:
    canvas = Canvas(figsize=(width / POINTS, height / POINTS))
    FigureCanvasAgg(canvas)
    with matplotlib.rc_context(SETTINGS):
        weight = "bold" if bold else "normal"
        canvas.text(4 / width, 0.35, text, color=colour, fontsize=size, fontweight=weight, va="baseline")
        pixels, vector = io.BytesIO(), io.StringIO()
        canvas.savefig(pixels, format="png", dpi=DPI, transparent=True)
        canvas.savefig(vector, format="svg", metadata={"Date": None}, transparent=True)
    return Rendered(svg.tidy(vector.getvalue(), "text"), Image.open(pixels).convert("RGBA"))


def _points(item: Rendered) -> tuple[float, float]:
    return svg.size(item.markup)


def _dots(points: float) -> int:
    return max(1, round(points * DPI / POINTS))


def _escape(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;")
