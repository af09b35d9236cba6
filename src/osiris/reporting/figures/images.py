"""Figures made of images (what the tasks look like, what the learner sees of them, nearest neighbours), and of the
memory: overfitting to it, which tasks it holds, and its images."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image

from osiris.augment.views import VIEWS, TwoViews
from osiris.data.benchmark import Benchmark
from osiris.randomness import generator
from osiris.reporting import axes as draw
from osiris.reporting.benchmark_images import evenly_spaced, framed, mosaic, pixels, take, tiles
from osiris.reporting.curves import Points, as_points, lines_over_seeds, overfitting_course
from osiris.reporting.figure import Figure, add_legend, figure, panels, pictures
from osiris.reporting.studies import Study
from osiris.reporting.style import MUTED, legend_of, order_of
from osiris.runs.run import Run

PER_TASK = 16
VIEWED = 10
QUERIES_SHOWN = 6


@figure("images", "What each task looks like")
def task_sheets(study: Study, benchmark: Benchmark) -> Figure:
    """A sample of the training images of each task{order}."""
    tasks = range(study.task_count)
    canvas = pictures([(study.task_title(task), _task_sheet(benchmark, task)) for task in tasks], 3, 3.7)
    order = ", one class per row where classes are few" if benchmark.labelled else ""
    return Figure(canvas, study.main, order=order)


def _task_sheet(benchmark: Benchmark, task: int) -> Image.Image:
    """One row per class for up to five classes; otherwise rows of mixed images."""
    members, label, classes = benchmark.training_indices(task), benchmark.train.label, benchmark.tasks[task]
    if label is None or not classes:
        chosen, width = members[:PER_TASK].tolist(), 8
    elif len(classes) <= 5:
        rows = [members[label[members] == one][:8].tolist() for one in classes]
        return tiles([take(benchmark.train.images, row) for row in rows if row])
    else:
        chosen, width = [int(members[label[members] == one][0]) for one in classes if (label[members] == one).any()], 10
    return mosaic(take(benchmark.train.images, chosen), width)


@figure("views", "Two views of an image")
def views(study: Study, benchmark: Benchmark) -> Figure | None:
    """Top row: the image. Below it: the two views that the loss pulls together, after a random crop, flip and change of
    colour, while it pushes the views of other images away."""
    kind = study.runs[0].config.get("learning.views", "paper")
    if kind not in VIEWS:
        return None
    images = benchmark.train.images.take(torch.from_numpy(evenly_spaced(len(benchmark.train), VIEWED)))
    both = TwoViews(benchmark.mean, benchmark.std, VIEWS[kind])(images, generator(0, "augment.x", 0, 0))
    centre, spread = (torch.tensor(part).view(1, 3, 1, 1) for part in (benchmark.mean, benchmark.std))
    visible = [((view * spread + centre).clamp(0, 1) * 255).round().to(torch.uint8) for view in both]
    canvas = pictures([("", tiles([pixels(images), *map(pixels, visible)], row_gap=6))], 1, 11)
    return Figure(canvas, study.main, "augmentation of the paper" if kind == "paper" else f"{kind} augmentation")


class Neighbours(NamedTuple):
    """Nearest bank images of some query images: after the query's own task, and after the last task."""

    queries: np.ndarray
    task: np.ndarray
    before: np.ndarray
    after: np.ndarray


def neighbours_of_run(run: Run, query_task: np.ndarray) -> Neighbours | None:
    every = [run.arrays(task) for task in range(run.task_count)]
    if not all("neighbours.bank" in arrays for arrays in every):
        return None
    queries = every[-1]["neighbours.indices"]
    task = query_task[queries]
    before = np.stack([every[int(number)]["neighbours.bank"][row] for row, number in enumerate(task)])
    return Neighbours(queries, task, before, every[-1]["neighbours.bank"])


