"""A figure of the report: one matplotlib figure with its caption, written as SVG and PNG and shown on the page.

The page shows the SVG itself. Every colour in it that has a variant for dark backgrounds becomes a CSS variable, so one
drawing serves the light and the dark theme.
"""

from __future__ import annotations

import base64
import io
import math
import re
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from pathlib import Path
from typing import Concatenate, ParamSpec

import matplotlib
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Canvas
from matplotlib.lines import Line2D
from PIL import Image

from osiris.files import write_atomically, write_text
from osiris.reporting.studies import Study, seeds_of
from osiris.reporting.style import SETTINGS, Style, swaps
from osiris.runs.run import Run

P = ParamSpec("P")
DrawFigure = Callable[Concatenate["Study", P], "Figure | None"]
DPI = 150
LEGEND_ROW = 0.19
"""Height of a row of the legend, in inches."""


class Figure:
    """A drawing with its title, caption and basis: what the functions in `figures/` return."""

    name: str
    """Of its files, and its anchor on the page; the writer turns it into a safe file name."""
    title: str
    caption: str
    """How to read it, and what it shows in these runs."""
    runs: tuple[int, ...]
    """Numbers of the runs it is made of (see the list of commands on the page)."""

    def __init__(self, canvas: Canvas, runs: Iterable[Run | str], basis: str = "", **values: object) -> None:
        """`runs`: a label stands for all runs of that method. `basis`: what was measured, such as `class-agnostic KNN`.
        `values` are inserted into name, title and caption."""
        self.canvas, self.made_of, self.basis, self.values = canvas, runs, basis, values

    def describe(self, study: Study, name: str, title: str, caption: str) -> None:
        runs = [run for one in self.made_of for run in (study.by_label[one] if isinstance(one, str) else [one])]
        parts = (f"{study.identifier}-{name}", title, " ".join(caption.split()))
        self.name, self.title, self.caption = (part.format(**self.values).strip() for part in parts)
        self.basis = ", ".join(part for part in (self.basis, seeds_of(runs)) if part)
        self.runs = tuple(run.number for run in runs)


def figure(name: str, title: str) -> Callable[[DrawFigure[P]], DrawFigure[P]]:
    """Gives the figures that a function draws their name, title and caption, which is its docstring."""

    def decorate(draw: DrawFigure[P]) -> DrawFigure[P]:
        @wraps(draw)
        def make(study: Study, *args: P.args, **options: P.kwargs) -> Figure | None:
            made = draw(study, *args, **options)
            if made is not None:
                made.describe(study, name, title, draw.__doc__ or "")
            return made

        return make

    return decorate


def panels(
    count: int, columns: int = 3, width: float = 3.7, height: float = 2.5, share_y: bool = False
) -> tuple[Canvas, list[Axes]]:
    """A canvas with `count` axes in rows of up to `columns`; sizes of one panel in inches."""
    columns = max(1, min(columns, count))
    rows = math.ceil(count / columns)
    canvas = Canvas(figsize=(columns * width, rows * height), dpi=DPI, layout="constrained")
    FigureCanvasAgg(canvas)
    every = list(canvas.subplots(rows, columns, squeeze=False, sharey=share_y).flat)
    for unused in every[count:]:
        unused.remove()
    return canvas, every[:count]


def add_legend(canvas: Canvas, entries: Sequence[tuple[str, Style]], markers: bool = True) -> None:
    """A legend above all panels. The canvas grows by the height of the legend."""
    handles = [
        Line2D([], [], label=name, marker=style.marker if markers else "", markeredgewidth=0, **style.line)
        for name, style in entries
    ]
    rows = math.ceil(sum(0.7 + 0.07 * len(name) for name, _ in entries) / canvas.get_figwidth())
    canvas.set_figheight(canvas.get_figheight() + 0.1 + LEGEND_ROW * rows)
    canvas.legend(handles=handles, loc="outside upper left", ncols=math.ceil(len(entries) / rows), borderaxespad=0.2)


