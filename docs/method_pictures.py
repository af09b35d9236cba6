"""Draw the pictures of the method pages: `python docs/method_pictures.py docs/methods/pictures`.

A picture is drawn from a trace of the method's terms; nothing here knows a method by name. Images enter at the left,
pass encoders and projectors, and meet the losses at the right. A grey, dashed box is frozen; two bars across a line
stop the gradient.
"""

from __future__ import annotations

import html
import io
import itertools
import json
import re
import sys
import textwrap
from dataclasses import asdict, dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch
from matplotlib.path import Path as Curve

from osiris.files import write_text
from osiris.framework.methods import READINGS, TRAINED, VARIANTS, Method, find_method
from osiris.framework.tracing import Path as TracedPath
from osiris.framework.tracing import Traced, trace
from osiris.reporting.style import INK, MUTED, SETTINGS, role_style

CHIP, BOX, PILL, LOSS, GAP = 1.05, 0.62, 1.1, 2.75, 0.5
"""Widths of images, networks, embeddings and losses, and the space between columns."""
STREAMS = {"continual": "current task", "joint": "all tasks, shuffled", "first-task": "first task alone"}
ENCODER_FILL, HEAD_FILL, FROZEN_FILL = "#dbe7f2", "#f3e9d6", "#ececec"
ROW = 0.62
"""Inches between lanes."""
Point = tuple[float, float]


@dataclass
class Lane:
    """One line of the picture: images through an encoder and heads to an embedding, or something stored."""

    source: str
    encoder: str
    heads: tuple[str, ...]
    frozen: tuple[str, ...]
    label: str
    y: float = 0.0


@dataclass
class Layout:
    lanes: list[Lane]
    uses: list[tuple[Traced, list[Lane]]]
    """Each term with the lanes it compares."""

    @property
    def depth(self) -> int:
        return max([len(lane.heads) for lane in self.lanes], default=0)


def lay_out(terms: tuple[Traced, ...]) -> Layout:
    """Lanes of one encoder lie together, live encoders above frozen ones, and heads of one kind side by side."""
    lanes: dict[tuple, Lane] = {}
    uses = []
    for term in terms:
        mine = [lanes.setdefault((path.source, path.encoder, path.heads), _lane(path)) for path in term.paths]
        if not term.paths:  # a penalty on parameters: it looks at the encoder itself
            key = ("", "f", ("parameters",))
            mine.append(lanes.setdefault(key, Lane("", "f", (), (), "parameters θ")))
        for stored in term.stored:
            mine.append(lanes.setdefault(("", "", (stored,)), Lane("", "", (), (), stored.replace("theta", "θ"))))
        uses.append((term, mine))
    encoders = list(dict.fromkeys(lane.encoder for lane in lanes.values()))
    heads = list(dict.fromkeys(head for lane in lanes.values() for head in lane.heads))

    def place(lane: Lane) -> tuple:
        frozen = lane.encoder in lane.frozen
        order = tuple(heads.index(head) for head in lane.heads)
        return (not lane.encoder, frozen, encoders.index(lane.encoder), not lane.source, order, lane.source)

    ordered = sorted(lanes.values(), key=place)
    for number, lane in enumerate(ordered):
        lane.y = -ROW * number
    return Layout(ordered, uses)


def _lane(path: TracedPath) -> Lane:
    name = path.source if path.source in ("X", "Y") else "mix"
    label = " ".join([*reversed(path.heads), f"{path.encoder}({name})"])
    return Lane(path.source, path.encoder, path.heads, path.frozen, label)


def box(
    axes: Axes,
    centre: Point,
    size: Point,
    text: str = "",
    fill: str = "#ffffff",
    frozen: bool = False,
    font: float = 10,
    edge: str = MUTED,
    line: float = 0.9,
    rounding: float = 0.06,
    italic: bool = False,
) -> None:
    (x, y), (width, height) = centre, size
    corner, style = (x - width / 2, y - height / 2), f"round,pad=0,rounding_size={rounding}"
    look: dict[str, Any] = {
        "facecolor": FROZEN_FILL if frozen else fill,
        "linestyle": (0, (3, 2)) if frozen else "-",
        "linewidth": line,
    }
    axes.add_patch(FancyBboxPatch(corner, width, height, boxstyle=style, edgecolor=edge, zorder=3, **look))
    write(axes, x, y, text, font, MUTED if frozen else INK, style="italic" if italic else "normal")


