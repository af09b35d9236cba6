"""Figures of accuracy: at the end, through training, by task, by normalisation, and against storage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from osiris.evaluation.config import instrument
from osiris.evaluation.scores import Compatibility
from osiris.evaluation.statistics import deviation
from osiris.framework.cost import Storage
from osiris.reporting import axes as draw
from osiris.reporting.curves import Course, accuracy_matrix
from osiris.reporting.figure import Canvas, Figure, add_legend, figure, panels
from osiris.reporting.studies import NORMS, Study
from osiris.reporting.style import INK, MUTED, legend_of, order_of, style_of

MATRIX_CELLS = 12
"""Accuracy matrices up to this size show their numbers."""


@figure("overview", "Overall accuracy A after the last task")
def overview(study: Study) -> Figure:
    """Each row is a method: the large mark is the mean over seeds, small dots are single runs, and the line spans one
    sample deviation either way; further to the right is better. {extremes}"""
    canvas, every = panels(len(study.protocols), 2, 5.5, 0.75 + 0.27 * (len(study.by_label) + 1))
    sentences = []
    for axes, protocol in zip(every, study.protocols):
        finals = [(label, study.final(label, protocol)) for label in study.by_label]
        finals += [(name, [level]) for name, level in study.levels(protocol).items()]
        ranked = sorted((row for row in finals if row[1]), key=lambda row: -fmean(row[1]))
        for row, (label, values) in enumerate(ranked):
            _ranked_row(axes, row, label, values)
        axes.set_yticks(range(len(ranked)), [label for label, _ in ranked], color=INK)
        axes.set(ylim=(len(ranked) - 0.4, -0.6), xlabel="A (%)", title=instrument(protocol))
        axes.grid(visible=False, axis="y")
        axes.grid(visible=True, axis="x")
        axes.spines["left"].set_visible(False)
        axes.margins(x=0.12)
        if len(ranked) > 1:
            (best, high), (worst, low) = ranked[0], ranked[-1]
            extremes = f"{best} is highest ({fmean(high):.1f}), {worst} lowest ({fmean(low):.1f})"
            sentences.append(f"{protocol.capitalize()}: {extremes}.")
    return Figure(canvas, study.main, _all_protocols(study), extremes=" ".join(sentences))


def _all_protocols(study: Study) -> str:
    return " and ".join(instrument(name) for name in study.protocols)


def _ranked_row(axes: Axes, row: int, label: str, values: list[float]) -> None:
    style, centre, spread = style_of(label), fmean(values), deviation(values) or 0.0
    if len(values) > 1:
        axes.plot([centre - spread, centre + spread], [row, row], color=style.colour, linewidth=2.2, alpha=0.45)
        axes.plot(values, [row] * len(values), ".", color=style.colour, alpha=0.8)
    axes.plot([centre], [row], marker=style.marker, color=style.colour, markersize=7, markeredgewidth=0)
    place = (max([*values, centre + spread]), row)
    axes.annotate(f"{centre:.1f}", place, xytext=(8, 0), textcoords="offset points", va="center", fontsize=8)


@figure("accuracy", "Accuracy through training")
def through_training(study: Study) -> Figure:
    """Mean accuracy over all tasks, including those not yet learned. {lines}{dashes}"""
    canvas, every = panels(len(study.protocols), 2, 5.5, 2.9)
    for axes, protocol in zip(every, study.protocols):
        draw.curves(axes, draw.course_curves(study.plain, protocol, Course.overall))
        _levels(axes, study, protocol)
        draw.task_axis(axes, study.task_count, study.environments)
        draw.percent_axis(axes)
        axes.set_title(instrument(protocol))
    add_legend(canvas, legend_of([*study.plain, *study.levels(study.protocols[0])]))
    at_once = any(not runs[0].continual for runs in study.plain.values())
    lines = "Level lines are methods that do not learn task by task. " if at_once else ""
    changes = draw.environment_starts(study.environments)
    dashes = "Vertical dashes mark where the environment changes." if changes else ""
    return Figure(canvas, study.plain, _all_protocols(study), lines=lines, dashes=dashes)


def _levels(axes: Axes, study: Study, protocol: str) -> None:
    for name, level in study.levels(protocol).items():
        axes.axhline(level, linewidth=1.2, **style_of(name).line)


@figure("trade-off", "Plasticity, consolidation and stability")  # Fig. 3a
def trade_off(study: Study) -> Figure | None:
    """Left: how well the current task is learned. Middle: how well a KNN tells which task an image is from. Right:
    what is left of the accuracy on task 1. A method that balances the three is high in every panel."""
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
    return Figure(canvas, methods, f"{instrument(protocol)}; task-level KNN in the middle")


@figure("tasks", "Accuracy on every task through training")  # Fig. 8 to 11
def every_task(study: Study) -> Figure | None:
    """Horizontal: tasks learned; vertical: accuracy in percent. The task itself is learned in the shaded stretch: the
    rise inside it is knowledge gain, a fall after it is forgetting, and the level before it is transfer."""
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
    return Figure(canvas, methods, instrument(protocol))


@figure("matrices-{protocol}", "Accuracy matrices, {protocol}")
def matrices(study: Study, protocol: str) -> Figure | None:
    """Row t, column i is the accuracy on task i after learning task t. Tasks already learned lie below the stairs; a
    column that turns lighter downwards is forgetting."""
    if not study.continual:
        return None
    means = {
        label: np.mean([accuracy_matrix(run, protocol) for run in runs], axis=0)
        for label, runs in study.continual.items()
    }
    values = np.concatenate([matrix[np.isfinite(matrix)] for matrix in means.values()])
    low, high = (float(values.min()), float(values.max())) if len(values) else (0.0, 1.0)
    canvas, every = task_matrices(means, low, high, ("accuracy on task", "after learning task", "accuracy (%)"))
    for axes in every:
        stairs = np.repeat(np.arange(study.task_count + 1), 2)
        axes.plot(stairs[1:], stairs[:-1], color=INK, linewidth=1.1)  # tasks already learned lie below
    return Figure(canvas, study.continual, instrument(protocol), protocol=protocol)


def task_matrices(
    matrices: Mapping[str, np.ndarray], low: float, high: float, names: tuple[str, str, str]
) -> tuple[Canvas, list[Axes]]:
    """Heat maps [tasks, tasks], one for each title. `names`: of columns, rows and values."""
    count, columns = len(next(iter(matrices.values()))), 4 if len(matrices) % 4 == 0 else 3
    canvas, every = panels(len(matrices), columns, 11.1 / columns, 11.1 / columns - 0.1)
    numbers = range(1, count + 1) if count <= MATRIX_CELLS else range(5, count + 1, 5)
    for axes, (title, matrix) in zip(every, matrices.items()):
        mesh = draw.heat_map(axes, matrix, low, high, cells=count <= MATRIX_CELLS)
        draw.number_ticks(axes, [number - 0.5 for number in numbers], numbers)
        axes.set(xlabel=names[0], ylabel=names[1], title=title)
    canvas.colorbar(mesh, ax=every, label=names[2], aspect=30, fraction=0.02, pad=0.01)
    return canvas, every


@figure("compatibility", "Searching an index of an earlier encoder")
def recall_matrices(study: Study) -> Figure | None:
    """Row t, column s: of the ten nearest images when index and queries are embedded after task t, how many are found
    in an index made after task s, in percent. Its vectors are used as they are (raw) or after a linear map (mapped); an
    index that is embedded again has 100. Mean over all pairs, raw and mapped: {means}."""
    runs = [run for members in study.continual.values() for run in members if run.compatibility is not None]
    measured: dict[str, list[Compatibility]] = {}
    for run in runs:
        if run.compatibility is not None:
            measured.setdefault(run.label, []).append(run.compatibility)
    if study.task_count < 2 or not measured:
        return None
    matrices = {
        f"{label}, {name}": mean_matrix([getattr(one, name).recall for one in each])
        for label, each in measured.items()
        for name in ("raw", "mapped")
    }
    canvas, _ = task_matrices(matrices, 0, 100, ("index after task", "queries after task", "Recall@10 (%)"))
    means = {title: float(np.nanmean(matrix)) for title, matrix in matrices.items()}
    sentence = ", ".join(f"{means[f'{one}, raw']:.1f} and {means[f'{one}, mapped']:.1f} ({one})" for one in measured)
    conditions = sorted({one.conditions for each in measured.values() for one in each})
    return Figure(canvas, runs, "; ".join(conditions), means=sentence)


def mean_matrix(matrices: Sequence[Sequence[Sequence[float]]]) -> np.ndarray:
    """[tasks, tasks]: the mean of matrices that have entries for s < t alone; NaN elsewhere."""
    count = len(matrices[0])
    result = np.full((count, count), np.nan)
    for task in range(1, count):
        result[task, :task] = np.mean([matrix[task] for matrix in matrices], axis=0)
    return result


@figure("norms", "BatchNorm against GroupNorm")  # Fig. 2
def normalisations(study: Study) -> Figure | None:
    """Hatched bars are BatchNorm, filled ones GroupNorm. GroupNorm minus BatchNorm: {gains}."""
    protocol = study.protocols[0]
    values: dict[tuple[str, str], list[float]] = {}
    for run in study.runs:
        if (accuracy := run.metrics[protocol].A) is not None:
            values.setdefault((run.label, run.norm), []).append(accuracy)
    methods = sorted({label for label, _ in values if all((label, norm) in values for norm in NORMS)}, key=order_of)
    if not methods:
        return None
    canvas, (axes,) = panels(1, 1, max(5.5, 1.3 * len(methods)), 2.9)
    for position, label in enumerate(methods):
        for norm, place in (("bn", position - 0.2), ("gn", position + 0.2)):
            centre, spread = fmean(values[label, norm]), deviation(values[label, norm]) or 0.0
            colour, hatched = style_of(label).colour, norm == "bn"
            look: dict[str, Any] = {"color": "none" if hatched else colour, "hatch": "////" if hatched else ""}
            axes.bar(place, centre, 0.36, edgecolor=colour, linewidth=1, **look)
            if spread:
                axes.errorbar(place, centre, spread, color=INK, linewidth=1, capsize=2)
            above: dict[str, Any] = {"xytext": (0, 2), "textcoords": "offset points", "ha": "center", "va": "bottom"}
            axes.annotate(f"{NORMS[norm][:5]}\n{centre:.1f}", (place, centre + spread), fontsize=7.5, **above)
    axes.set_xticks(range(len(methods)), methods, color=INK)
    axes.set(ylim=(0, 1.25 * max(fmean(group) + (deviation(group) or 0) for group in values.values())), ylabel="A (%)")
    gains = [f"{fmean(values[label, 'gn']) - fmean(values[label, 'bn']):+.1f} ({label})" for label in methods]
    runs = [run for run in study.runs if run.label in methods]
    return Figure(canvas, runs, instrument(protocol), gains=", ".join(gains))


@figure("storage", "Accuracy against extra storage")  # Fig. 6
def storage(study: Study, sizes: dict[str, Storage]) -> Figure | None:
    """Further up and to the left is better. The paper counts every extra parameter and every pixel channel in the
    memory as 64 bits; on disk a pixel channel takes 8 bits and a parameter 32."""
    protocol = study.protocols[0]
    methods = {label: values for label in sizes if label in study.plain and (values := study.final(label, protocol))}
    if len(methods) < 2:
        return None
    canvas, every = panels(2, 2, 5.5, 3.0)
    for axes, field, title in zip(every, ("paper", "stored"), ("As the paper counts", "As stored here")):
        for label, values in methods.items():
            style, size = style_of(label), getattr(sizes[label], field) / 1e6
            look: dict[str, Any] = {"color": style.colour, "marker": style.marker, "markersize": 7}
            axes.errorbar(size, fmean(values), deviation(values), linewidth=1, capsize=2, **look)
        axes.grid(visible=True, axis="x")
        axes.margins(x=0.16, y=0.12)
        axes.set(xlabel="extra storage (MB)", ylabel="A (%)", title=title)
    add_legend(canvas, legend_of(methods))
    return Figure(canvas, methods, instrument(protocol))
