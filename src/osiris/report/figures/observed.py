"""Figures of a learner's state: labelled reference images, and what episodes did to the memory's images."""

from __future__ import annotations

import numpy as np
import torch

from osiris.console import warn
from osiris.errors import UserError
from osiris.evaluation.embedding import Embedder
from osiris.evaluation.observations import Observation, neighbours
from osiris.evaluation.runs import Run, files_by_task
from osiris.evaluation.untrusted import harmless, shortened
from osiris.report import axes as draw
from osiris.report.benchmark_images import evenly_spaced, mosaic, pixels, tiles
from osiris.report.curves import Curve, as_points
from osiris.report.figure import Drawing, add_legend, figure, panels, pictures
from osiris.report.studies import Study
from osiris.report.style import CHANCE, legend_of
from osiris.training.checkpoint import read_state

QUERIES_SHOWN = 6
IMAGES_SHOWN = 48
MOST_CLASSES = 40
"""More classes than this have no heat map."""
PIXELS = "raw pixels"


def states(study: Study) -> list[Run]:
    return [run for run in study.runs if run.observations.episodes]


def _curve(run: Run, field: str) -> Curve:
    """A number of every observation, where it was measured."""
    points = [(one.task + 1, value) for one in run.observations.episodes if (value := getattr(one, field)) is not None]
    return Curve(*as_points(points), None)


@figure("reference", "Labelled images")
def reference(study: Study) -> Drawing | None:
    """A KNN predicts the class of each of {last.images} labelled images from the others (k = {last.k}). After the last
    episode {last.accuracy:.1f}% are right, at best {best:.1f}%; raw pixels give {last.pixels:.1f}%. A class whose row
    fades has been forgotten."""
    run = next((run for run in states(study) if _scored(run)), None)
    if run is None:
        return None
    scored = _scored(run)
    scores = [one.reference for one in scored if one.reference is not None]
    x = np.array([one.task + 1 for one in scored], dtype=np.float64)
    last = scores[-1]
    canvas, every = panels(2 if len(last.classes) <= MOST_CLASSES else 1, 2, 5.5, max(2.8, 0.16 * len(last.classes)))
    draw.curves(every[0], {run.label: Curve(x, np.array([one.accuracy for one in scores]), None)})
    every[0].axhline(last.pixels, linewidth=1, **CHANCE.line)
    draw.task_axis(every[0], study.task_count)
    draw.percent_axis(every[0])
    add_legend(canvas, [*legend_of([run.label]), (PIXELS, CHANCE)])
    if len(every) > 1:
        values = np.array([one.per_class for one in scores]).T
        draw.heat_map(every[1], values, 0, 100, cells=len(scores) <= 20)
        every[1].set(aspect="auto", xlabel="tasks learned", title="each class (%)")
        names = [shortened(harmless(name), 24) for name in last.classes]
        every[1].set_yticks(np.arange(len(names)) + 0.5, names)
        every[1].set_xticks(np.arange(len(x)) + 0.5, [f"{number:.0f}" for number in x])
    return Drawing(canvas, [run], "leave-one-out KNN", last=last, best=max(one.accuracy for one in scores))


def _scored(run: Run) -> list[Observation]:
    """Observations with the labelled images of the last one: others do not compare."""
    digests = [one.reference.digest for one in run.observations.episodes if one.reference is not None]
    return [one for one in run.observations.episodes if one.reference and one.reference.digest == digests[-1]]


@figure("movement", "What each episode did to old images")
def movement(study: Study) -> Drawing | None:
    """Images of the memory, embedded before and after each episode. Left: how far their features moved (0: not at all).
    Right: how many of the five nearest neighbours among them stayed the same. Features may move together: then
    neighbours stay, and nothing is forgotten."""
    runs = {run.label: run for run in states(study) if len(_curve(run, "drift").x)}
    if not runs:
        return None
    canvas, (left, right) = panels(2, 2, 5.5, 2.8)
    draw.curves(left, {label: _curve(run, "drift") for label, run in runs.items()}, within=(0, 2))
    draw.curves(right, {label: _curve(run, "same_neighbours") for label, run in runs.items()})
    for axes in (left, right):
        draw.task_axis(axes, study.task_count)
    left.set(ylabel="1 - cosine similarity", title="features moved by", ylim=(0, None))
    draw.percent_axis(right, "nearest neighbours kept (%)")
    right.set(title="neighbourhoods kept", ylim=(0, 100))
    add_legend(canvas, legend_of(runs))
    return Drawing(canvas, runs.values(), "images of the memory")


@figure("held", "What the memory holds")
def memory_images(study: Study) -> Drawing | None:
    """Images in the memory, those of the earliest episodes first. They are part of the state."""
    runs = [(run, memory) for run in states(study) if (memory := _memory(run)) is not None]
    if not runs:
        return None
    sheets = []
    for run, (images, _) in runs:
        chosen = images[evenly_spaced(len(images), IMAGES_SHOWN)]
        sheets.append((f"{run.label}: {len(chosen)} of {len(images)} images", mosaic(pixels(chosen), 12)))
    return Drawing(pictures(sheets, 2, 5.5), [run for run, _ in runs])


@figure("kept-neighbours", "Nearest images, before and after")
def memory_neighbours(study: Study) -> Drawing | None:
    """Each row starts with an image of the memory, followed by the images of the memory that are nearest to it.
    Neighbours that make sense to you are the best sign of a useful representation."""
    for run in states(study):
        memory, files = _memory(run), files_by_task(run.path / "checkpoints")
        if memory is None or len(files) < 2 or len(memory[0]) < 3:
            continue
        images, task = memory
        first, last = min(files), max(files)
        try:
            features = {number: Embedder(files[number]).embed_batch(images.numpy()) for number in (first, last)}
        except UserError as error:
            warn(f"{run.path}: neighbours are left out, because {error}")
            continue
        early = torch.nonzero(task <= first).flatten()
        early = early if len(early) else torch.arange(len(images))
        queries = early[evenly_spaced(len(early), QUERIES_SHOWN)].tolist()
        sheets = []
        for number, embedded in features.items():
            nearest = neighbours(embedded)
            rows = [pixels(images[[query, *nearest[query].tolist()]]) for query in queries]
            sheets.append((f"after task {number + 1}", tiles(rows)))
        return Drawing(pictures(sheets, 2, 5.5), [run])
    return None


def _memory(run: Run) -> tuple[torch.Tensor, torch.Tensor] | None:
    """(images, episode of each) in the order of the episodes, or None where the checkpoint was not copied along."""
    path = run.path / "checkpoints" / "latest.pt"
    if not path.exists():
        return None
    try:
        model = read_state(path)["engine"]["model"]
    except UserError as error:
        warn(f"{run.path}: images of the memory are left out, because {error}")
        return None
    order = [slot for slot in model["memory.task"].argsort(stable=True).tolist() if model["memory.task"][slot] >= 0]
    return (model["memory.images"][order], model["memory.task"][order]) if order else None
