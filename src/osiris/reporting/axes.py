"""Parts that several figures share: curves over seeds, the axis of tasks, heat maps with readable cells."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.ticker import MaxNLocator

from osiris.reporting.curves import Course, Curve, lines_over_seeds
from osiris.reporting.style import GRID, HEAT, MUTED, ON_DARK, ON_LIGHT, Style, style_of
from osiris.runs.run import Run

RAMP = LinearSegmentedColormap.from_list("osiris", list(HEAT)).with_extremes(bad="#00000000")
TASK_COLOURS = LinearSegmentedColormap.from_list(
    "tasks", ["#3b4cc0", "#4a86c5", "#3aa6a0", "#58b368", "#a7b83a", "#e0a52e", "#e07b39", "#c8453c"]
)
"""Early tasks cold, late tasks warm; medium lightness throughout, for either background."""
MOST_BANDS = 3
"""More curves than this are drawn without bands over seeds: the bands would hide each other."""
PERCENT = (0.0, 100.0)
Limits = tuple[float, float]
Quantity = Callable[[Course], np.ndarray]


def course_curves(methods: Mapping[str, Sequence[Run]], protocol: str, quantity: Quantity) -> dict[str, Curve]:
    """Label -> a quantity through training, over its seeds."""
    courses = {label: [Course.of(run, protocol) for run in runs] for label, runs in methods.items()}
    return lines_over_seeds({label: [(one.x, quantity(one)) for one in each] for label, each in courses.items()})


def curve(
    axes: Axes,
    line: Curve,
    style: Style,
    *,
    band: bool = True,
    within: Limits = (-np.inf, np.inf),
    markers: bool = True,
    width: float = 1.6,
    level: bool = True,
) -> None:
    """A mean with a band of one sample deviation, cut to the range of the quantity. `level`: a single point is drawn as
    a line through all tasks, for methods that do not learn task by task."""
    if len(line.x) == 1 and level:
        axes.axhline(float(line.mean[0]), linewidth=1.2, **style.line)
        return
    marks = {"marker": style.marker if markers else "", "markevery": max(1, len(line.x) // 10), "markeredgewidth": 0}
    axes.plot(line.x, line.mean, linewidth=width, clip_on=False, **marks, **style.line)
    if line.deviation is not None and band:
        low, high = (np.clip(line.mean + sign * line.deviation, *within) for sign in (-1, 1))
        axes.fill_between(line.x, low, high, color=style.colour, alpha=0.16, linewidth=0)


def curves(
    axes: Axes, lines: Mapping[str, Curve], within: Limits = PERCENT, markers: bool = True, level: bool = True
) -> None:
    """One curve per method; with bands if there are few methods."""
    for label, line in lines.items():
        curve(axes, line, style_of(label), band=len(lines) <= MOST_BANDS, within=within, markers=markers, level=level)


def task_axis(
    axes: Axes,
    tasks: int,
    environments: Sequence[tuple[str, list[int]]] = (),
    label: bool = True,
    names: Sequence[str] = (),
) -> None:
    """Whole tasks, from the first point that is drawn; dashes where the environment changes. `names`: of the tasks,
    instead of their numbers."""
    lines = [np.asarray(line.get_xdata()) for line in axes.lines if line.get_transform() != axes.get_yaxis_transform()]
    first = int(np.floor(min((float(x.min()) for x in lines if len(x) > 1), default=0.0)))
    axes.set_xlim(first, max(tasks, first + 1))
    axes.xaxis.set_major_locator(MaxNLocator(10 if label else 3, integer=True))
    for start in environment_starts(environments):
        if start > first:
            axes.axvline(start, color=MUTED, linewidth=0.7, linestyle=(0, (2, 2)), zorder=0.5)
    if label:
        axes.set_xlabel("episodes learned" if names else "tasks learned")
    if label and names:
        axes.set_xticks(range(1, len(names) + 1), names)
        axes.tick_params(axis="x", rotation=30 if len(names) > 4 else 0)


def environment_starts(environments: Sequence[tuple[str, list[int]]]) -> list[int]:
    """The first task of each environment; empty if an environment is not one stretch of tasks."""
    if any(sorted(tasks) != list(range(min(tasks), max(tasks) + 1)) for _, tasks in environments if tasks):
        return []
    return [min(tasks) for _, tasks in environments if tasks]


def at_least(axes: Axes, low: float, high: float) -> None:
    """Extend the vertical axis to this range, so that noise does not look like an effect."""
    bottom, top = axes.get_ylim()
    axes.set_ylim(min(bottom, low), max(top, high))


def percent_axis(axes: Axes, label: str = "accuracy (%)") -> None:
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    axes.set_ylabel(label)
    axes.margins(y=0.08)
    bottom, top = axes.get_ylim()
    axes.set_ylim(max(bottom, -2), min(top, 102))


def number_ticks(axes: Axes, positions: Sequence[float], numbers: Sequence[int]) -> None:
    """The same ticks on both axes."""
    axes.set_xticks(positions, [str(number) for number in numbers])
    axes.set_yticks(positions, [str(number) for number in numbers])


def heat_map(axes: Axes, values: np.ndarray, low: float, high: float, cells: bool = True):
    """Rows from the top; with `cells`, each shows its number."""
    rows, columns = values.shape
    norm = Normalize(low, high if high > low else low + 1)
    edges: dict[str, Any] = {"edgecolors": GRID, "linewidth": 0.4} if cells else {"rasterized": True}
    masked = np.ma.masked_invalid(values)
    mesh = axes.pcolormesh(np.arange(columns + 1), np.arange(rows + 1), masked, cmap=RAMP, norm=norm, **edges)
    for row, column in np.argwhere(np.isfinite(values)) if cells else []:
        value = values[row, column]
        colour = ON_DARK if luminance(RAMP(norm(value))) < 0.5 else ON_LIGHT
        cell = axes.text(column + 0.5, row + 0.5, f"{value + 0.0:.0f}", fontsize=6.5, color=colour)
        cell.set(ha="center", va="center", in_layout=False)  # always inside the axes: the layout need not measure it
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    axes.set(xlim=(0, columns), ylim=(rows, 0), aspect="equal")
    return mesh


def luminance(colour: Sequence[float] | np.ndarray) -> float:
    """How light an RGB colour in [0, 1] looks: the square root of its relative luminance."""
    return float(np.sqrt(np.array([0.2126, 0.7152, 0.0722]) @ np.asarray(colour[:3]) ** 2.2))
