"""Figures of the representation: similarity between classes, its distributions, and maps of the features."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap

from osiris.report import drawing
from osiris.report.figure import Figure, Panel
from osiris.report.figures import similarity
from osiris.report.figures.overlap import similarity_overlap
from osiris.report.studies import Study, StudyRun, seeds_of
from osiris.report.style import INK, MUTED, ROLES

CHOSEN = ("offline", "ft", "osiris-d")
"""The methods of Fig. 4 and Fig. 7; all others follow while there is room."""
MOST = 6
SAME, DIFFERENT = ROLES["past"], ROLES["cross"]
TASK_COLOURS = LinearSegmentedColormap.from_list(
    "tasks", ["#3b4cc0", "#4a86c5", "#3aa6a0", "#58b368", "#a7b83a", "#e0a52e", "#e07b39", "#c8453c"]
)
"""Early tasks cold, late tasks warm; middle lightness throughout, for either ground."""
CLASS_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b8a000", "#56b4e9", "#8c5a2b", "#7a6fd0")
CLASS_MARKERS = "os^Dv<>P"


def chosen_labels(study: Study, most: int = MOST) -> list[str]:
    first = [label for label in CHOSEN if label in study.by_label]
    return (first + [label for label in study.plain if label not in first])[:most]


def class_similarity(study: Study) -> Figure | None:
    """Fig. 4, of the final models."""
    found: dict[str, np.ndarray] = {}
    tasks: list[list[int]] = []
    for label in chosen_labels(study):
        arrays = [item.arrays() for item in study.by_label[label]]
        matrices = [entry["class_similarity"] for entry in arrays if "class_similarity" in entry]
        if matrices:
            tasks = similarity.tasks_of(arrays[0]["label"], arrays[0]["task"])
            found[label] = np.mean(matrices, axis=0)
    if not found:
        return None
    off = np.concatenate([matrix[~np.eye(len(matrix), dtype=bool)] for matrix in found.values()])
    low, high = (float(value) for value in np.nanpercentile(off, [1, 99]))
    marks = similarity.switches(tasks, study.environments) if drawing.environment_starts(study.environments) else []

    def draw(axes: Axes, label: str) -> None:
        ordered = similarity.in_task_order(found[label], tasks)
        drawing.heat_map(axes, ordered, low, high, cells=False)
        for position in marks:
            axes.axhline(position, color="#ffffff", linewidth=1.4, linestyle=(0, (4, 2)))
            axes.axvline(position, color="#ffffff", linewidth=1.4, linestyle=(0, (4, 2)))
        axes.set_xticks([])
        axes.set_yticks([])
        axes.set_title(label)
        names = similarity.by_environment(found[label], tasks, study.environments)
        text = "   ".join(f"{name} {value:.2f}" for name, value in names.items())
        axes.set_xlabel(f"between classes: {text}" if text else "classes in the order of the tasks", fontsize=7.5)

    items = [item for label in found for item in study.by_label[label]]
    return Figure(
        f"{study.identifier}-similarity",
        "Similarity between classes",
        "Mean cosine similarity between the test images of two classes, classes in the order of the tasks, from "
        f"{low:.2f} (light) to {high:.2f} (dark): a dark block off the diagonal is a group that the encoder does "
        "not tell apart" + (", and dashed lines mark where the environment changes." if marks else "."),
        [Panel(lambda axes, label=label: draw(axes, label), 3.4, 3.55) for label in found],
        "final model, test images",
        tuple(item.number for item in items),
        seeds_of(items),
    )


def distributions(study: Study) -> Figure | None:
    """Fig. 7: similarities of same-class and different-class pairs, and their overlap."""
    places = [*(name for name, _ in study.environments), "overall"]
    rows: list[tuple[str, str, tuple[np.ndarray, np.ndarray, np.ndarray, float]]] = []
    labels = chosen_labels(study, 4)
    for label in labels:
        arrays = [item.arrays() for item in study.by_label[label]]
        for place in places:
            counts = [entry[f"histogram.{place}"] for entry in arrays if f"histogram.{place}" in entry]
            made = similarity_overlap(np.sum(counts, axis=0)) if counts else None
            if made is not None:
                rows.append((label, place, made))
    if not rows:
        return None
    low, high = _support([made for _, _, made in rows])

    def draw(axes: Axes, label: str, place: str, made: tuple[np.ndarray, np.ndarray, np.ndarray, float]) -> None:
        grid, same, different, shared = made
        shown = (grid >= low) & (grid <= high)
        grid, same, different = (values[shown][::2] for values in (grid, same, different))
        for density, style in ((same, SAME), (different, DIFFERENT)):
            axes.fill_between(grid, density, color=style.colour, alpha=0.18, linewidth=0)
            axes.plot(grid, density, linewidth=1.2, **style.line)
        axes.fill_between(grid, np.minimum(same, different), color=INK, alpha=0.22, linewidth=0)
        axes.set_xlim(low, high)
        axes.set_ylim(0, 1.3 * max(same.max(), different.max()))
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
        axes.text(0.98, 0.94, f"overlap {shared:.2f}", transform=axes.transAxes, ha="right", va="top", fontsize=8)
        axes.set_title(f"{label}, {place}", fontsize=8.5)
        axes.set_xlabel("cosine similarity", fontsize=7.5)

    items = [item for label in labels for item in study.by_label[label]]
    return Figure(
        f"{study.identifier}-distributions",
        "Same class and different class",
        "The less the two distributions of similarity overlap, the easier nearest neighbours are: the shaded overlap "
        "is its integral under Gaussian kernel densities, 0 for separate and 1 for equal distributions.",
        [Panel(lambda axes, row=row: draw(axes, *row), 2.55, 1.75) for row in rows],
        "final model, pairs of test images",
        tuple(item.number for item in items),
        seeds_of(items),
        [("same class", SAME), ("different classes", DIFFERENT)],
        columns=len(places),
        markers=False,
    )


def _support(made: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray, float]]) -> tuple[float, float]:
    """Where any density is more than a thousandth of its height."""
    ends = []
    for grid, same, different, _ in made:
        for density in (same, different):
            inside = grid[density > 1e-3 * density.max()]
            ends.append((inside[0], inside[-1]))
    return float(min(low for low, _ in ends)), float(max(high for _, high in ends))


def feature_maps(study: Study) -> Figure | None:
    """Test features on their two main axes, coloured by task, through training."""
    count = len(study.task_names)
    times = sorted({0, count // 2 - 1, count - 1}) if count > 2 else list(range(count))
    panels = []
    used: list[StudyRun] = []
    for label in sorted(chosen_labels(study, 4), key=lambda label: label not in study.continual):
        item = study.by_label[label][0]
        moments = times if item.run.continual else [0]
        for moment in moments:
            arrays = item.arrays(moment)
            if "projection.points" in arrays and "task" in arrays:
                when = f"after task {moment + 1}" if item.run.continual else "at the end"
                panels.append(_map_panel(arrays, f"{label}, {when}", count))
                used.append(item)
    if not panels:
        return None
    return Figure(
        f"{study.identifier}-maps",
        "Maps of the test features, by task",
        "Each dot is a test image on the two main axes of the features; early tasks are blue, late ones red (numbers "
        "stand at the middle of each task), and tasks that lie apart are consolidated.",
        panels,
        "principal axes of the training features at that moment",
        tuple(item.number for item in used),
        f"seed {used[0].seed}",
    )


def _map_panel(arrays: dict[str, np.ndarray], title: str, count: int) -> Panel:
    points, task = arrays["projection.points"], arrays["task"][arrays["projection.indices"]]

    def draw(axes: Axes) -> None:
        colours = TASK_COLOURS(task / max(1, count - 1))
        axes.scatter(points[:, 0], points[:, 1], c=colours, s=7, linewidths=0, alpha=0.75, rasterized=True)
        for number in sorted({int(one) for one in task}):
            x, y = np.median(points[task == number], axis=0)
            axes.text(x, y, str(number + 1), fontsize=8, fontweight="bold", ha="center", va="center")
        _bare(axes, title)

    return Panel(draw, 3.4, 2.7)


def class_maps(study: Study) -> Figure | None:
    """The classes of the first and of the last task on the same maps, final models."""
    count = len(study.task_names)
    used = [study.by_label[label][0] for label in chosen_labels(study, 3)]
    found = [(item, arrays) for item in used if "projection.points" in (arrays := item.arrays()) and "label" in arrays]
    panels = [
        _class_panel(arrays, task, f"{item.label}, classes of task {task + 1}")
        for task in (0, count - 1)
        for item, arrays in found
    ]
    if not panels:
        return None
    return Figure(
        f"{study.identifier}-class-maps",
        "Maps of the test features, by class",
        "The classes of the first and of the last task in colour, all other test images in grey, after the last task: "
        "classes that form islands are easy for the KNN.",
        panels,
        "principal axes of the training features, final model",
        tuple(item.number for item in used),
        f"seed {used[0].seed}",
        columns=len(found),
    )


def _class_panel(arrays: dict[str, np.ndarray], task: int, title: str) -> Panel:
    points, chosen = arrays["projection.points"], arrays["projection.indices"]
    label, its_task = arrays["label"][chosen], arrays["task"][chosen]

    def draw(axes: Axes) -> None:
        others = its_task != task
        axes.scatter(points[others, 0], points[others, 1], color=MUTED, s=5, linewidths=0, alpha=0.25, rasterized=True)
        for number, name in enumerate(sorted({int(one) for one in label[~others]})):
            part = points[label == name]
            colour, marker = CLASS_COLOURS[number % 8], CLASS_MARKERS[number % 8]
            axes.scatter(part[:, 0], part[:, 1], color=colour, marker=marker, s=15, linewidths=0, rasterized=True)
        _bare(axes, title)

    return Panel(draw, 3.4, 2.7)


def _bare(axes: Axes, title: str) -> None:
    axes.set_xticks([])
    axes.set_yticks([])
    axes.grid(visible=False)
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.set_title(title, fontsize=8.5)
