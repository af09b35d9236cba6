"""Figures of the memory: overfitting to it, which tasks it holds, and the images themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from osiris.report import axes as draw
from osiris.report.benchmark_images import Source, evenly_spaced, mosaic, take
from osiris.report.curves import Points, as_points, lines_over_seeds
from osiris.report.figure import Drawing, add_legend, figure, panels, pictures
from osiris.report.overfitting import Measured
from osiris.report.studies import Study
from osiris.report.style import MUTED, legend_of, order_of

IMAGES_SHOWN = 60


@figure("overfitting", "Overfitting to the memory")  # Fig. 3b and 5
def overfitting(study: Study, measured: Measured) -> Drawing | None:
    """(L_all - L_mem) / L_all: the contrastive loss on all past data against that on the memory, without the current
    task. Near zero the memory represents the past; well above zero the encoder has overfitted to it."""
    runs = [run for run in study.main if run.uses_memory and run.label in study.plain and measured.get(run.number)]
    if not runs:
        return None
    labels = sorted({run.label for run in runs}, key=order_of)
    canvas, every = panels(2, 2, 5.5, 2.8)
    titles = ("in the space of the current term (g)", "in the space of the past terms (h, or g if there is no h)")
    for axes, space, title in zip(every, ("g", "h"), titles):
        axes.axhline(0, color=MUTED, linewidth=0.8)
        series: dict[str, list[Points]] = {label: [] for label in labels}
        for run in runs:
            # A method with one projector has g alone: Fig. 5b shows it in both.
            differences = [(x, values.get(space, values.get("g"))) for x, values in measured[run.number]]
            series[run.label].append(as_points((x, value) for x, value in differences if value is not None))
        lines = lines_over_seeds(series)
        draw.curves(axes, lines, within=(-np.inf, np.inf), markers=all(len(line.x) <= 24 for line in lines.values()))
        draw.task_axis(axes, study.task_count, study.environments)
        draw.at_least(axes, -0.02, 0.02)
        axes.set(ylabel="relative loss difference", title=title)
    add_legend(canvas, legend_of(labels))
    return Drawing(canvas, runs, "views, batch size and temperature of the run")


@figure("memory", "Which tasks the memory holds")
def shares(study: Study) -> Drawing | None:
    """Each band is the share of one task in the memory (numbers at the right). After the last task the shares lie
    between {low:.0f}% and {high:.0f}%; equal shares would be {equal:.0f}%."""
    count = study.task_count
    shares_of: dict[str, np.ndarray] = {}
    for label, runs in study.continual.items():
        memories = [runs[0].memory(task) for task in range(count)] if runs[0].uses_memory else [None]
        tasks = [memory[1] for memory in memories if memory is not None]
        if len(tasks) == len(memories):
            shares_of[label] = task_shares(tasks, count)
    groups = group_equal(shares_of)
    if not groups or count < 2:
        return None
    canvas, every = panels(len(groups), 2, 5.5, 2.8)
    colours = draw.TASKS(np.linspace(0, 1, count))
    place: dict[str, Any] = {"xytext": (3, 0), "textcoords": "offset points", "va": "center"}
    for axes, (labels, share) in zip(every, groups):
        axes.stackplot(np.arange(1, count + 1), share.T * 100, colors=colours, alpha=0.85, linewidth=0)
        middles = np.cumsum(share[-1] * 100) - share[-1] * 50
        for task in np.flatnonzero(share[-1] > 0.035):
            axes.annotate(str(task + 1), (count, middles[task]), fontsize=7, **place)
        axes.set(ylim=(0, 100), ylabel="share of the memory (%)")
        draw.task_axis(axes, count)
        axes.set_xlim(1, count)
        names = ", ".join(labels)
        axes.set_title(names if len(names) < 60 else f"{len(labels)} methods with the same memory")
    low, high = (100 * float(edge([edge(share[-1]) for _, share in groups])) for edge in (min, max))
    runs = [study.by_label[label][0] for label in shares_of]
    return Drawing(canvas, runs, "checkpoints after each task", low=low, high=high, equal=100 / count)


def group_equal(arrays: dict[str, np.ndarray]) -> list[tuple[list[str], np.ndarray]]:
    """(labels, array) of the distinct arrays: memories of one seed and size hold the same images in every method."""
    groups: dict[bytes, list[str]] = {}
    for label, array in arrays.items():
        groups.setdefault(array.tobytes(), []).append(label)
    return [(labels, arrays[labels[0]]) for labels in groups.values()]


def task_shares(memories: Sequence[np.ndarray], task_count: int) -> np.ndarray:
    """[checkpoints, T]: the share of each task in the memory, given the tasks of the images in the memory after each
    task (-1: an empty slot)."""
    counts = np.array([np.bincount(tasks[tasks >= 0], minlength=task_count) for tasks in memories], dtype=np.float64)
    return counts / np.maximum(1, counts.sum(axis=1, keepdims=True))


@figure("memory-images", "What the memory holds at the end")
def images(study: Study, source: Source) -> Drawing | None:
    """Images in the memory after the last task, those of the earliest tasks first."""
    if source.benchmark is None:
        return None
    ids_of: dict[str, np.ndarray] = {}
    for label, runs in study.continual.items():
        memory = runs[0].memory() if runs[0].uses_memory else None
        if memory is not None and len(memory[0]):
            ids = memory[0][np.argsort(memory[1], kind="stable")]
            if ids.min() >= 0 and ids.max() < len(source.benchmark.train):
                ids_of[label] = ids
    if not ids_of:
        return None
    sheets = []
    for labels, ids in group_equal(ids_of):
        chosen = ids[evenly_spaced(len(ids), IMAGES_SHOWN)]
        names = ", ".join(labels)
        names = names if len(names) < 48 else f"{len(labels)} methods"
        sheet = mosaic(take(source.benchmark.train.images, chosen), 12)
        sheets.append((f"{names}: {len(chosen)} of {len(ids)} images", sheet))
    return Drawing(pictures(sheets, 2, 5.5), [study.by_label[label][0] for label in ids_of])
