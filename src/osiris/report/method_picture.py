"""The spaces of a method as a picture, drawn from a trace of its terms: nothing here knows a method by name.

    python -m osiris.report.method_picture docs/methods/pictures

Images enter at the left, pass encoders and projectors, and meet the losses at the right. A grey, dashed box is frozen;
two bars across a line stop the gradient.
"""

from __future__ import annotations

import html
import io
import itertools
import json
import re
import sys
import textwrap
from dataclasses import asdict
from fractions import Fraction
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, PathPatch, Polygon
from matplotlib.path import Path as Curve
from PIL import Image

from osiris.errors import UserError
from osiris.files import write_text
from osiris.framework.methods import ABLATIONS, READINGS, ZOO, Method, find_method
from osiris.framework.tracing import Traced, trace
from osiris.report.method_layout import ROW, Layout, lay_out
from osiris.report.style import GROUND, INK, MUTED, SETTINGS, role_style

CHIP, BOX, PILL, LOSS, GAP = 1.05, 0.62, 1.1, 2.75, 0.5
"""Widths of images, networks, embeddings and losses, and the space between columns."""
STREAMS = {"continual": "current task", "joint": "all tasks, shuffled", "first-task": "first task alone"}
ENCODER_FILL, HEAD_FILL, IMAGE_FILL, FROZEN_FILL = "#dbe7f2", "#f3e9d6", "#ffffff", "#ececec"


class Sheet:
    """Axes in inches, with the few shapes that the picture needs."""

    def __init__(self, axes: Axes) -> None:
        self.axes = axes

    def box(self, x: float, y: float, width: float, height: float, text: str, fill: str, **style) -> None:
        """Centred at (x, y)."""
        rounding = style.pop("rounding", 0.06)
        frozen, size = style.pop("frozen", False), style.pop("size", 10)
        edge = style.pop("edge", MUTED)
        shape = FancyBboxPatch(
            (x - width / 2, y - height / 2),
            width,
            height,
            boxstyle=f"round,pad=0,rounding_size={rounding}",
            facecolor=FROZEN_FILL if frozen else fill,
            edgecolor=edge,
            linewidth=style.pop("line", 0.9),
            linestyle=(0, (3, 2)) if frozen else "-",
            zorder=3,
        )
        self.axes.add_patch(shape)
        self.text(x, y, text, size, MUTED if frozen else INK, **style)

    def text(self, x: float, y: float, text: str, size: float = 8, colour: str = INK, **style) -> None:
        style = {"ha": "center", "va": "center", "zorder": 5, **style}
        self.axes.text(x, y, text, fontsize=size, color=colour, **style)

    def line(self, start: tuple[float, float], end: tuple[float, float], colour: str = MUTED, **style) -> None:
        """From left to right, bent where the heights differ; `arrow` ends it with a head."""
        arrow, width = style.pop("arrow", False), style.pop("width", 1.1)
        (x0, y0), (x1, y1) = start, end
        tip = x1 - (0.07 if arrow else 0)
        middle = (x0 + tip) / 2
        curve = Curve([(x0, y0), (middle, y0), (middle, y1), (tip, y1)], [Curve.MOVETO] + [Curve.CURVE4] * 3)
        self.axes.add_patch(PathPatch(curve, fill=False, edgecolor=colour, linewidth=width, zorder=2, **style))
        if arrow:
            self.axes.add_patch(
                Polygon([(x1, y1), (x1 - 0.09, y1 + 0.045), (x1 - 0.09, y1 - 0.045)], color=colour, lw=0, zorder=4)
            )

    def stop(self, x: float, y: float) -> None:
        """Two bars: no gradient passes."""
        for offset in (-0.025, 0.025):
            self.axes.plot([x + offset] * 2, [y - 0.09, y + 0.09], color=INK, linewidth=1.3, zorder=6)


def paint(axes: Axes, layout: Layout, stream: str) -> None:
    sheet = Sheet(axes)
    mixed = any(lane.source not in ("X", "Y", "") for lane in layout.lanes)
    left = CHIP + GAP if mixed else 0.0
    encoder_x = left + CHIP + GAP + BOX / 2
    head_x = [encoder_x + (BOX + GAP * 0.75) * (level + 1) for level in range(layout.depth)]
    pill_x = (head_x[-1] if head_x else encoder_x) + BOX / 2 + GAP * 0.75 + PILL / 2
    loss_x = pill_x + PILL / 2 + GAP * 1.5 + LOSS / 2
    _images(sheet, layout, left, encoder_x, stream)
    _encoders(sheet, layout, encoder_x)
    _heads(sheet, layout, encoder_x, head_x)
    _embeddings(sheet, layout, encoder_x, head_x, pill_x)
    low, high = _losses(sheet, layout, pill_x, loss_x)
    room = ROW if mixed else ROW / 2  # X and Y beside their mixture
    bottom = min(low, layout.lanes[-1].y - room) - 0.12
    top = max(high, room) + 0.12
    if any(lane.frozen or not lane.encoder for lane in layout.lanes):
        bottom -= 0.22
        sheet.stop(0.08, bottom + 0.16)
        note = "stops the gradient; grey and dashed: frozen or stored"
        sheet.text(0.2, bottom + 0.16, note, 7.5, MUTED, ha="left")
    axes.set_xlim(-0.1, loss_x + LOSS / 2 + 0.1)
    axes.set_ylim(bottom, top)
    axes.set_axis_off()


