"""Figures made of images: what the tasks look like, what the learner sees of them, what the memory holds."""

from __future__ import annotations

import numpy as np
import torch

from osiris.augment.views import VIEWS, TwoViews
from osiris.data.benchmark import Benchmark
from osiris.randomness import generator
from osiris.report.figure import Figure, Picture
from osiris.report.figures import neighbours as nearest
from osiris.report.figures.training_figures import numbered
from osiris.report.images import Source, framed, pixels, scale_for, take, tiles
from osiris.report.studies import Study, StudyRun

PER_TASK = 16
VIEWED = 10
HELD = 60
SHOWN_QUERIES = 6
Pairs = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def task_sheets(study: Study, source: Source) -> Figure:
    """Training images of each task, class after class."""
    benchmark = source.benchmark
    assert benchmark is not None
    scale = scale_for(benchmark.train.images.shape[1], 40)
    panels = []
    for task, name in enumerate(study.task_names):
        rows, names = _task_rows(benchmark, task)
        detail = ", ".join(names) if len(names) <= 5 else ""
        about = f"Sample of training images of {name}{': ' if detail else ''}{detail}."
        panels.append(Picture(tiles(rows), numbered(name, task), scale, about, detail))
    return Figure(
        f"{study.identifier}-images",
        "What each task looks like",
        "A sample of the training images of each task, one class per row where classes are few: this is all that "
        "the learner sees, and it sees it without the names.",
        panels,
        runs=study.numbers,
        columns=3,
    )


def _task_rows(benchmark: Benchmark, task: int) -> tuple[list[np.ndarray], list[str]]:
    """One row per class for up to five classes; otherwise rows of mixed images."""
    labels = benchmark.tasks[task]
    members = benchmark.training_indices(task)
    label = benchmark.train.label
    if label is None or not labels:
        chosen = members[:PER_TASK].tolist()
        return [take(benchmark.train.images, chosen[start : start + 8]) for start in range(0, len(chosen), 8)], []
    if len(labels) <= 5:
        rows = [members[label[members] == one][:8].tolist() for one in labels]
        return [take(benchmark.train.images, row) for row in rows], [benchmark.class_names[one] for one in labels]
    firsts = [int(members[label[members] == one][0]) for one in labels]
    return [take(benchmark.train.images, firsts[start : start + 10]) for start in range(0, len(firsts), 10)], []


def views(study: Study, source: Source) -> Figure:
    """Images and the two views that the contrastive loss calls the same."""
    benchmark = source.benchmark
    assert benchmark is not None
    count = len(benchmark.train)
    chosen = torch.linspace(0, count - 1, VIEWED).long()
    images = benchmark.train.images.take(chosen)
    kind = study.runs[0].run.config.get("learning.views", "paper")
    made = TwoViews(benchmark.mean, benchmark.std, VIEWS[kind])(images, generator(0, "augment.x", 0, 0))
    centre = torch.tensor(benchmark.mean).view(1, 3, 1, 1)
    spread = torch.tensor(benchmark.std).view(1, 3, 1, 1)
    shown = [((view * spread + centre).clamp(0, 1) * 255).round().to(torch.uint8) for view in made]
    rows = [pixels(images), *(pixels(view) for view in shown)]
    picture = tiles(rows, row_gap=6)
    about = f"{VIEWED} training images in the first row; below each, its two augmented views."
    return Figure(
        f"{study.identifier}-views",
        "Two views of an image",
        "Top row: the image; below it the two views that the loss pulls together, after random crop, flip and change "
        "of colour, while it pushes the views of other images away.",
        [Picture(picture, "", scale_for(images.shape[2], 64), about)],
        "augmentation of the paper" if kind == "paper" else f"{kind} augmentation",
        study.numbers,
        columns=1,
        wide=True,
    )


def memory_sheets(study: Study, source: Source) -> Figure | None:
    """Images in the memory after the last task, ordered by the task they came from."""
    benchmark = source.benchmark
    assert benchmark is not None
    panels, used = [], []
    for held, items in _distinct_memories(study):
        ids, tasks = held
        order = np.argsort(tasks, kind="stable")
        chosen = ids[order[np.linspace(0, len(order) - 1, min(HELD, len(order))).astype(int)]]
        rows = [take(benchmark.train.images, chosen[start : start + 12]) for start in range(0, len(chosen), 12)]
        names = ", ".join(item.label for item in items)
        detail = f"seed {items[0].seed}, {len(chosen)} of {len(ids)} images"
        panels.append(Picture(tiles(rows), names, scale_for(benchmark.train.images.shape[1], 40), detail=detail))
        used += [item.number for item in items]
    if not panels:
        return None
    return Figure(
        f"{study.identifier}-memory-images",
        "What the memory holds at the end",
        "Images in the memory after the last task, the earliest tasks first: a reservoir keeps every task in "
        "proportion.",
        panels,
        runs=tuple(used),
        columns=2,
    )


