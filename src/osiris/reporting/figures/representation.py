"""Figures of the representation: similarity between classes, its distributions, and maps of the features."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize

from osiris.reporting import axes as draw
from osiris.reporting.figure import Figure, add_legend, bare, figure, panels
from osiris.reporting.studies import Study
from osiris.reporting.style import INK, MUTED, ON_DARK, ON_LIGHT, ROLE_STYLES
from osiris.runs.run import Run

PAPER_METHODS = ("offline", "ft", "osiris-d")
"""The methods of Fig. 4 and Fig. 7; others follow if there is space."""
SAME, DIFFERENT = ROLE_STYLES["past"], ROLE_STYLES["cross"]
MANY_CLASSES, MANY_TASKS = 40, 10
"""With more of them, a figure shows tasks instead of classes, and the centres of tasks instead of coloured dots."""
SEPARATOR: dict[str, Any] = {"color": "#ffffff", "linewidth": 1.4, "linestyle": (0, (4, 2))}


def chosen_labels(study: Study, most: int) -> list[str]:
    first = [label for label in PAPER_METHODS if label in study.by_label]
    return (first + [label for label in study.plain if label not in first])[:most]


@figure("similarity", "Similarity between classes")  # Fig. 4
def similarity_matrices(study: Study) -> Figure | None:
    """Mean cosine similarity between the test images of two {unit}. A dark block off the diagonal is a group of {unit}
    that the encoder does not tell apart.{above}"""
    matrices: dict[str, np.ndarray] = {}
    tasks: list[list[int]] = []
    for label in chosen_labels(study, 6):
        arrays = [entry for run in study.by_label[label] if "class_similarity" in (entry := run.arrays())]
        if arrays:
            tasks = tasks_of(arrays[0]["label"], arrays[0]["task"])
            matrices[label] = np.mean([entry["class_similarity"] for entry in arrays], axis=0)
    if not matrices:
        return None
    by_task = len(next(iter(matrices.values()))) > MANY_CLASSES and len(tasks) > 1
    classes = {label: matrix for label, matrix in matrices.items()}
    if by_task:
        matrices = {label: between_tasks(matrix, tasks) for label, matrix in matrices.items()}
    pairs = np.concatenate([matrix[~np.eye(len(matrix), dtype=bool)] for matrix in matrices.values()])
    low, high = (float(value) for value in np.nanpercentile(pairs, [1, 99])) if np.isfinite(pairs).any() else (0, 1)
    canvas, every = panels(len(matrices), 3, 3.7, 3.4)
    order, ends = class_order(tasks), [0, *accumulate(map(len, tasks))]
    if by_task:
        order, ends = [*range(len(tasks))], [*range(len(tasks) + 1)]
    numbers = range(1, len(tasks) + 1, 1 + len(tasks) // 12)
    starts = draw.environment_starts(study.environments)
    for axes, (label, matrix) in zip(every, matrices.items()):
        mesh = draw.heat_map(axes, matrix[np.ix_(order, order)], low, high, cells=False)
        draw.number_ticks(axes, [(ends[number - 1] + ends[number]) / 2 for number in numbers], numbers)
        means = by_environment(classes[label], tasks, study.environments)
        detail = ", ".join(f"{name} {value:.2f}" for name, value in means.items())
        named = ("task", "task") if by_task else ("class, in the order of the tasks", "class (ticks: tasks)")
        axes.set(title=label, xlabel=named[0], ylabel=named[1])
        axes.text(0, 1.01, detail, transform=axes.transAxes, fontsize=7, color=MUTED, va="bottom")
        axes.set_title(label, pad=16 if detail else None)
        for start in starts:
            if 0 < start < len(tasks):
                axes.axhline(ends[start], **SEPARATOR)
                axes.axvline(ends[start], **SEPARATOR)
    canvas.colorbar(mesh, ax=every, label="mean cosine similarity", aspect=30, fraction=0.02, pad=0.01)
    unit = "tasks (the mean over pairs of different classes)" if by_task else "classes"
    above = " Above each panel: the mean between different classes of each environment; dashes separate them."
    return Figure(canvas, matrices, "final model, test images", above=above if study.environments else "", unit=unit)


def between_tasks(similarity: np.ndarray, tasks: Sequence[Sequence[int]]) -> np.ndarray:
    """[tasks, tasks]: the mean similarity between different classes of two tasks."""
    pairs = np.where(np.eye(len(similarity), dtype=bool), np.nan, similarity)
    blocks = [[pairs[np.ix_(list(one), list(other))] for other in tasks] for one in tasks]
    return np.array([[np.nanmean(block) if np.isfinite(block).any() else np.nan for block in row] for row in blocks])


def tasks_of(label: np.ndarray, task: np.ndarray) -> list[list[int]]:
    """The classes of each task, from the labels and tasks of the test images."""
    return [sorted({int(one) for one in label[task == number]}) for number in range(int(task.max()) + 1)]


def class_order(tasks: Sequence[Sequence[int]]) -> list[int]:
    """Classes in the order of the stream; a class that comes back keeps its first position."""
    return list(dict.fromkeys(one for classes in tasks for one in classes))


def between_classes(similarity: np.ndarray, classes: Sequence[int]) -> float:
    """Mean similarity between different classes of a group; low if the encoder tells them apart."""
    block = similarity[np.ix_(list(classes), list(classes))]
    pairs = block[~np.eye(len(block), dtype=bool)]
    return float(np.nanmean(pairs)) if np.isfinite(pairs).any() else float("nan")


def by_environment(
    similarity: np.ndarray, tasks: Sequence[Sequence[int]], environments: Sequence[tuple[str, Sequence[int]]]
) -> dict[str, float]:
    """Environment -> mean similarity between its classes."""
    groups = {name: [one for task in members for one in tasks[task]] for name, members in environments}
    return {name: between_classes(similarity, sorted(set(classes))) for name, classes in groups.items() if classes}


class Densities(NamedTuple):
    """Kernel densities of the cosine similarity of two kinds of pairs, and the integral of the smaller one."""

    grid: np.ndarray
    same: np.ndarray
    different: np.ndarray
    overlap: float


@figure("distributions", "Same class and different class")  # Fig. 7
def distributions(study: Study) -> Figure | None:
    """Densities of the similarity of two test images. The less the two overlap, the easier nearest neighbours are: the
    overlap is the integral of the smaller density, 0 for separate and 1 for equal distributions."""
    places = [*(name for name, _ in study.environments), "overall"]
    labels = chosen_labels(study, 4)
    cells: list[tuple[str, str, Densities]] = []
    for label in labels:
        arrays = [run.arrays() for run in study.by_label[label]]
        for place in places:
            counts = [entry[f"histogram.{place}"] for entry in arrays if f"histogram.{place}" in entry]
            overlap = similarity_overlap(np.sum(counts, axis=0)) if counts else None
            if overlap is not None:
                cells.append((label, place, overlap))
    if not cells:
        return None
    # The range in which any density exceeds a thousandth of its maximum, within [-1, 1].
    densities = [(one.grid, density) for _, _, one in cells for density in (one.same, one.different)]
    supports = [grid[density > 1e-3 * density.max()] for grid, density in densities]
    low, high = max(-1.0, min(grid[0] for grid in supports)), min(1.0, max(grid[-1] for grid in supports))
    canvas, every = panels(len(cells), len(places), 11 / max(3, len(places)), 1.8)
    for axes, (label, place, one) in zip(every, cells):
        inside = (one.grid >= low) & (one.grid <= high)
        grid, same, different = one.grid[inside], one.same[inside], one.different[inside]
        for density, style in ((same, SAME), (different, DIFFERENT)):
            axes.fill_between(grid, density, color=style.colour, alpha=0.18, linewidth=0)
            axes.plot(grid, density, linewidth=1.2, **style.line)
        axes.fill_between(grid, np.minimum(same, different), color=INK, alpha=0.22, linewidth=0)
        axes.set(xlim=(low, high), yticks=[], title=f"{label}, {place}", xlabel="cosine similarity")
        axes.set_ylim(0, 1.3 * max(same.max(), different.max()))
        axes.spines["left"].set_visible(False)
        text = f"overlap {one.overlap:.2f}"
        axes.text(0.98, 0.94, text, transform=axes.transAxes, ha="right", va="top", fontsize=8)
    add_legend(canvas, [("same class", SAME), ("different classes", DIFFERENT)], markers=False)
    return Figure(canvas, labels, "final model, pairs of test images, Gaussian kernel")


def similarity_overlap(histogram: np.ndarray) -> Densities | None:
    """From the stored [2, bins] counts of same-class and different-class pairs; None if either has no pairs."""
    same, different = histogram.astype(np.float64)
    if same.sum() == 0 or different.sum() == 0:
        return None
    edges = np.linspace(-1, 1, histogram.shape[1] + 1)
    centres = (edges[1:] + edges[:-1]) / 2
    grid = np.linspace(-1.1, 1.1, 331)
    one, other = kernel_density(centres, same, grid), kernel_density(centres, different, grid)
    return Densities(grid, one, other, float(np.trapezoid(np.minimum(one, other), grid)))


def scott_bandwidth(centres: np.ndarray, counts: np.ndarray) -> float:
    """Scott's rule, n^(-1/5) standard deviations, from a histogram; never below half a bin."""
    total = counts.sum()
    mean = np.average(centres, weights=counts)
    deviation = np.sqrt((counts * (centres - mean) ** 2).sum() / max(1, total - 1))
    return max(float(deviation * total ** (-1 / 5)), float(centres[1] - centres[0]) / 2)


