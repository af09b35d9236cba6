"""The order of a stream as a picture: the share of each class over time."""

from __future__ import annotations

from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Canvas

from osiris.data.benchmark import Benchmark
from osiris.files import write_atomically
from osiris.reporting.style import SETTINGS

PARTS = 200
"""Columns of the picture."""
MOST = 60
"""Classes of which each has a colour; with more of them, each task has one."""


def shares(benchmark: Benchmark, parts: int = PARTS) -> np.ndarray:
    """float64 [groups, parts]: the share of each class (or task) in equal parts of the stream."""
    order, train = benchmark.order, benchmark.train
    assert order is not None
    by_class = train.label is not None and benchmark.class_count <= MOST
    group = (train.label if by_class and train.label is not None else train.task)[order.rows].numpy()
    part = np.arange(len(group)) * parts // len(group)
    groups = benchmark.class_count if by_class else benchmark.task_count
    counts = np.bincount(group * parts + part, minlength=groups * parts).reshape(groups, parts)
    return counts / np.maximum(counts.sum(0), 1)


def draw_order(benchmark: Benchmark, path: Path) -> None:
    """Write the picture as PNG. Classes of one task have neighbouring colours; lines are borders between tasks."""
    order, by_part = benchmark.order, shares(benchmark, min(PARTS, len(benchmark.order.rows) if benchmark.order else 1))
    assert order is not None
    ranks = [label for labels in benchmark.tasks for label in labels]
    if len(by_part) == len(ranks) == benchmark.class_count:
        by_part = by_part[ranks]
    with matplotlib.rc_context(fname=SETTINGS):
        canvas = Canvas(figsize=(7, 2.2), layout="constrained")
        FigureCanvasAgg(canvas)
        axes = canvas.add_subplot()
        colours = matplotlib.colormaps["turbo"](np.linspace(0.03, 0.97, len(by_part)))
        edges = np.linspace(0, len(order.rows), by_part.shape[1] + 1)
        below = np.zeros(by_part.shape[1])
        for share, colour in zip(by_part, colours):
            axes.stairs(below + share, edges, baseline=below, fill=True, color=colour, linewidth=0)
            below = below + share
        for start in order.starts if len(order.starts) <= 50 else ():
            axes.axvline(start, color="black", linewidth=0.6)
        axes.set(xlim=(0, len(order.rows)), ylim=(0, 1), xlabel="images of the stream", ylabel="share of each class")
        if benchmark.train.label is None:
            axes.set_ylabel("share of each episode")
        axes.set_title(f"{benchmark.name}, {order.name}")
        write_atomically(path, lambda temporary: canvas.savefig(temporary, format="png", dpi=150))
