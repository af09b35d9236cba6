"""Figures for images without labels: neighbours, episodes told apart, drift of the memory's features, duplicates."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as functional
from torch import Tensor

from osiris.augment.views import normalise
from osiris.console import warn
from osiris.data.benchmark import Benchmark
from osiris.errors import UserError
from osiris.evaluation.encoder_files import checkpoint_networks
from osiris.evaluation.runs import Run
from osiris.files import load_tensors
from osiris.report import axes as draw
from osiris.report.benchmark_images import Source, evenly_spaced, take, tiles
from osiris.report.curves import Curve, Points, as_points, at_ends, lines_over_seeds
from osiris.report.figure import Drawing, add_legend, figure, panels, pictures
from osiris.report.figures.images import nearest_images
from osiris.report.studies import Study
from osiris.report.style import CHANCE, legend_of

QUERIES_SHOWN = 6
MOST_CHECKED = 20_000
"""Images that are searched for duplicates."""
PAIRS_SHOWN = 10
DRIFT_IMAGES = 64


@figure("nearest", "Nearest images, before and after")
def neighbours(study: Study, source: Source) -> Drawing | None:
    """Each row starts with an image, followed by the images that are nearest to it. Neighbours that make sense to you
    are the best sign of a useful representation. Of all {followed} images that were followed, {same:.0f}% of the
    neighbours are the same at both times."""
    benchmark = source.benchmark
    if benchmark is None or not study.continual or study.task_count < 2:
        return None
    label = next((label for label in ("osiris-d", "ft") if label in study.continual), next(iter(study.continual)))
    run = study.continual[label][0]
    split = benchmark.bank if benchmark.test is None else benchmark.test
    pairs = nearest_images(run, split.task.numpy())
    if pairs is None:
        return None
    early = np.flatnonzero(pairs.task < study.task_count - 1)
    chosen = early[evenly_spaced(len(early), QUERIES_SHOWN)]
    sheets = []
    for when, nearest in (("right after its episode", pairs.before), ("after the last episode", pairs.after)):
        rows = [
            np.concatenate([take(split.images, pairs.queries[[n]]), take(benchmark.bank.images, nearest[n])])
            for n in chosen
        ]
        sheets.append((f"{label}, {when}", tiles(rows)))
    if not len(chosen):
        return None
    unchanged = [len(set(pairs.before[n]) & set(pairs.after[n])) / pairs.after.shape[1] for n in early]
    basis, same = "nearest neighbours among the training images", 100 * float(np.mean(unchanged))
    return Drawing(pictures(sheets, 2, 5.5), [run], basis, followed=len(early), same=same)


@figure("episodes", "Telling the episodes apart")
def episodes(study: Study) -> Drawing | None:
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
    draw.task_axis(axes, study.task_count)
    draw.percent_axis(axes, "episode predicted correctly (%)")
    axes.set_ylim(bottom=0)
    add_legend(canvas, [*legend_of(lines), ("guessing", CHANCE)])
    final = ", ".join(f"{line.mean[-1]:.0f}% ({label})" for label, line in lines.items())
    return Drawing(canvas, lines, "KNN over episodes", final=final, guessing=100 / study.task_count)


@figure("drift", "Drift of the memory's features")
def drift(study: Study, source: Source) -> Drawing | None:
    """For images in the memory: the mean of 1 - cosine between their features after an episode and after the one
    before. Zero means that the new episode did not change how old images are represented."""
    if source.benchmark is None:
        return None
    firsts = {label: runs[0] for label, runs in study.continual.items() if runs[0].uses_memory}
    moved = {label: feature_drift(run, source.benchmark) for label, run in firsts.items()}
    lines = {label: Curve(*points, None) for label, points in moved.items() if len(points[0]) > 1}
    if not lines:
        return None
    canvas, (axes,) = panels(1, 1, 5.5, 2.8)
    draw.curves(axes, lines, within=(0, 2))
    draw.task_axis(axes, study.task_count)
    axes.set(ylabel="1 - cosine similarity", ylim=(0, None))
    draw.at_least(axes, 0, 0.05)
    add_legend(canvas, legend_of(lines))
    return Drawing(canvas, [firsts[label] for label in lines], "checkpoints after each episode")


def feature_drift(run: Run, benchmark: Benchmark) -> Points:
    """(x, mean of 1 - cosine) between consecutive checkpoints, of images that the memory held at the end; empty if
    they are not known."""
    memory = run.memory()
    nothing = as_points([])
    if memory is None:
        return nothing
    ids = torch.from_numpy(memory[0][memory[1] >= 0]).long().unique()[:DRIFT_IMAGES]
    if not len(ids) or ids.min() < 0 or ids.max() >= len(benchmark.train):
        return nothing
    pixels = benchmark.train.images.take(ids)
    before: Tensor | None = None
    points = []
    for path in run.checkpoints:
        try:
            tensors, metadata = load_tensors(path)
            encoder = checkpoint_networks(tensors, metadata)["encoder"].eval()
        except UserError as error:
            warn(f"{path} is not used: {error}")
            return nothing
        with torch.no_grad():
            mean, std = metadata.get("mean", benchmark.mean), metadata.get("std", benchmark.std)
            features = encoder(normalise(pixels, mean, std))
        if before is not None:
            distance = 1 - functional.cosine_similarity(before, features, dim=1)
            points.append((float(int(metadata["task"]) + 1), float(distance.mean())))
        before = features
    return as_points(points)


@figure("duplicates", "Duplicates")
def duplicates(study: Study, source: Source) -> Drawing | None:
    """{repeats:,} of {count:,} images look like another one ({part:.1f} %); here are {pairs} pairs, one below the
    other. Copies act as false negatives in a contrastive loss, and a copy in another episode makes forgetting look
    smaller: remove them if there are many."""
    if source.benchmark is None:
        return None
    images = source.benchmark.train.images
    count = min(MOST_CHECKED, len(source.benchmark.train))
    groups = same_looking(images.take(torch.arange(count)))
    if not groups:
        return None
    repeats = sum(len(group) - 1 for group in groups)
    pairs = [take(images, group[:2]) for group in groups[:PAIRS_SHOWN]]
    rows = [np.stack([pair[which] for pair in pairs]) for which in (0, 1)]
    canvas = pictures([("", tiles(rows, row_gap=4))], 1, min(11.0, 1.1 * len(pairs)))
    part = 100 * repeats / count
    return Drawing(canvas, study.main, repeats=repeats, count=count, part=part, pairs=len(pairs))


def same_looking(images: Tensor) -> list[list[int]]:
    """Groups of images [n, 3, H, W] with the same difference hash: whether brightness rises from each cell of an 8 by 9
    grid to the next. Images without any edges are left out, because all of them have the same hash."""
    grey = functional.adaptive_avg_pool2d(images.float().mean(dim=1, keepdim=True), (8, 9)).squeeze(1)
    steps = grey.diff(dim=2)
    bits = (steps > 0).flatten(1).numpy()
    flat = (steps.abs() < 1).flatten(1).all(dim=1).numpy()
    groups: dict[bytes, list[int]] = {}
    for index in np.flatnonzero(~flat):
        groups.setdefault(np.packbits(bits[index]).tobytes(), []).append(int(index))
    return [group for group in groups.values() if len(group) > 1]
