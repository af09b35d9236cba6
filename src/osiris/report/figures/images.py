"""Figures made of images: what the tasks look like, what the learner sees of them, and nearest neighbours."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image

from osiris.augment.views import VIEWS, TwoViews
from osiris.data.benchmark import Benchmark
from osiris.evaluation.runs import Run
from osiris.randomness import generator
from osiris.report.benchmark_images import Source, evenly_spaced, framed, mosaic, pixels, take, tiles
from osiris.report.figure import Drawing, figure, pictures
from osiris.report.studies import Study

PER_TASK = 16
VIEWED = 10
QUERIES_SHOWN = 6


@figure("images", "What each task looks like")
def task_sheets(study: Study, source: Source) -> Drawing | None:
    """A sample of the training images of each task{order}."""
    if source.benchmark is None:
        return None
    tasks = range(study.task_count)
    canvas = pictures([(study.task_title(task), _task_sheet(source.benchmark, task)) for task in tasks], 3, 3.7)
    order = ", one class per row where classes are few" if source.benchmark.labelled else ""
    return Drawing(canvas, study.main, order=order)


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
def views(study: Study, source: Source) -> Drawing | None:
    """Top row: the image. Below it: the two views that the loss pulls together, after a random crop, flip and change of
    colour, while it pushes the views of other images away."""
    benchmark = source.benchmark
    kind = study.runs[0].config.get("learning.views", "paper")
    if benchmark is None or kind not in VIEWS:
        return None
    images = benchmark.train.images.take(torch.from_numpy(evenly_spaced(len(benchmark.train), VIEWED)))
    both = TwoViews(benchmark.mean, benchmark.std, VIEWS[kind])(images, generator(0, "augment.x", 0, 0))
    centre, spread = (torch.tensor(part).view(1, 3, 1, 1) for part in (benchmark.mean, benchmark.std))
    visible = [((view * spread + centre).clamp(0, 1) * 255).round().to(torch.uint8) for view in both]
    canvas = pictures([("", tiles([pixels(images), *map(pixels, visible)], row_gap=6))], 1, 11)
    return Drawing(canvas, study.main, "augmentation of the paper" if kind == "paper" else f"{kind} augmentation")


class Neighbours(NamedTuple):
    """Nearest bank images of some query images: after the query's own task, and after the last task."""

    queries: np.ndarray
    task: np.ndarray
    before: np.ndarray
    after: np.ndarray


def nearest_images(run: Run, query_task: np.ndarray) -> Neighbours | None:
    every = [run.arrays(task) for task in range(run.task_count)]
    if not all("neighbours.bank" in arrays for arrays in every):
        return None
    queries = every[-1]["neighbours.indices"]
    task = query_task[queries]
    before = np.stack([every[int(number)]["neighbours.bank"][row] for row, number in enumerate(task)])
    return Neighbours(queries, task, before, every[-1]["neighbours.bank"])


@figure("neighbours", "What forgetting looks like")
def neighbours(study: Study, source: Source) -> Drawing | None:
    """Each row starts with a test image, followed by its five nearest training images: a solid green frame is the same
    class, a striped orange one another class. The rows are those that {method} forgot most."""
    benchmark = source.benchmark
    if benchmark is None or benchmark.test is None or benchmark.test.label is None or benchmark.bank.label is None:
        return None
    labels = [label for label in ("ft", "osiris-d") if label in study.continual] or list(study.continual)[:2]
    task, label, bank_label = benchmark.test.task.numpy(), benchmark.test.label.numpy(), benchmark.bank.label.numpy()
    known = {name: pairs for name in labels if (pairs := nearest_images(study.continual[name][0], task)) is not None}
    if not known:
        return None
    first = next(iter(known.values()))
    query_label = label[first.queries]
    before, after = (bank_label[nearest] == query_label[:, None] for nearest in (first.before, first.after))
    chosen = most_forgotten(before, after, first.task, study.task_count - 1, QUERIES_SHOWN)
    if not chosen:
        return None
    sheets = []
    for name, pairs in known.items():
        for when, nearest in (("after its task", pairs.before), ("after the last", pairs.after)):
            rows = [_row(benchmark, first.queries[index], nearest[index], query_label[index]) for index in chosen]
            sheets.append((f"{name}, {when}", tiles(rows)))
    runs = [study.continual[name][0] for name in known]
    basis = "nearest neighbours in the KNN bank"
    return Drawing(pictures(sheets, 4, 2.75), runs, basis, method=next(iter(known)))


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


def _row(benchmark: Benchmark, query: int, nearest: np.ndarray, label: int) -> np.ndarray:
    assert benchmark.test is not None and benchmark.bank.label is not None
    right = benchmark.bank.label.numpy()[nearest] == label
    near = [framed(tile, bool(good)) for tile, good in zip(take(benchmark.bank.images, nearest), right)]
    return np.concatenate([take(benchmark.test.images, [query]), np.stack(near)])