def write(axes: Axes, x: float, y: float, text: str, font: float = 8, colour: str = INK, **style) -> None:
    axes.text(x, y, text, **{"fontsize": font, "color": colour, "ha": "center", "va": "center", "zorder": 5, **style})


def connect(axes: Axes, start: Point, end: Point, colour: str = MUTED, arrow: bool = False) -> None:
    """From left to right, bent where the heights differ."""
    (x0, y0), (x1, y1) = start, end
    middle = (x0 + x1) / 2
    curve = Curve([(x0, y0), (middle, y0), (middle, y1), (x1, y1)], [Curve.MOVETO] + [Curve.CURVE4] * 3)
    head = "-|>,head_length=0.5,head_width=0.25" if arrow else "-"
    width = 1.1 if colour == MUTED else 1.5
    look: dict[str, Any] = {"color": colour, "linewidth": width, "mutation_scale": 12, "shrinkA": 0, "shrinkB": 0}
    axes.add_patch(FancyArrowPatch(path=curve, arrowstyle=head, fill=arrow, zorder=2, **look))


def stop_gradient(axes: Axes, x: float, y: float) -> None:
    for offset in (-0.025, 0.025):
        axes.plot([x + offset] * 2, [y - 0.09, y + 0.09], color=INK, linewidth=1.3, zorder=6)


def paint(axes: Axes, layout: Layout, stream: str) -> None:
    mixed = any(lane.source not in ("X", "Y", "") for lane in layout.lanes)
    left = CHIP + GAP if mixed else 0.0
    encoder_x = left + CHIP + GAP + BOX / 2
    head_x = [encoder_x + (BOX + GAP * 0.75) * (level + 1) for level in range(layout.depth)]
    pill_x = (head_x[-1] if head_x else encoder_x) + BOX / 2 + GAP * 0.75 + PILL / 2
    loss_x = pill_x + PILL / 2 + GAP * 1.5 + LOSS / 2
    _images(axes, layout, left, encoder_x, stream)
    _encoders(axes, layout, encoder_x)
    _heads(axes, layout, encoder_x, head_x)
    _embeddings(axes, layout, encoder_x, head_x, pill_x)
    low, high = _losses(axes, layout, pill_x, loss_x)
    room = ROW if mixed else ROW / 2  # X and Y beside their mixture
    bottom = min(low, layout.lanes[-1].y - room) - 0.12
    top = max(high, room) + 0.12
    if any(lane.frozen or not lane.encoder for lane in layout.lanes):
        bottom -= 0.22
        stop_gradient(axes, 0.08, bottom + 0.16)
        note = "stops the gradient; grey and dashed: frozen or stored"
        write(axes, 0.2, bottom + 0.16, note, 7.5, MUTED, ha="left")
    axes.set_xlim(-0.1, loss_x + LOSS / 2 + 0.1)
    axes.set_ylim(bottom, top)
    axes.set_axis_off()


def _images(axes: Axes, layout: Layout, left: float, encoder_x: float, stream: str) -> None:
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
            _chip(axes, left + CHIP / 2, y, source, about[source])
        else:
            _chip(axes, left + CHIP / 2, y, "ν X + (1−ν) Y", "mixed images")
            for number, part in enumerate(about):
                height = y + ROW * (0.5 - number)
                _chip(axes, CHIP / 2, height, part, about[part])
                connect(axes, (CHIP, height), (left, y), arrow=True)
        for encoder in dict.fromkeys(lane.encoder for lane in layout.lanes if lane.source == source):
            entry = [lane.y for lane in layout.lanes if (lane.source, lane.encoder) == (source, encoder)]
            connect(axes, (left + CHIP, y), (encoder_x - BOX / 2, sum(entry) / len(entry)), arrow=True)


def _chip(axes: Axes, x: float, y: float, name: str, about: str) -> None:
    box(axes, (x, y), (CHIP, 0.44), rounding=0.05)
    write(axes, x, y + 0.07, name, 10 if len(name) < 3 else 8, fontweight="bold")
    write(axes, x, y - 0.12, about, 6.3, MUTED)


def _encoders(axes: Axes, layout: Layout, x: float) -> None:
    for encoder in dict.fromkeys(lane.encoder for lane in layout.lanes if lane.encoder):
        lanes = [lane for lane in layout.lanes if lane.encoder == encoder]
        middle, height = (lanes[0].y + lanes[-1].y) / 2, lanes[0].y - lanes[-1].y + 0.44
        frozen = any(encoder in lane.frozen for lane in lanes)
        box(axes, (x, middle), (BOX, height), encoder, ENCODER_FILL, frozen, font=13, italic=True)


