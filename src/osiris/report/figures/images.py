"""Figures made of images: what the tasks look like, what the learner sees of them, and nearest neighbours."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import torch

from osiris.augment.views import VIEWS, TwoViews
from osiris.data.benchmark import Benchmark
from osiris.evaluation.runs import Run
from osiris.randomness import generator
from osiris.report.benchmark_images import Source, evenly_spaced, framed, pixels, take, tiles
from osiris.report.figure import Figure, pictures, study_figure
from osiris.report.studies import Study

PER_TASK = 16
VIEWED = 10
QUERIES_SHOWN = 6


def task_sheets(study: Study, source: Source) -> Figure | None:
    """Training images of each task, sorted by class."""
    if source.benchmark is None:
        return None
    tasks = range(study.task_count)
    canvas = pictures([(study.task_title(task), tiles(_task_rows(source.benchmark, task))) for task in tasks], 3, 3.7)
    caption = "A sample of the training images of each task"
    caption += ", one class per row where classes are few." if source.benchmark.labelled else "."
    return study_figure(study, "images", "What each task looks like", caption, canvas, study.main)


def _task_rows(benchmark: Benchmark, task: int) -> list[np.ndarray]:
    """One row per class for up to five classes; otherwise rows of mixed images."""
    members, label, classes = benchmark.training_indices(task), benchmark.train.label, benchmark.tasks[task]
    if label is None or not classes:
        chosen, width = members[:PER_TASK].tolist(), 8
    elif len(classes) <= 5:
        rows = [members[label[members] == one][:8].tolist() for one in classes]
        return [take(benchmark.train.images, row) for row in rows if row]
    else:
        chosen, width = [int(members[label[members] == one][0]) for one in classes if (label[members] == one).any()], 10
    return [take(benchmark.train.images, chosen[start : start + width]) for start in range(0, len(chosen), width)]


def views(study: Study, source: Source) -> Figure | None:
    """Images, each with the two views that the contrastive loss pulls together."""
    benchmark = source.benchmark
    kind = study.runs[0].config.get("learning.views", "paper")
    if benchmark is None or kind not in VIEWS:
        return None
    images = benchmark.train.images.take(torch.from_numpy(evenly_spaced(len(benchmark.train), VIEWED)))
    both = TwoViews(benchmark.mean, benchmark.std, VIEWS[kind])(images, generator(0, "augment.x", 0, 0))
    centre, spread = (torch.tensor(part).view(1, 3, 1, 1) for part in (benchmark.mean, benchmark.std))
    visible = [((view * spread + centre).clamp(0, 1) * 255).round().to(torch.uint8) for view in both]
    canvas = pictures([("", tiles([pixels(images), *map(pixels, visible)], row_gap=6))], 1, 11)
    caption = (
        "Top row: the image. Below it: the two views that the loss pulls together, after a random crop, flip and "
        "change of colour, while it pushes the views of other images away."
    )
    basis = "augmentation of the paper" if kind == "paper" else f"{kind} augmentation"
    return study_figure(study, "views", "Two views of an image", caption, canvas, study.main, basis)


@dataclass(frozen=True)
class Neighbours:
    """Nearest bank images of some query images: after the query's own task, and after the last task."""

    queries: np.ndarray
    task: np.ndarray
    before: np.ndarray
    after: np.ndarray

    @classmethod
    def of(cls, run: Run, query_task: np.ndarray) -> Neighbours | None:
        every = [run.arrays(task) for task in range(run.task_count)]
        if not all("neighbours.bank" in arrays for arrays in every):
            return None
        queries = every[-1]["neighbours.indices"]
        task = query_task[queries]
        before = np.stack([every[int(number)]["neighbours.bank"][row] for row, number in enumerate(task)])
        return cls(queries, task, before, every[-1]["neighbours.bank"])


def neighbours(study: Study, source: Source) -> Figure | None:
    """Nearest training images of a few test images, right after their task and at the end."""
    benchmark = source.benchmark
    if benchmark is None or benchmark.test is None or benchmark.test.label is None or benchmark.bank.label is None:
        return None
    labels = [label for label in ("ft", "osiris-d") if label in study.continual] or list(study.continual)[:2]
    task, label, bank_label = benchmark.test.task.numpy(), benchmark.test.label.numpy(), benchmark.bank.label.numpy()
    known = {name: pairs for name in labels if (pairs := Neighbours.of(study.continual[name][0], task)) is not None}
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
    canvas = pictures(sheets, 4, 2.75)
    caption = (
        "Each row starts with a test image, followed by its five nearest training images: a solid green frame is the "
        f"same class, a striped orange one another class. The rows are those that {next(iter(known))} forgot most."
    )
    runs = [study.continual[name][0] for name in known]
    basis = "nearest neighbours in the KNN bank"
    return study_figure(study, "neighbours", "What forgetting looks like", caption, canvas, runs, basis)


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
