"""Figures of compatibility: an index of an earlier encoder, searched with a later one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from osiris.reporting import axes as draw
from osiris.reporting.figure import Figure, figure, panels
from osiris.reporting.figures.accuracy import MATRIX_CELLS
from osiris.reporting.studies import Study


@figure("compatibility", "Searching an index of an earlier encoder")
def recall_matrices(study: Study) -> Figure | None:
    """Row t, column s: of the ten nearest images when index and queries are embedded after task t, how many are found
    in an index made after task s, in percent. Its vectors are used as they are (raw) or after a linear map (mapped); an
    index that is embedded again has 100. Mean over all pairs, raw and mapped: {means}."""
    runs = [run for members in study.continual.values() for run in members if run.compatibility is not None]
    measured = {label: [run.compatibility for run in runs if run.label == label] for label in study.continual}
    matrices = {
        (label, name): mean_matrix([getattr(one, name).recall for one in each])
        for label, each in measured.items()
        for name in ("raw", "mapped")
        if each
    }
    count = study.task_count
    if count < 2 or not matrices:
        return None
    canvas, every = panels(len(matrices), 4, 2.75, 2.7)
    numbers = range(1, count + 1) if count <= MATRIX_CELLS else range(5, count + 1, 5)
    for axes, ((label, name), matrix) in zip(every, matrices.items()):
        mesh = draw.heat_map(axes, matrix, 0, 100, cells=count <= MATRIX_CELLS)
        draw.number_ticks(axes, [number - 0.5 for number in numbers], numbers)
        axes.set(xlabel="index after task", ylabel="queries after task", title=f"{label}, {name}")
    canvas.colorbar(mesh, ax=every, label="Recall@10 (%)", aspect=30, fraction=0.02, pad=0.01)
    means = {pair: float(np.nanmean(matrix)) for pair, matrix in matrices.items()}
    known = [label for label, each in measured.items() if each]
    sentence = ", ".join(f"{means[label, 'raw']:.1f} and {means[label, 'mapped']:.1f} ({label})" for label in known)
    conditions = sorted({one.conditions for each in measured.values() for one in each if one is not None})
    return Figure(canvas, runs, "; ".join(conditions), means=sentence)


def mean_matrix(matrices: Sequence[Sequence[Sequence[float]]]) -> np.ndarray:
    """[tasks, tasks]: the mean of matrices that have entries for s < t alone; NaN elsewhere."""
    count = len(matrices[0])
    result = np.full((count, count), np.nan)
    for task in range(1, count):
        result[task, :task] = np.mean([matrix[task] for matrix in matrices], axis=0)
    return result
