"""Figures of accuracy: at the end, through training, by task and by class."""

from __future__ import annotations

from statistics import fmean

import numpy as np
from matplotlib.axes import Axes

from osiris.evaluation.statistics import deviation
from osiris.report import axes as draw
from osiris.report.benchmark_images import Source
from osiris.report.curves import Course
from osiris.report.figure import Figure, add_legend, panels, study_figure
from osiris.report.studies import Study
from osiris.report.style import GRID, INK, METHODS, MUTED, UNTRAINED, legend_of, style_of
from osiris.report.validation import accuracy_matrix, class_accuracy

MATRIX_CELLS = 12
"""Accuracy matrices up to this size show their numbers."""
CLASSES_SHOWN = 12


def overview(study: Study) -> Figure:
    """A of every method: one point per seed, and the mean."""
    canvas, every = panels(len(study.protocols), 2, 5.5, 0.75 + 0.27 * (len(study.by_label) + 1))
    sentences = []
    for axes, protocol in zip(every, study.protocols):
        ranked = _ranking(study, protocol)
        for row, (label, values) in enumerate(ranked):
            _ranked_row(axes, row, label, values)
        axes.set_yticks(range(len(ranked)), [label for label, _ in ranked], color=INK)
        axes.set(ylim=(len(ranked) - 0.4, -0.6), xlabel="A (%)", title=f"{protocol} KNN")
        axes.grid(visible=False, axis="y")
        axes.grid(visible=True, axis="x")
        axes.spines["left"].set_visible(False)
        axes.margins(x=0.12)
        if len(ranked) > 1:
            (best, high), (worst, low) = ranked[0], ranked[-1]
            extremes = f"{best} is highest ({fmean(high):.1f}), {worst} lowest ({fmean(low):.1f})"
            sentences.append(f"{protocol.capitalize()}: {extremes}.")
    caption = (
        "Each row is a method: the large mark is the mean over seeds, small dots are single runs, and the line spans "
        "one sample deviation either way; further to the right is better. "
    )
    caption += " ".join(sentences)
    title = "Overall accuracy A after the last task"
    return study_figure(study, "overview", title, caption, canvas, study.main, _all_protocols(study))


def _all_protocols(study: Study) -> str:
    return " and ".join(f"{name} KNN" for name in study.protocols)


def _ranking(study: Study, protocol: str) -> list[tuple[str, list[float]]]:
    """(label, A of every seed), the highest mean first; methods without A are left out."""
    rows = [(label, study.final(label, protocol)) for label in study.by_label]
    untrained = study.untrained(protocol)
    rows += [] if untrained is None else [(UNTRAINED, [untrained])]
    return sorted((row for row in rows if row[1]), key=lambda row: -fmean(row[1]))


def _ranked_row(axes: Axes, row: int, label: str, values: list[float]) -> None:
    style, centre, spread = style_of(label), fmean(values), deviation(values) or 0.0
    if len(values) > 1:
        axes.plot([centre - spread, centre + spread], [row, row], color=style.colour, linewidth=2.2, alpha=0.45)
        axes.plot(values, [row] * len(values), ".", color=style.colour, alpha=0.8)
    axes.plot([centre], [row], marker=style.marker, color=style.colour, markersize=7, markeredgewidth=0)
    place = (max([*values, centre + spread]), row)
    axes.annotate(f"{centre:.1f}", place, xytext=(8, 0), textcoords="offset points", va="center", fontsize=8)


def through_training(study: Study) -> Figure:
    """Mean accuracy over all tasks, learned or still to come."""
    canvas, every = panels(len(study.protocols), 2, 5.5, 2.9)
    for axes, protocol in zip(every, study.protocols):
        draw.curves(axes, draw.course_curves(study.plain, protocol, Course.overall))
        _untrained_level(axes, study, protocol)
        draw.task_axis(axes, study.task_count, study.environments)
        draw.percent_axis(axes)
        axes.set_title(f"{protocol} KNN")
    add_legend(canvas, legend_of(study.plain, untrained=study.untrained(study.protocols[0]) is not None))
    caption = "Mean accuracy over all tasks, including those not yet learned. "
    if any(not runs[0].continual for runs in study.plain.values()):
        caption += "Level lines are methods that do not learn task by task. "
    if draw.environment_starts(study.environments):
        caption += "Vertical dashes mark where the environment changes."
    title = "Accuracy through training"
    return study_figure(study, "accuracy", title, caption, canvas, study.plain, _all_protocols(study))