def _heads(axes: Axes, layout: Layout, encoder_x: float, head_x: list[float]) -> None:
    """One box for each run of lanes through the same head: a live h below f and f* is one box."""
    for level, x in enumerate(head_x):
        before = (head_x[level - 1] if level else encoder_x) + BOX / 2
        runs = [list(run) for _, run in itertools.groupby(layout.lanes, key=lambda lane: lane.heads[level : level + 1])]
        for run in runs:
            if len(run[0].heads) <= level:
                continue
            for lane in run:
                connect(axes, (before, lane.y), (x - BOX / 2, lane.y))
            name, middle = run[0].heads[level], (run[0].y + run[-1].y) / 2
            height, frozen = run[0].y - run[-1].y + 0.36, name in run[0].frozen
            box(axes, (x, middle), (BOX, height), name, HEAD_FILL, frozen, font=12, italic=True)


def _embeddings(axes: Axes, layout: Layout, encoder_x: float, head_x: list[float], pill_x: float) -> None:
    for lane in layout.lanes:
        if lane.encoder:
            start = ([encoder_x, *head_x][len(lane.heads)]) + BOX / 2
            connect(axes, (start, lane.y), (pill_x - PILL / 2, lane.y))
            if lane.encoder in lane.frozen:
                stop_gradient(axes, encoder_x + BOX / 2 + 0.16, lane.y)
        stored = not lane.encoder
        box(axes, (pill_x, lane.y), (PILL, 0.27), lane.label, frozen=stored, font=8, line=0.7, rounding=0.13)


def _losses(axes: Axes, layout: Layout, pill_x: float, loss_x: float) -> tuple[float, float]:
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
        box(axes, (loss_x, y), (LOSS, height), edge=colour, line=1.6)
        title = rf"$L_\mathrm{{{term.role}}}$"
        write(axes, loss_x - LOSS / 2 + 0.1, y + height / 2 - 0.17, title, 11.5, colour, ha="left")
        weight = (f"{term.kind}, " if "." in term.name else "") + f"weight {_weight(term.weight)}"
        write(axes, loss_x + LOSS / 2 - 0.1, y + height / 2 - 0.17, weight, 7.5, MUTED, ha="right")
        for number, line in enumerate(lines):
            place = y + height / 2 - 0.38 - 0.155 * number
            write(axes, loss_x - LOSS / 2 + 0.1, place, line, 8, INK, ha="left")
        ends = sorted(lanes, key=lambda lane: -lane.y)
        for number, lane in enumerate(ends):
            entry = y + (0.0 if len(ends) == 1 else (0.5 - number / (len(ends) - 1)) * min(height * 0.6, 0.5))
            connect(axes, (pill_x + PILL / 2, lane.y), (loss_x - LOSS / 2, entry), colour, arrow=True)
            if not lane.encoder:
                stop_gradient(axes, pill_x + PILL / 2 + 0.14, lane.y)
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


def render(method: Method) -> str:
    """The SVG, with the trace as its description."""
    with matplotlib.rc_context({"axes.grid": False, "svg.fonttype": "path", "text.parse_math": True}, SETTINGS):
        figure = Figure(figsize=(1, 1))
        axes = figure.add_axes((0, 0, 1, 1))
        paint(axes, lay_out(trace(method)), method.learns)
        (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
        figure.set_size_inches(right - left, top - bottom)
        svg = io.StringIO()
        about = {"Date": None, "Creator": None, "Title": method.name, "Description": describe(method)}
        figure.savefig(svg, format="svg", metadata=about)
    return svg.getvalue()


def describe(method: Method) -> str:
    """What a picture is drawn from: a picture with another description is out of date."""
    return json.dumps([asdict(term) for term in trace(method)], sort_keys=True)


def drawn_from(path: Path) -> str:
    """The description in a picture."""
    match = re.search(r"<dc:description>(.*?)</dc:description>", path.read_text(encoding="utf-8"), re.DOTALL)
    return html.unescape(match[1]) if match else ""


def file_name(method: str) -> str:
    return method.replace("/", "-")


def names() -> list[str]:
    """Everything that has a picture: the zoo, the readings of er+, the ablations of osiris."""
    ablations = [name for name in VARIANTS if name not in ("renormalised", "equal-work")]
    return [*TRAINED, *READINGS, *(f"{base}/{part}" for base in ("osiris-r", "osiris-d") for part in ablations)]


def main(folder: Path) -> None:
    for name in names():
        write_text(folder / f"{file_name(name)}.svg", render(find_method(name)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
