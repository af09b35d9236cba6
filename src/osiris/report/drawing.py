"""Drawing habits shared by the figures: bands over seeds, the axis of tasks, heat maps with readable cells."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.ticker import MaxNLocator

from osiris.report.curves import Curve
from osiris.report.style import GRID, HEAT, MUTED, ON_DARK, ON_LIGHT, Style

RAMP = LinearSegmentedColormap.from_list("osiris", list(HEAT)).with_extremes(bad="#00000000")


BANDS = 6
"""More curves than this go without bands over seeds: they would hide each other."""


def curve(axes: Axes, line: Curve, style: Style, markers: bool = True, width: float = 1.6, band: bool = True) -> None:
    """A mean with a band of one sample deviation; a single point becomes a level across the panel."""
    if len(line.x) == 1:
        level(axes, float(line.mean[0]), style)
        return
    every = max(1, len(line.x) // 10)
    marker = style.marker if markers else ""
    look = {"marker": marker, "markevery": every, "markeredgewidth": 0, "linewidth": width, **style.line}
    axes.plot(line.x, line.mean, clip_on=False, **look)  # a mark on the edge is shown whole
    if line.deviation is not None and band:
        low, high = line.mean - line.deviation, line.mean + line.deviation
        axes.fill_between(line.x, low, high, color=style.colour, alpha=0.16, linewidth=0)


def level(axes: Axes, value: float, style: Style, width: float = 1.2) -> None:
    axes.axhline(value, linewidth=width, **style.line)


def task_axis(axes: Axes, tasks: int, environments: Sequence[tuple[str, list[int]]] = (), label: bool = True) -> None:
    """0 to T, with the environments named below where they change."""
    axes.set_xlim(0, tasks)
    step = 1 if tasks <= 10 else 2 if tasks <= 12 else 5
    axes.set_xticks(range(0, tasks + 1, step))
    for start in environment_starts(environments):
        if start > 0:
            axes.axvline(start, color=MUTED, linewidth=0.7, linestyle=(0, (2, 2)), zorder=0.5)
    if label:
        axes.set_xlabel("tasks learned")


def environment_starts(environments: Sequence[tuple[str, list[int]]]) -> list[int]:
    """The first task of each environment; empty where an environment is not one stretch."""
    if any(sorted(tasks) != list(range(min(tasks), max(tasks) + 1)) for _, tasks in environments if tasks):
        return []
    return [min(tasks) for _, tasks in environments if tasks]


def percent_axis(axes: Axes, label: str = "accuracy (%)", floor: bool = False) -> None:
    axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.set_ylabel(label)
    axes.margins(y=0.08)
    if floor:
        axes.set_ylim(bottom=0)


def heat_map(
    axes: Axes, values: np.ndarray, low: float, high: float, cells: bool = True, decimals: int = 0, size: float = 6.5
) -> None:
    """Rows from the top; numbers in the cells where they fit."""
    rows, columns = values.shape
    norm = Normalize(low, high if high > low else low + 1)
    axes.grid(visible=False)
    if cells:
        edges = {"edgecolors": GRID, "linewidth": 0.4}
        masked = np.ma.masked_invalid(values)
        axes.pcolormesh(np.arange(columns + 1), np.arange(rows + 1), masked, cmap=RAMP, norm=norm, **edges)
        for row, column in np.ndindex(rows, columns):
            value = values[row, column]
            if np.isfinite(value):
                colour = ON_DARK if luminance(RAMP(norm(value))) < 0.5 else ON_LIGHT
                text = f"{value + 0.0:.{decimals}f}"
                cell = axes.text(column + 0.5, row + 0.5, text, ha="center", va="center", fontsize=size, color=colour)
                cell.set_in_layout(False)  # it lies inside the axes: measuring it would only cost time
    else:
        axes.imshow(
            np.ma.masked_invalid(values), cmap=RAMP, norm=norm, extent=(0, columns, rows, 0), interpolation="nearest"
        )
    axes.set_xlim(0, columns)
    axes.set_ylim(rows, 0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.tick_params(length=0)


def luminance(colour: Sequence[float] | np.ndarray) -> float:
    """Relative luminance of an RGB colour in [0, 1], with the square root taken: about as light as it looks."""
    red, green, blue = (float(part) ** 2.2 for part in colour[:3])
    return float(np.sqrt(0.2126 * red + 0.7152 * green + 0.0722 * blue))