def _untrained_level(axes: Axes, study: Study, protocol: str) -> None:
    level = study.untrained(protocol)
    if level is not None:
        axes.axhline(level, linewidth=1.2, **METHODS[UNTRAINED].line)


def method_by_method(study: Study) -> Figure | None:
    """The same as small multiples with a band over seeds each, where one panel would hold too many bands."""
    protocol = study.protocols[0]
    lines = draw.course_curves(study.plain, protocol, Course.overall)
    moving = {label: line for label, line in lines.items() if len(line.x) > 1}
    if len(moving) <= draw.MOST_BANDS or all(line.deviation is None for line in moving.values()):
        return None
    canvas, every = panels(len(moving), 4, 2.75, 1.9, share_y=True)
    for axes, (label, line) in zip(every, moving.items()):
        for other in moving.values():
            axes.plot(other.x, other.mean, color=GRID, linewidth=1)
        draw.curve(axes, line, style_of(label), within=draw.PERCENT)
        _untrained_level(axes, study, protocol)
        draw.task_axis(axes, study.task_count, label=False)
        axes.set_title(label)
    caption = (
        "Each panel is one method: the mean over seeds with a band of one sample deviation. Grey lines are the other "
        "methods, the dotted line is the untrained encoder. Horizontal: tasks learned; vertical: accuracy in percent."
    )
    title = "Accuracy through training, method by method"
    return study_figure(study, "accuracy-methods", title, caption, canvas, moving, f"{protocol} KNN")


def trade_off(study: Study) -> Figure | None:
    """Fig. 3a: plasticity, consolidation and stability."""
    methods, protocol = study.few(), study.protocols[0]
    if not methods:
        return None
    quantities = (
        ("Plasticity", "accuracy on the current task (%)", Course.plasticity),
        ("Consolidation", "task-level accuracy (%)", Course.consolidation),
        ("Stability", "accuracy on task 1 (%)", Course.of_task),
    )
    canvas, every = panels(3, 3, 3.7, 2.9)
    for axes, (title, unit, quantity) in zip(every, quantities):
        draw.curves(axes, draw.course_curves(methods, protocol, quantity))
        draw.task_axis(axes, study.task_count, study.environments)
        draw.percent_axis(axes, unit)
        axes.set_title(title)
    add_legend(canvas, legend_of(methods))
    caption = (
        "Left: how well the current task is learned. Middle: how well a KNN tells which task an image is from. Right: "
        "what is left of the accuracy on task 1. A method that balances the three is high in every panel."
    )
    title, basis = "Plasticity, consolidation and stability", f"{protocol} KNN; task-level KNN in the middle"
    return study_figure(study, "trade-off", title, caption, canvas, methods, basis)