def _images(sheet: Sheet, layout: Layout, left: float, encoder_x: float, stream: str) -> None:
    """X, Y and what is made of them, each once, with a line to every encoder that sees it."""
    about = {"X": STREAMS[stream], "Y": "memory"}
    sources = list(dict.fromkeys(lane.source for lane in layout.lanes if lane.source))
    placed: dict[str, float] = {}
    for source in sources:
        lanes = [lane for lane in layout.lanes if lane.source == source]
        # Beside the first encoder that sees it; a single source in the middle of all of them.
        first = [lane.y for lane in lanes if len(sources) == 1 or lane.encoder == lanes[0].encoder]
        above = min(placed.values(), default=99.0) - ROW
        placed[source] = min(sum(first) / len(first), above)
    for source, y in placed.items():
        if source in about:
            _chip(sheet, left + CHIP / 2, y, source, about[source])
        else:
            _chip(sheet, left + CHIP / 2, y, "ν X + (1−ν) Y", "mixed images")
            for number, part in enumerate(about):
                height = y + ROW * (0.5 - number)
                _chip(sheet, CHIP / 2, height, part, about[part])
                sheet.line((CHIP, height), (left, y), arrow=True)
        for encoder in dict.fromkeys(lane.encoder for lane in layout.lanes if lane.source == source):
            entry = [lane.y for lane in layout.lanes if (lane.source, lane.encoder) == (source, encoder)]
            sheet.line((left + CHIP, y), (encoder_x - BOX / 2, sum(entry) / len(entry)), arrow=True)


def _chip(sheet: Sheet, x: float, y: float, name: str, about: str) -> None:
    sheet.box(x, y, CHIP, 0.44, "", IMAGE_FILL, rounding=0.05)
    sheet.text(x, y + 0.07, name, 10 if len(name) < 3 else 8, fontweight="bold")
    sheet.text(x, y - 0.12, about, 6.3, MUTED)


def _encoders(sheet: Sheet, layout: Layout, x: float) -> None:
    for encoder in dict.fromkeys(lane.encoder for lane in layout.lanes if lane.encoder):
        lanes = [lane for lane in layout.lanes if lane.encoder == encoder]
        middle, height = (lanes[0].y + lanes[-1].y) / 2, lanes[0].y - lanes[-1].y + 0.44
        frozen = any(encoder in lane.frozen for lane in lanes)
        sheet.box(x, middle, BOX, height, encoder, ENCODER_FILL, frozen=frozen, size=13, style="italic")


def _heads(sheet: Sheet, layout: Layout, encoder_x: float, head_x: list[float]) -> None:
    """One box for each run of lanes through the same head: a live h below f and f* is one box."""
    for level, x in enumerate(head_x):
        before = (head_x[level - 1] if level else encoder_x) + BOX / 2
        runs = [list(run) for _, run in itertools.groupby(layout.lanes, key=lambda lane: lane.heads[level : level + 1])]
        for run in runs:
            if len(run[0].heads) <= level:
                continue
            for lane in run:
                sheet.line((before, lane.y), (x - BOX / 2, lane.y))
            name, middle = run[0].heads[level], (run[0].y + run[-1].y) / 2
            height, frozen = run[0].y - run[-1].y + 0.36, name in run[0].frozen
            sheet.box(x, middle, BOX, height, name, HEAD_FILL, frozen=frozen, size=12, style="italic")


def _embeddings(sheet: Sheet, layout: Layout, encoder_x: float, head_x: list[float], pill_x: float) -> None:
    for lane in layout.lanes:
        if lane.encoder:
            start = ([encoder_x, *head_x][len(lane.heads)]) + BOX / 2
            sheet.line((start, lane.y), (pill_x - PILL / 2, lane.y))
            if lane.encoder in lane.frozen:
                sheet.stop(encoder_x + BOX / 2 + 0.16, lane.y)
        stored = not lane.encoder
        sheet.box(pill_x, lane.y, PILL, 0.27, lane.label, IMAGE_FILL, rounding=0.13, frozen=stored, size=8, line=0.7)