def pictures(images: Sequence[tuple[str, Image.Image]], columns: int, width: float) -> Canvas:
    """A canvas with images that are not smoothed, each under its title."""
    height = width * max(image.height / image.width for _, image in images)
    canvas, every = panels(len(images), columns, width, height + (0.25 if any(title for title, _ in images) else 0.0))
    for axes, (title, image) in zip(every, images):
        axes.imshow(image, interpolation="none")
        axes.set_title(title)
        bare(axes)
    return canvas


def bare(axes: Axes) -> None:
    """No ticks, no grid, no frame."""
    axes.set(xticks=[], yticks=[])
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)


def save(figure: Figure, folder: Path) -> str:
    """Write NAME.svg, NAME.png and NAME.pdf, and return the SVG."""
    description = f"{figure.caption} ({figure.basis})" if figure.basis else figure.caption
    text, pixels, pages = io.StringIO(), io.BytesIO(), io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": figure.name}, SETTINGS):
        layout = figure.canvas.get_layout_engine()
        if layout is not None:
            layout.execute(figure.canvas)
            figure.canvas.set_layout_engine(None)  # keep the layout: every drawing would compute it again
        about = {"Title": figure.title, "Description": description}
        figure.canvas.savefig(text, format="svg", metadata={**about, "Date": None, "Creator": None})
        figure.canvas.savefig(pixels, format="png", metadata={**about, "Software": None})
        titled = {
            "Title": figure.title,
            "Subject": description,
            "CreationDate": None,
            "Creator": None,
            "Producer": None,
        }
        figure.canvas.savefig(pages, format="pdf", metadata=titled)
    write_text(folder / f"{figure.name}.svg", text.getvalue())
    write_atomically(folder / f"{figure.name}.png", lambda path: path.write_bytes(pixels.getvalue()))
    write_atomically(folder / f"{figure.name}.pdf", lambda path: path.write_bytes(pages.getvalue()))
    return text.getvalue()


def inline(svg: str) -> Markup:
    """matplotlib's SVG as an element of the page: no header, short numbers, themed colours, compressed images.

    matplotlib escapes all text that it writes, so the result is safe to insert. Only ids that something refers to are
    kept; `svg.hashsalt` makes them differ between figures.
    """
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"\s*<metadata>.*?</metadata>|\s*<title>.*?</title>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"\s*<defs>\s*<style[^>]*>.*?</style>\s*</defs>", "", svg, flags=re.DOTALL)
    used = set(re.findall(r'(?:href="|url\()#([^")]+)', svg))
    svg = re.sub(r' id="([^"]*)"', lambda match: match[0] if match[1] in used else "", svg)
    width = re.search(r' width="([\d.]+)pt"', svg)
    assert width is not None, "matplotlib writes the width"
    svg = svg.replace("<svg", f'<svg style="--width:{float(width[1]) * 96 / 72:.0f}px"', 1)
    svg = re.sub(r' (width|height)="[\d.]+pt"| xmlns(:xlink)?="[^"]*"| version="1.1"', "", svg)
    svg = re.sub(r' d="[^"]*"', lambda path: re.sub(r"(\.\d\d)\d+", r"\1", path[0]), svg)
    svg = re.sub(r'(<image [^>]*)"data:image/png;base64,([^"]*)"', _compressed, svg)
    for colour in swaps():
        svg = svg.replace(colour, f"var({variable(colour)})")
    return Markup(re.sub(r"\n\s*", "\n", svg))


def _compressed(match: re.Match[str]) -> str:
    """The same image as WebP if that is smaller; photographs as PNG would take megabytes."""
    pixels, small = base64.b64decode(match[2]), io.BytesIO()
    Image.open(io.BytesIO(pixels)).save(small, format="WEBP", quality=90)
    if len(small.getvalue()) >= len(pixels):
        return match[0]
    return f'{match[1]}"data:image/webp;base64,{base64.b64encode(small.getvalue()).decode()}"'


def variable(colour: str) -> str:
    return f"--c{colour.removeprefix('#')}"


def theme(dark: bool) -> str:
    """CSS declarations of the colours of one theme."""
    return "".join(f"{variable(light)}:{night if dark else light};" for light, night in swaps().items())
