"""A figure is a list of panels, each drawn once, as SVG and as pixels.

The page lays the panels out as the screen allows (markup.py); files hold them in a grid (compose.py).
"""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backend_bases import RendererBase
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Canvas
from PIL import Image

from osiris.report import svg
from osiris.report.style import SETTINGS, Style

DPI = 160


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
    detail: str = ""
    """After the caption, on the page."""


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
    """A bare <svg>; empty for a picture."""
    image: Image.Image
    caption: str = ""
    detail: str = ""
    about: str = ""
    pixels: tuple[int, int] | None = None
    """Of a picture: its size on the page."""


@dataclass(frozen=True)
class Drawn:
    """A figure, drawn."""

    figure: Figure
    panels: list[Rendered] = field(default_factory=list)


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
        canvas = Canvas(figsize=(panel.width, panel.height), dpi=DPI)
        renderer = FigureCanvasAgg(canvas).get_renderer()
        axes = canvas.add_axes((0.13, 0.17, 0.84, 0.7))
        panel.draw(axes)
        _fit(canvas, axes, renderer)
    return canvas


def _fit(canvas: Canvas, axes: Axes, renderer: RendererBase) -> None:
    """Give the axes all the room that their labels leave. One look at the labels, where matplotlib's own layout engine
    takes several: a page has a hundred panels."""
    axes.apply_aspect()
    drawn, box = axes.get_tightbbox(renderer), axes.get_window_extent(renderer)
    assert drawn is not None
    width, height, pad = canvas.bbox.width, canvas.bbox.height, 0.05 * DPI
    left, bottom = box.x0 - drawn.x0 + pad, box.y0 - drawn.y0 + pad
    right, top = drawn.x1 - box.x1 + pad, drawn.y1 - box.y1 + pad
    axes.set_position((left / width, bottom / height, 1 - (left + right) / width, 1 - (bottom + top) / height))


def _panel(panel: Panel, prefix: str, about: str) -> Rendered:
    with matplotlib.rc_context(SETTINGS):
        canvas, text = canvas_of(panel), io.StringIO()
        agg = FigureCanvasAgg(canvas)
        agg.draw()
        pixels = Image.frombytes("RGBA", agg.get_width_height(), bytes(agg.buffer_rgba()))
        canvas.savefig(text, format="svg", metadata={"Date": None})
    return Rendered(svg.tidy(text.getvalue(), prefix), pixels, about=about)


def _picture(picture: Picture, figure: Figure) -> Rendered:
    width, height = (round(side * picture.scale) for side in picture.image.size)
    about = picture.about or f"{figure.title}: {picture.caption}"
    return Rendered("", picture.image, picture.caption, picture.detail, about, (width, height))


def data_uri(image: Image.Image, kind: Literal["PNG", "WEBP"] = "PNG") -> str:
    """PNG for files, which any program opens; WebP for the page, where photographs would weigh megabytes."""
    file = io.BytesIO()
    if kind == "PNG":
        image.save(file, format="PNG", optimize=True)
    else:
        image.save(file, format="WEBP", quality=90, method=4)
    return f"data:image/{kind.lower()};base64," + base64.b64encode(file.getvalue()).decode()