def _distinct_memories(study: Study) -> list[tuple[tuple[np.ndarray, np.ndarray], list[StudyRun]]]:
    """What the first seed of each method held at the end. Reservoirs of one seed and size are equal: shown once."""
    found: list[tuple[tuple[np.ndarray, np.ndarray], list[StudyRun]]] = []
    for items in study.continual.values():
        held = held_ids(items[0]) if items[0].uses_memory else None
        if held is None:
            continue
        same = next((members for known, members in found if np.array_equal(known[0], held[0])), None)
        if same is None:
            found.append((held, [items[0]]))
        else:
            same.append(items[0])
    return found


def held_ids(item: StudyRun, task: int | None = None) -> tuple[np.ndarray, np.ndarray] | None:
    """(source ids, tasks) of what the memory held after a task (default: the last), or None."""
    from safetensors import safe_open

    files = sorted((item.path / "checkpoints").glob("task-*.safetensors"))
    path = (
        files[-1] if task is None and files else item.path / "checkpoints" / f"task-{(task or 0) + 1:02d}.safetensors"
    )
    if not path.exists():
        return None
    with safe_open(path, framework="numpy") as file:
        if "memory.source" not in file.keys():  # noqa: SIM118 (not a mapping)
            return None
        return file.get_tensor("memory.source"), file.get_tensor("memory.task")


def neighbours(study: Study, source: Source) -> Figure | None:
    """Nearest training images of a few test images, right after their task and at the end."""
    benchmark = source.benchmark
    assert benchmark is not None
    if benchmark.test is None or benchmark.bank.label is None:
        return None
    labels = [label for label in ("ft", "osiris-d") if label in study.continual] or list(study.continual)[:2]
    found = {label: _neighbour_pairs(study.continual[label][0], benchmark) for label in labels}
    known = {label: pairs for label, pairs in found.items() if pairs is not None}
    if not known:
        return None
    queries, before, after, bank_label, query_label, query_task = next(iter(known.values()))
    chosen = nearest.choose(
        nearest.hits(before, bank_label, query_label),
        nearest.hits(after, bank_label, query_label),
        query_task,
        len(study.task_names) - 1,
        SHOWN_QUERIES,
    )
    panels = []
    for label, (_, first, last, *_rest) in known.items():
        for name, which in (("right after its task", first), ("after the last task", last)):
            rows = [_neighbour_row(benchmark, queries[index], which[index], query_label[index]) for index in chosen]
            about = "; ".join(f"{int((bank_label[which[i]] == query_label[i]).sum())} of 5 right" for i in chosen)
            panels.append(Picture(tiles(rows), f"{label}, {name}", scale_for(rows[0].shape[1], 64), about))
    if not chosen:
        return None
    return Figure(
        f"{study.identifier}-neighbours",
        "What forgetting looks like",
        "Each row starts with a test image, followed by its five nearest training images: a solid green frame is the "
        "same class, a striped orange one another class; the rows are those that the first method forgot most.",
        panels,
        "nearest neighbours among all training images of the KNN bank",
        tuple(study.continual[label][0].number for label in known),
        f"seed {study.continual[labels[0]][0].seed}",
        columns=2,
    )


def _neighbour_pairs(item: StudyRun, benchmark: Benchmark) -> Pairs | None:
    """(queries, neighbours after each query's own task, neighbours at the end, labels of bank and queries, tasks)."""
    assert benchmark.test is not None and benchmark.test.label is not None and benchmark.bank.label is not None
    every = [item.arrays(task) for task in range(item.task_count)]
    if not all("neighbours.bank" in arrays for arrays in every):
        return None
    queries = every[-1]["neighbours.indices"]
    task = benchmark.test.task.numpy()[queries]
    own = np.stack([every[int(number)]["neighbours.bank"][row] for row, number in enumerate(task)])
    bank_label, label = benchmark.bank.label.numpy(), benchmark.test.label.numpy()[queries]
    return queries, own, every[-1]["neighbours.bank"], bank_label, label, task


def _neighbour_row(benchmark: Benchmark, query: int, found: np.ndarray, label: int) -> np.ndarray:
    assert benchmark.test is not None and benchmark.bank.label is not None
    near = take(benchmark.bank.images, found)
    right = benchmark.bank.label.numpy()[found] == label
    shown = [framed(tile, bool(good)) for tile, good in zip(near, right)]
    return np.concatenate([take(benchmark.test.images, [query]), np.stack(shown)])
