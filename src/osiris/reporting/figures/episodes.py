"""Figures of a user's own images: episodes told apart without labels, and the state of a learner: labelled images, and
what each episode did to the images of the memory."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from osiris.console import warn
from osiris.errors import UserError
from osiris.evaluation import reference as measured
from osiris.evaluation.embedder import Embedder
from osiris.evaluation.scores import Comparison, ReferenceScores
from osiris.evaluation.statistics import wilson
from osiris.reporting import axes as draw
from osiris.reporting.benchmark_images import evenly_spaced, mosaic, pixels, tiles
from osiris.reporting.curves import Curve, as_points, at_ends, lines_over_seeds
from osiris.reporting.figure import Figure, add_legend, figure, panels, pictures
from osiris.reporting.figures.images import QUERIES_SHOWN
from osiris.reporting.studies import Study
from osiris.reporting.style import CHANCE, START_LABEL, legend_of, style_of
from osiris.runs.records import Observation
from osiris.runs.run import Run
from osiris.runs.untrusted import harmless, shortened

IMAGES_SHOWN = 48
MOST_CLASSES = 40
"""More classes than this have no heat map."""


@figure("episodes", "Telling the episodes apart")
def told_apart(study: Study) -> Figure | None:
    """A KNN predicts which episode an image is from, by the images nearest to it. At the end: {final}; guessing gives
    {guessing:.0f}%. Episodes that look alike need not be told apart."""
    series = {
        label: [at_ends(run, lambda scores: scores.task_level.accuracy) for run in runs]
        for label, runs in study.plain.items()
    }
    lines = lines_over_seeds(series)
    if not lines or study.task_count < 2:
        return None
    canvas, (axes,) = panels(1, 1, 5.5, 2.8)
    draw.curves(axes, lines)
    axes.axhline(100 / study.task_count, linewidth=1, **CHANCE.line)
    draw.task_axis(axes, study.task_count, names=study.episode_names)
    draw.percent_axis(axes, "episode predicted correctly (%)")
    axes.set_ylim(bottom=0)
    add_legend(canvas, [*legend_of(lines), ("guessing", CHANCE)])
    final = ", ".join(f"{line.mean[-1]:.0f}% ({label})" for label, line in lines.items())
    return Figure(canvas, lines, "KNN over episodes", final=final, guessing=100 / study.task_count)


def states(study: Study) -> list[Run]:
    return [run for run in study.runs if run.observations.episodes]


def _curve(run: Run, field: str) -> Curve:
    """One field of the observations, over the episodes in which it was measured."""
    points = [(one.task + 1, value) for one in run.observations.episodes if (value := getattr(one, field)) is not None]
    return Curve(*as_points(points), None)


@figure("reference", "Labelled images")
def reference_accuracy(study: Study) -> Figure | None:
    """A KNN predicts the class of each of {last.images} labelled images from the others (k = {last.k}), with 95%
    intervals. After the last episode {last.accuracy:.1f}% are right (95% interval {low:.1f} to {high:.1f}); raw pixels
    give {last.pixels:.1f}%, guessing {last.chance:.1f}%. {change} A class has about {each:.0f} images, so the number of
    one class is known to within {margin:.0f} points."""
    run = next((run for run in states(study) if _scored(run)), None)
    if run is None:
        return None
    scored = _scored(run)
    scores = [one.reference for one in scored if one.reference is not None]
    x = np.array([one.task + 1 for one in scored], dtype=np.float64)
    last = scores[-1]
    canvas, every = panels(2 if len(last.classes) <= MOST_CLASSES else 1, 2, 5.5, max(2.8, 0.16 * len(last.classes)))
    draw.curves(every[0], {run.label: Curve(x, np.array([one.accuracy for one in scores]), None)}, level=False)
    low, high = zip(*(one.interval for one in scores))
    every[0].fill_between(x, low, high, color=style_of(run.label).colour, alpha=0.16, linewidth=0)
    every[0].axhline(last.pixels, linewidth=1, **CHANCE.line)
    start, change = _from_start(run)
    if start is not None:
        every[0].axhline(start.accuracy, linewidth=1.2, **style_of(START_LABEL).line)
    draw.task_axis(every[0], study.task_count, names=study.episode_names)
    draw.percent_axis(every[0])
    levels = [START_LABEL] if start is not None else []
    add_legend(canvas, [*legend_of([run.label, *levels]), ("raw pixels", CHANCE)])
    if len(every) > 1:
        columns = scores if start is None else [start, *scores]
        values = np.array([one.per_class for one in columns]).T
        draw.heat_map(every[1], values, 0, 100, cells=len(columns) <= 20)
        every[1].set(aspect="auto", xlabel="episodes learned", title="each class (%)")
        names = [shortened(harmless(name), 24) for name in last.classes]
        every[1].set_yticks(np.arange(len(names)) + 0.5, names)
        ticks = [study.episode_names[int(n) - 1] if study.episode_names else f"{n:.0f}" for n in x]
        ticks = ticks if start is None else [START_LABEL, *ticks]
        every[1].set_xticks(np.arange(len(ticks)) + 0.5, ticks)
        every[1].tick_params(axis="x", rotation=30 if study.episode_names and len(x) > 4 else 0)
    best = max(reversed(scores), key=lambda one: one.accuracy)
    each = last.images / len(last.classes)
    below, above = wilson(0.5, round(each))
    paired = "a paired test, which can tell more than two intervals"
    said = [f"The start had {start.accuracy:.1f}% ({change}, by {paired})."] if start is not None else []
    values = {"low": low[-1], "high": high[-1], "change": " ".join([*said, _since(best, last)]), "each": each}
    return Figure(canvas, [run], "leave-one-out KNN", last=last, margin=50 * (above - below), **values)


def _from_start(run: Run) -> tuple[ReferenceScores | None, Comparison | None]:
    """(the pretrained start on the labelled images, what the last episode's encoder changed), if they compare."""
    start, last = run.observations.start, _scored(run)[-1].reference
    assert last is not None
    change = measured.against(start, last)
    return (None, None) if change is None else (start, change)


def below_start_on_reference(study: Study) -> str:
    """`osiris-d, seed 0: labelled images (-5.0, p = 0.004)`, of each state that is significantly below its start."""
    changes = [(run, _from_start(run)[1]) for run in states(study) if _scored(run)]
    worse = [(run, one) for run, one in changes if one is not None and one.significant and one.difference < 0]
    return "; ".join(f"{run.label}, seed {run.seed}: labelled images ({one})" for run, one in worse)


def _since(best: ReferenceScores, last: ReferenceScores) -> str:
    """Whether something was forgotten since the best episode, as far as a paired test carries it."""
    change = measured.against(best, last)
    if best is last or change is None:
        return ""
    judged = "significantly less: something was forgotten" if change.significant else "no significant difference"
    return f"The best episode had {best.accuracy:.1f}% ({change}): {judged}."


def _scored(run: Run) -> list[Observation]:
    """Observations with the labelled images of the last one: others do not compare."""
    digests = [one.reference.digest for one in run.observations.episodes if one.reference is not None]
    return [one for one in run.observations.episodes if one.reference and one.reference.digest == digests[-1]]


@figure("movement", "What each episode did to old images")
def memory_movement(study: Study) -> Figure | None:
    """Images that were learned (of the memory if there is one), embedded before and after each episode. Left: how far
    their features moved (0: not at all). Right: how many of the five nearest neighbours among them stayed the same.
    Features may move together: then neighbours stay, and nothing is forgotten."""
    runs = {run.label: run for run in states(study) if len(_curve(run, "drift").x)}
    if not runs:
        return None
    canvas, (left, right) = panels(2, 2, 5.5, 2.8)
    draw.curves(left, {label: _curve(run, "drift") for label, run in runs.items()}, within=(0, 2), level=False)
    draw.curves(right, {label: _curve(run, "same_neighbours") for label, run in runs.items()}, level=False)
    for axes in (left, right):
        draw.task_axis(axes, study.task_count, names=study.episode_names)
    left.set(ylabel="1 - cosine similarity", title="features moved by", ylim=(0, None))
    draw.percent_axis(right, "nearest neighbours kept (%)")
    right.set(title="neighbourhoods kept", ylim=(0, 100))
    add_legend(canvas, legend_of(runs))
    return Figure(canvas, runs.values(), "images that were learned")


@figure("held", "What the memory holds")
def memory_images(study: Study) -> Figure | None:
    """Images in the memory, those of the earliest episodes first. They are part of the state."""
    runs = [(run, memory) for run in states(study) if (memory := _memory(run)) is not None]
    if not runs:
        return None
    sheets = []
    for run, (images, _) in runs:
        chosen = images[evenly_spaced(len(images), IMAGES_SHOWN)]
        sheets.append((f"{run.label}: {len(chosen)} of {len(images)} images", mosaic(pixels(chosen), 12)))
    return Figure(pictures(sheets, 2, 5.5), [run for run, _ in runs])


@figure("kept-neighbours", "Nearest images, before and after")
def memory_neighbours(study: Study) -> Figure | None:
    """Each row starts with an image of the memory, followed by the images of the memory that are nearest to it.
    Neighbours that make sense to you are the best sign of a useful representation."""
    for run in states(study):
        memory, files = _memory(run), run.weights
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
            nearest = measured.nearest_others(embedded)
            rows = [pixels(images[[query, *nearest[query].tolist()]]) for query in queries]
            sheets.append((f"after {study.task_title(number)}", tiles(rows)))
        return Figure(pictures(sheets, 2, 5.5), [run])
    return None


def _memory(run: Run) -> tuple[Tensor, Tensor] | None:
    """(images, episode of each) in the order of the episodes, or None where the state was not copied along."""
    try:
        memory = run.memory_content()
    except UserError as error:
        warn(f"{run.path}: images of the memory are left out, because {error}")
        return None
    if memory is None or not len(memory.task):
        return None
    order = memory.task.argsort(stable=True)
    return memory.images[order], memory.task[order]