def kernel_density(centres: np.ndarray, counts: np.ndarray, grid: np.ndarray) -> np.ndarray:
    """A density on `grid` with integral 1: a Gaussian on every bin, weighted by its count."""
    width, used = scott_bandwidth(centres, counts), counts > 0
    distance = (grid[:, None] - centres[None, used]) / width
    kernel = np.exp(-0.5 * distance**2) / (width * np.sqrt(2 * np.pi))
    return kernel @ (counts[used] / counts.sum())


@figure("maps", "Maps of the features")
def feature_maps(study: Study) -> Figure | None:
    """Each dot is an image on the two main axes of the features{coloured}. Tasks that lie apart are easy to tell from
    each other; two axes show only a part of the whole."""
    count = study.task_count
    times = sorted({0, max(0, count // 2 - 1), count - 1})
    cells: list[tuple[Run, int, dict[str, np.ndarray]]] = []
    for label in sorted(chosen_labels(study, 4), key=lambda label: label not in study.continual):
        run = study.by_label[label][0]
        for moment in times if run.continual else [0]:
            arrays = run.arrays(moment)
            if "projection.points" in arrays and "task" in arrays:
                cells.append((run, moment, arrays))
    if all(len(np.unique(arrays["task"])) < 2 for _, _, arrays in cells):  # a learner has the images of one episode
        return None
    canvas, every = panels(len(cells), 3, 3.6, 2.7)
    for axes, (run, moment, arrays) in zip(every, cells):
        points, task = arrays["projection.points"], arrays["task"][arrays["projection.indices"]]
        colours = draw.TASK_COLOURS(task / max(1, count - 1))
        if count > MANY_TASKS:
            axes.scatter(points[:, 0], points[:, 1], c=MUTED, s=4, linewidths=0, alpha=0.3, rasterized=True)
            for number in np.unique(task):
                (x, y), colour = points[task == number].mean(axis=0), draw.TASK_COLOURS(number / (count - 1))
                axes.scatter(x, y, color=colour, s=130, linewidths=0.6, edgecolors=INK, zorder=3)
                dark = draw.luminance(colour) < 0.5
                axes.text(
                    x,
                    y,
                    str(number + 1),
                    fontsize=6.5,
                    ha="center",
                    va="center",
                    zorder=4,
                    in_layout=False,
                    color=ON_DARK if dark else ON_LIGHT,
                )
        else:
            axes.scatter(points[:, 0], points[:, 1], c=colours, s=7, linewidths=0, alpha=0.75, rasterized=True)
        bare(axes)
        when = f"after task {moment + 1}" if run.continual else "at the end"
        axes.set_title(f"{run.label}, {when}")
    scale = ScalarMappable(
        Normalize(0.5, count + 0.5), draw.TASK_COLOURS.resampled(count) if count > 1 else draw.TASK_COLOURS
    )
    ticks = list(range(1, count + 1, 1 + count // 12))
    bar = canvas.colorbar(scale, ax=every, label="task", aspect=40, fraction=0.02, pad=0.01, ticks=ticks)
    bar.ax.tick_params(length=0)
    runs = {run.number: run for run, _, _ in cells}.values()
    coloured = ", grey; numbers stand at the centres of tasks" if count > MANY_TASKS else ", coloured by its task"
    return Figure(canvas, runs, "principal axes of the training features at that moment", coloured=coloured)