@figure("neighbours", "Nearest images, before and after")
def nearest_images(study: Study, benchmark: Benchmark) -> Figure | None:
    """Each row starts with an image, followed by the training images that are nearest to it. {sentence}"""
    labels = [label for label in ("ft", "osiris-d") if label in study.continual] or list(study.continual)[:2]
    split, last_task = benchmark.bank if benchmark.test is None else benchmark.test, study.task_count - 1
    near = {name: neighbours_of_run(study.continual[name][0], split.task.numpy()) for name in labels}
    known = {name: pairs for name, pairs in near.items() if pairs is not None}
    if not known:
        return None
    method, first = next(iter(known.items()))
    labelled = study.metrics.labelled and split.label is not None and benchmark.bank.label is not None

    def same_class(nearest: np.ndarray) -> np.ndarray:
        assert split.label is not None and benchmark.bank.label is not None
        return benchmark.bank.label.numpy()[nearest] == split.label.numpy()[first.queries, None]

    if labelled:
        right = same_class(first.before), same_class(first.after)
        chosen = most_forgotten(*right, first.task, last_task, QUERIES_SHOWN)
        sentence = "A solid green frame is the same class, a striped orange one another class. The rows are those that "
        sentence += f"{method} forgot most."
    else:
        early = np.flatnonzero(first.task < last_task)
        chosen = early[evenly_spaced(len(early), QUERIES_SHOWN)].tolist()
        sentence = "Neighbours that make sense to you are the best sign of a useful representation."
    if not chosen:
        return None
    sheets = []
    for name, pairs in known.items():
        for when, nearest in (("after its task", pairs.before), ("after the last", pairs.after)):
            good = same_class(nearest) if labelled else [None] * len(nearest)
            rows = [(take(split.images, first.queries[[n]]), take(benchmark.bank.images, nearest[n])) for n in chosen]
            sheets.append((f"{name}, {when}", tiles([_row(*row, good[n]) for row, n in zip(rows, chosen)])))
    runs = [study.continual[name][0] for name in known]
    return Figure(pictures(sheets, 4, 2.75), runs, "nearest neighbours in the KNN bank", sentence=sentence)


def _row(query: np.ndarray, near: np.ndarray, right: np.ndarray | None) -> np.ndarray:
    """An image and its neighbours; these are framed if it is known which of them are right."""
    framed_near = near if right is None else [framed(tile, bool(good)) for tile, good in zip(near, right)]
    return np.concatenate([query, framed_near])


def most_forgotten(before: np.ndarray, after: np.ndarray, task: np.ndarray, last_task: int, count: int) -> list[int]:
    """Queries whose neighbours got worst, at most two per task; ties go to earlier tasks. None is of the last task,
    after which nothing was learned.

    `before`, `after`: bool [n, k], whether a neighbour is of the query's class.
    """
    loss = before.sum(axis=1) - after.sum(axis=1)
    per_task: Counter[int] = Counter()
    chosen = []
    for index in np.lexsort((task, -loss)).tolist():
        number = int(task[index])
        if number < last_task and per_task[number] < 2 and before[index].any():
            per_task[number] += 1
            chosen.append(index)
    return chosen[:count]


@figure("overfitting", "Overfitting to the memory")  # Fig. 3b and 5
def overfitting_curves(study: Study) -> Figure | None:
    """(L_all - L_mem) / L_all: the contrastive loss on all past data against that on the memory, without the current
    task. Near zero the memory represents the past; well above zero the encoder has overfitted to it."""
    runs = [run for run in study.main if run.uses_memory and run.label in study.plain and run.overfitting_logged]
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
            differences = [(x, values.get(space, values.get("g"))) for x, values in overfitting_course(run)]
            series[run.label].append(as_points((x, value) for x, value in differences if value is not None))
        lines = lines_over_seeds(series)
        draw.curves(axes, lines, within=(-np.inf, np.inf), markers=all(len(line.x) <= 24 for line in lines.values()))
        draw.task_axis(axes, study.task_count, study.environments)
        draw.at_least(axes, -0.02, 0.02)
        axes.set(ylabel="relative loss difference", title=title)
    add_legend(canvas, legend_of(labels))
    return Figure(canvas, runs, "views, batch size and temperature of the run")


@figure("memory", "Which {word}s the memory holds")
def memory_shares(study: Study) -> Figure | None:
    """Each band is the share of one {word} in the memory. After the last {word} the shares lie between {low:.0f}% and
    {high:.0f}%; equal shares would be {equal:.0f}%."""
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
    names = study.episode_names or [str(task + 1) for task in range(count)]
    colours = draw.TASK_COLOURS(np.linspace(0, 1, count))
    place: dict[str, Any] = {"xytext": (3, 0), "textcoords": "offset points", "va": "center"}
    for axes, (labels, share) in zip(every, groups):
        axes.stackplot(np.arange(1, count + 1), share.T * 100, colors=colours, alpha=0.85, linewidth=0)
        middles = np.cumsum(share[-1] * 100) - share[-1] * 50
        for task in np.flatnonzero(share[-1] > 0.035):
            axes.annotate(names[task], (count, middles[task]), fontsize=7, **place)
        axes.set(ylim=(0, 100), ylabel="share of the memory (%)")
        draw.task_axis(axes, count, names=study.episode_names)
        axes.set_xlim(1, count)
        methods = ", ".join(labels)
        axes.set_title(methods if len(methods) < 60 else f"{len(labels)} methods with the same memory")
    low, high = (100 * float(edge([edge(share[-1]) for _, share in groups])) for edge in (min, max))
    runs = [study.by_label[label][0] for label in shares_of]
    values = {"low": low, "high": high, "equal": 100 / count, "word": study.word}
    return Figure(canvas, runs, f"checkpoints after each {study.word}", **values)


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