def _losses(sheet: Sheet, layout: Layout, pill_x: float, loss_x: float) -> tuple[float, float]:
    """Stacked in the order of the framework, each as near to its embeddings as the one above allows."""
    texts = [_loss_text(term) for term, _ in layout.uses]
    heights = [0.36 + 0.155 * len(lines) for lines in texts]
    wanted = [sum(lane.y for lane in lanes) / len(lanes) for _, lanes in layout.uses]
    order = sorted(range(len(wanted)), key=lambda index: -wanted[index])
    ys, ceiling = [0.0] * len(wanted), 99.0
    for index in order:
        ys[index] = min(wanted[index], ceiling - heights[index] / 2)
        ceiling = ys[index] - heights[index] / 2 - 0.12
    shift = sum(want - y for want, y in zip(wanted, ys)) / len(ys)
    ys = [y + shift for y in ys]
    for (term, lanes), lines, height, y in zip(layout.uses, texts, heights, ys):
        colour = role_style(term.name).colour
        sheet.box(loss_x, y, LOSS, height, "", "#ffffff", edge=colour, line=1.6)
        title = rf"$L_\mathrm{{{term.role}}}$"
        sheet.text(loss_x - LOSS / 2 + 0.1, y + height / 2 - 0.17, title, 11.5, colour, ha="left")
        weight = (f"{term.kind}, " if "." in term.name else "") + f"weight {_weight(term.weight)}"
        sheet.text(loss_x + LOSS / 2 - 0.1, y + height / 2 - 0.17, weight, 7.5, MUTED, ha="right")
        for number, line in enumerate(lines):
            place = y + height / 2 - 0.38 - 0.155 * number
            sheet.text(loss_x - LOSS / 2 + 0.1, place, line, 8, INK, ha="left")
        ends = sorted(lanes, key=lambda lane: -lane.y)
        for number, lane in enumerate(ends):
            entry = y + (0.0 if len(ends) == 1 else (0.5 - number / (len(ends) - 1)) * min(height * 0.6, 0.5))
            sheet.line((pill_x + PILL / 2, lane.y), (loss_x - LOSS / 2, entry), colour, arrow=True, width=1.5)
            if not lane.encoder:
                sheet.stop(pill_x + PILL / 2 + 0.14, lane.y)
    tops = [y + height / 2 for y, height in zip(ys, heights)]
    return min(y - height / 2 for y, height in zip(ys, heights)), max(tops)


def _loss_text(term: Traced) -> list[str]:
    """Broken between the parts of a sum, never inside parentheses; NTX_g as a subscript."""
    depth, text = 0, ""
    for letter in term.formula:
        depth += {"(": 1, ")": -1}.get(letter, 0)
        text += "\N{NO-BREAK SPACE}" if letter == " " and depth else letter
    lines = textwrap.wrap(text.replace(" ~ ", "\N{NO-BREAK SPACE}~\N{NO-BREAK SPACE}"), 40)
    return [re.sub(r"\b([A-Z]+)_([a-z])", r"\1$_\2$", line) for line in lines]


def _weight(value: float) -> str:
    fraction = Fraction(value).limit_denominator(10)
    return {"1/2": "½"}.get(str(fraction), f"{value:g}")


def render(method: Method) -> tuple[str, bytes]:
    """(SVG, PNG), with the trace as the SVG's description."""
    layout = lay_out(trace(method))
    with matplotlib.rc_context({**SETTINGS, "axes.grid": False, "savefig.facecolor": GROUND, "svg.fonttype": "path"}):
        figure = Figure(figsize=(1, 1))
        FigureCanvasAgg(figure)
        axes = figure.add_axes((0, 0, 1, 1))
        paint(axes, layout, method.stream)
        (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
        figure.set_size_inches(right - left, top - bottom)
        svg, png = io.StringIO(), io.BytesIO()
        about = {"Date": None, "Creator": None, "Title": method.name, "Description": describe(method)}
        figure.savefig(svg, format="svg", metadata=about)
        figure.savefig(png, format="png", dpi=160)
    return svg.getvalue(), png.getvalue()


def describe(method: Method) -> str:
    """What a picture is drawn from, so that an old picture can be told from a new one."""
    return json.dumps([asdict(term) for term in trace(method)], sort_keys=True)


def drawn_from(path: Path) -> str:
    """The description that a picture carries."""
    found = re.search(r"<dc:description>(.*?)</dc:description>", path.read_text(encoding="utf-8"), re.DOTALL)
    return html.unescape(found[1]) if found else ""


def file_name(method: str) -> str:
    return method.replace("/", "-")


def names() -> list[str]:
    """Everything that has a picture: the zoo, the readings of er+, the ablations of osiris."""
    ablations = [name for name in ABLATIONS if name not in ("renormalised", "equal-work")]
    return [*ZOO, *READINGS, *(f"{base}/{part}" for base in ("osiris-r", "osiris-d") for part in ablations)]


def main(arguments: list[str]) -> int:
    """Write a picture of every method into a folder; `--png` writes PNG files beside the SVG ones."""
    folders = [Path(argument) for argument in arguments if argument != "--png"]
    if len(folders) != 1:
        raise UserError("usage: python -m osiris.report.method_picture FOLDER [--png]")
    for name in names():
        svg, png = render(find_method(name))
        write_text(folders[0] / f"{file_name(name)}.svg", svg)
        if "--png" in arguments:
            Image.open(io.BytesIO(png)).save(folders[0] / f"{file_name(name)}.png")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