def every_task(study: Study) -> Figure | None:
    """Fig. 8 to 11: the accuracy on each task through training, small multiples."""
    methods, protocol, count = study.few(5), study.protocols[0], study.task_count
    if not methods:
        return None
    canvas, every = panels(count, 5, 2.2, 1.75, share_y=True)
    for task, axes in enumerate(every):
        lines = draw.course_curves(methods, protocol, lambda course, task=task: course.of_task(task))
        draw.curves(axes, lines, markers=False)
        axes.axvspan(task, task + 1, color=MUTED, alpha=0.13, linewidth=0)
        axes.set(xlim=(0, count), xticks=sorted({1, (count + 1) // 2, count}))
        axes.set_title(study.task_title(task), fontsize=8.5)
    add_legend(canvas, legend_of(methods), markers=False)
    caption = (
        "Horizontal: tasks learned; vertical: accuracy in percent. The task itself is learned in the shaded stretch: "
        "the rise inside it is knowledge gain, a fall after it is forgetting, and the level before it is transfer."
    )
    title = "Accuracy on every task through training"
    return study_figure(study, "tasks", title, caption, canvas, methods, f"{protocol} KNN")


def matrices(study: Study, protocol: str) -> Figure | None:
    """A[t, i] of each continual method, mean over seeds."""
    if not study.continual:
        return None
    means = {
        label: np.mean([accuracy_matrix(run, protocol) for run in runs], axis=0)
        for label, runs in study.continual.items()
    }
    values = np.concatenate([matrix[np.isfinite(matrix)] for matrix in means.values()])
    low, high = (float(values.min()), float(values.max())) if len(values) else (0.0, 1.0)
    count, columns = study.task_count, 4 if len(means) == 4 else 3
    canvas, every = panels(len(means), columns, 11.1 / columns, 11.1 / columns - 0.1)
    for axes, (label, matrix) in zip(every, means.items()):
        mesh = draw.heat_map(axes, matrix, low, high, cells=count <= MATRIX_CELLS)
        stairs = np.repeat(np.arange(count + 1), 2)
        axes.plot(stairs[1:], stairs[:-1], color=INK, linewidth=1.1)  # tasks already learned lie below
        numbers = range(1, count + 1) if count <= MATRIX_CELLS else range(5, count + 1, 5)
        draw.number_ticks(axes, [number - 0.5 for number in numbers], numbers)
        axes.set(xlabel="accuracy on task", ylabel="after learning task", title=label)
    canvas.colorbar(mesh, ax=every, label="accuracy (%)", aspect=30, fraction=0.02, pad=0.01)
    caption = (
        "Row t, column i is the accuracy on task i after learning task t. Tasks already learned lie below the stairs; "
        "a column that turns lighter downwards is forgetting."
    )
    title, basis = f"Accuracy matrices, {protocol}", f"{protocol} KNN"
    return study_figure(study, f"matrices-{protocol}", title, caption, canvas, study.continual, basis)


def forgotten_classes(study: Study, source: Source) -> Figure | None:
    """How much of each class every method forgets: all classes as a sorted curve, and the classes forgotten most."""
    methods, protocol = study.few(), study.protocols[0]
    if not methods:
        return None
    lost = {
        label: np.mean([class_forgetting(class_accuracy(run, protocol)) for run in runs], axis=0)
        for label, runs in methods.items()
    }
    worst = largest(np.mean(list(lost.values()), axis=0), CLASSES_SHOWN)
    if not worst:
        return None
    canvas, (left, right) = panels(2, 2, 5.5, 3.1)
    for label, values in lost.items():
        style = style_of(label)
        ordered = np.sort(values[np.isfinite(values)])[::-1]
        every = max(1, len(ordered) // 8)
        left.plot(np.arange(1, len(ordered) + 1), ordered, marker=style.marker, markevery=every, **style.line)
        right.plot(values[worst], range(len(worst)), style.marker, color=style.colour, markersize=6, markeredgewidth=0)
    left.set(xlim=(1, None), xlabel="classes, the most forgotten first", title="All classes")
    draw.percent_axis(left, "forgetting (points)")
    right.set_yticks(range(len(worst)), [source.class_name(label) for label in worst], color=INK)
    right.set(ylim=(len(worst) - 0.4, -0.6), xlabel="forgetting (points)", title="Most forgotten")
    right.grid(visible=True, axis="x")
    right.margins(x=0.06)
    add_legend(canvas, legend_of(methods))
    caption = "How far the final accuracy on a class lies below its best after any task. "
    if len(lost) > 1:
        totals = sorted((float(np.nanmean(values)), label) for label, values in lost.items())
        (least, first), (most, last) = totals[0], totals[-1]
        caption += f"Mean over classes: from {least:.1f} ({first}) to {most:.1f} points ({last})."
    return study_figure(study, "forgetting", "Forgetting by class", caption, canvas, methods, f"{protocol} KNN")


def class_forgetting(history: np.ndarray) -> np.ndarray:
    """[C]: best accuracy after any task minus the final one. `history`: [tasks, C]; NaN for a class without images."""
    return (history - history[-1]).max(axis=0)


def largest(values: np.ndarray, count: int) -> list[int]:
    """Positions of the largest values, largest first; never of NaN."""
    order = np.argsort(-values, kind="stable")  # NaN comes last
    return [int(index) for index in order[:count] if not np.isnan(values[index])]
