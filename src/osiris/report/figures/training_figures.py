"""Figures of training: the numbers at the end, the way there, task by task, and the loss terms."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from matplotlib.axes import Axes

from osiris.report import curves, drawing
from osiris.report.curves import Curve, Point
from osiris.report.figure import Figure, Panel
from osiris.report.studies import Study, StudyRun, seeds_of
from osiris.report.style import INK, METHODS, MUTED, ROLES, Style, role_style, style_of

UNTRAINED = "untrained encoder"
Series = Callable[[list[Point]], tuple[np.ndarray, np.ndarray]]
MATRIX_CELLS = 12
"""Accuracy matrices up to this size carry their numbers."""


def legend_of(study: Study, labels: list[str] | None = None, untrained: bool = False) -> list[tuple[str, Style]]:
    names = list(study.by_label) if labels is None else labels
    return [(name, style_of(name)) for name in names] + ([(UNTRAINED, METHODS[UNTRAINED])] if untrained else [])


def series(items: list[StudyRun], protocol: str, what: Series) -> Curve:
    """One method's curve over its seeds."""
    return curves.over_seeds([what(item.points(protocol)) for item in items])


def overview(study: Study) -> Figure:
    """A of every method as points: one per seed, and the mean."""
    panels = [
        Panel(lambda axes, name=name: _ranking(axes, study, name), 4.1, 0.75 + 0.27 * (len(study.by_label) + 1))
        for name in study.protocols
    ]
    return Figure(
        f"{study.identifier}-overview",
        "Overall accuracy A after the last task",
        "Each row is a method: the large mark is the mean over seeds, small dots are single runs, the line spans one "
        "sample deviation either way; further to the right is better.",
        panels,
        " and ".join(f"{name} KNN" for name in study.protocols),
        study.numbers,
        seeds_of(study.main),
        columns=2,
    )


def _ranking(axes: Axes, study: Study, protocol: str) -> None:
    rows: list[tuple[str, list[float]]] = []
    for label, items in study.by_label.items():
        values = [item.run.values(protocol)["A"] for item in items]
        rows.append((label, [value for value in values if value is not None]))
    rows = sorted((row for row in rows if row[1]), key=lambda row: float(np.mean(row[1])))
    untrained = study.untrained(protocol)
    if untrained is not None:
        rows = [(UNTRAINED, [untrained]), *rows]
    for y, (label, values) in enumerate(rows):
        style, mean = style_of(label), float(np.mean(values))
        if len(values) > 1:
            spread = float(np.std(values, ddof=1))
            axes.plot([mean - spread, mean + spread], [y, y], color=style.colour, linewidth=2.2, alpha=0.45)
            axes.plot(values, [y] * len(values), ".", color=style.colour, markersize=4, alpha=0.8)
        axes.plot([mean], [y], marker=style.marker, color=style.colour, markersize=7, markeredgewidth=0)
        end = mean + (float(np.std(values, ddof=1)) if len(values) > 1 else 0.0)
        axes.annotate(
            f"{mean:.1f}", (max([*values, end]), y), xytext=(8, 0), textcoords="offset points", va="center", fontsize=8
        )
    axes.set_yticks(range(len(rows)), [label for label, _ in rows], color=INK)
    axes.set_ylim(-0.6, len(rows) - 0.4)
    axes.grid(visible=False, axis="y")
    axes.grid(visible=True, axis="x")
    axes.spines["left"].set_visible(False)
    axes.margins(x=0.12)
    axes.set_xlabel("A (%)")
    axes.set_title(f"{protocol} KNN")


def accuracy_through_training(study: Study) -> Figure:
    """Mean accuracy over all tasks, learned or still to come."""
    shown = study.plain

    def draw(axes: Axes, protocol: str) -> None:
        for label, items in shown.items():
            line = series(items, protocol, curves.overall)
            drawing.curve(axes, line, style_of(label), band=len(shown) <= drawing.BANDS)
        untrained = study.untrained(protocol)
        if untrained is not None:
            drawing.level(axes, untrained, METHODS[UNTRAINED])
        drawing.task_axis(axes, len(study.task_names), study.environments)
        drawing.percent_axis(axes)
        axes.set_title(f"{protocol} KNN")

    return Figure(
        f"{study.identifier}-accuracy",
        "Accuracy through training, mean over all tasks",
        "A curve that keeps rising gains more from new tasks than it loses on old ones; vertical dashes mark where the "
        "environment changes, level lines are methods that do not learn task by task."
        if study.environments
        else "A curve that keeps rising gains more from new tasks than it loses on old ones; level lines are methods "
        "that do not learn task by task.",
        [Panel(lambda axes, name=name: draw(axes, name), 4.4, 2.7) for name in study.protocols],
        " and ".join(f"{name} KNN" for name in study.protocols),
        study.numbers,
        seeds_of(study.main),
        legend_of(study, list(shown), untrained=study.untrained(study.protocols[0]) is not None),
        columns=2,
    )


def trade_off(study: Study, protocol: str) -> Figure:
    """Fig. 3a: plasticity, consolidation and stability."""
    shown = study.few()

    def draw(axes: Axes, what: Series, title: str, label: str) -> None:
        for name, items in shown.items():
            drawing.curve(axes, series(items, protocol, what), style_of(name))
        drawing.task_axis(axes, len(study.task_names), study.environments)
        drawing.percent_axis(axes, label)
        axes.set_title(title)

    rows: list[tuple[Series, str, str]] = [
        (curves.plasticity, "Plasticity", "accuracy on the current task (%)"),
        (curves.consolidation, "Consolidation", "task-level accuracy (%)"),
        (lambda points: curves.of_task(points, 0), "Stability", "accuracy on task 1 (%)"),
    ]
    return Figure(
        f"{study.identifier}-trade-off",
        "Plasticity, consolidation and stability",
        "A method that balances the three stays high in every panel: it learns the task at hand, tells tasks apart, "
        "and keeps what it knew of task 1.",
        [Panel(lambda axes, row=row: draw(axes, *row), 3.7, 2.7) for row in rows],
        f"{protocol} KNN; task-level KNN in the middle",
        tuple(item.number for items in shown.values() for item in items),
        seeds_of([item for items in shown.values() for item in items]),
        legend_of(study, list(shown)),
    )


def every_task(study: Study, protocol: str) -> Figure:
    """Fig. 8 to 11: the accuracy on each task through training, small multiples."""
    shown, count = study.few(5), len(study.task_names)
    values = [
        series(items, protocol, lambda points, task=task: curves.of_task(points, task)).mean
        for items in shown.values()
        for task in range(count)
    ]
    low, high = float(np.nanmin(np.concatenate(values))), float(np.nanmax(np.concatenate(values)))
    pad = 0.05 * max(1.0, high - low)

    def draw(axes: Axes, task: int) -> None:
        axes.axvspan(task, task + 1, color=MUTED, alpha=0.13, linewidth=0)
        for name, items in shown.items():
            line = series(items, protocol, lambda points: curves.of_task(points, task))
            drawing.curve(axes, line, style_of(name), markers=False, width=1.3)
        drawing.task_axis(axes, count, label=False)
        axes.set_xticks([0, count])
        drawing.percent_axis(axes, "")
        axes.set_ylim(max(0, low - pad), min(100, high + pad) if high < 100 else 101)
        axes.set_title(numbered(study.task_names[task], task), fontsize=8.5)

    return Figure(
        f"{study.identifier}-tasks",
        "Accuracy on every task through training",
        "The shaded stretch is when the task itself is learned: the rise inside it is knowledge gain, the fall after "
        "it is forgetting, and the level before it is what transfers from other tasks.",
        [Panel(lambda axes, task=task: draw(axes, task), 2.5, 1.75) for task in range(count)],
        f"{protocol} KNN",
        tuple(item.number for items in shown.values() for item in items),
        seeds_of([item for items in shown.values() for item in items]),
        legend_of(study, list(shown)),
        columns=5,
        markers=False,
    )


def numbered(name: str, task: int) -> str:
    """`task 3 (city)` says its number; `beetles` becomes `10 beetles`."""
    return name if name.startswith("task ") else f"{task + 1} {name}"


def accuracy_matrices(study: Study, protocol: str) -> Figure:
    """A[t, i] of each continual method, mean over seeds."""
    matrices = {label: mean_matrix(items, protocol) for label, items in study.continual.items()}
    low = min(float(np.nanmin(matrix)) for matrix in matrices.values())
    high = max(float(np.nanmax(matrix)) for matrix in matrices.values())
    count = len(study.task_names)

    def draw(axes: Axes, label: str) -> None:
        drawing.heat_map(axes, matrices[label], low, high, cells=count <= MATRIX_CELLS)
        # A staircase around the diagonal: left of it lie tasks already learned.
        stairs_x = np.repeat(np.arange(count + 1), 2)[1:]
        stairs_y = np.repeat(np.arange(count + 1), 2)[:-1]
        axes.plot(stairs_x, stairs_y, color=INK, linewidth=1.1)
        ticks = range(count) if count <= MATRIX_CELLS else range(4, count, 5)
        axes.set_xticks([tick + 0.5 for tick in ticks], [str(tick + 1) for tick in ticks])
        axes.set_yticks([tick + 0.5 for tick in ticks], [str(tick + 1) for tick in ticks])
        axes.set_xlabel("accuracy on task")
        axes.set_ylabel("after learning task")
        axes.set_aspect("equal")
        axes.set_title(label)

    return Figure(
        f"{study.identifier}-matrices-{protocol}",
        f"Accuracy matrices, {protocol}",
        f"Row t, column i is the accuracy on task i after learning task t, from {low:.0f} % (light) to {high:.0f} % "
        "(dark); below the stairs lie tasks already learned, and a column that turns lighter downwards is forgetting.",
        [Panel(lambda axes, label=label: draw(axes, label), 3.5, 3.4) for label in matrices],
        f"{protocol} KNN",
        tuple(item.number for items in study.continual.values() for item in items),
        seeds_of([item for items in study.continual.values() for item in items]),
    )


def mean_matrix(items: list[StudyRun], protocol: str) -> np.ndarray:
    rows = [item.run.metrics[protocol].accuracy_matrix for item in items]
    return np.array(rows, dtype=np.float64).mean(axis=0)


def loss_terms(study: Study) -> Figure | None:
    """Every term by name, unweighted, and the weighted sum."""
    shown = {label: items for label, items in study.by_label.items() if any(item.events("step") for item in items)}
    if not shown:
        return None
    found: dict[str, dict[str, Curve]] = {label: term_curves(items) for label, items in shown.items()}

    def draw(axes: Axes, label: str) -> None:
        for name, line in found[label].items():
            drawing.curve(axes, line, role_style(name), markers=False, width=1.2)
        drawing.task_axis(axes, len(study.task_names), study.environments)
        axes.set_ylabel("loss")
        axes.margins(y=0.06)
        axes.set_title(label)

    used = [name for name in ROLES if any(name in {key.split(".")[0] for key in lines} for lines in found.values())]
    return Figure(
        f"{study.identifier}-losses",
        "Loss terms through training",
        "Each term as it is before weighting, and their weighted sum where there is more than one: cross and past "
        "start with the second task, and every new task lifts the current loss for a while.",
        [Panel(lambda axes, label=label: draw(axes, label), 3.7, 2.5) for label in shown],
        "training loss, means over logged steps",
        tuple(item.number for items in shown.values() for item in items),
        seeds_of([item for items in shown.values() for item in items]),
        [(f"weighted sum ({name})" if name == "loss" else name, ROLES[name]) for name in used],
        markers=False,
    )


def term_curves(items: list[StudyRun]) -> dict[str, Curve]:
    """Term -> its curve over seeds; `loss` only where it is not the only term itself."""
    names: list[str] = []
    for item in items:
        for record in item.events("step"):
            names += [name for name in record["terms"] if name not in names]
    wanted = ["loss", *names] if len(names) > 1 else names
    lines = {}
    for name in wanted:
        each = [_logged(item, name) for item in items]
        each = [pair for pair in each if len(pair[0])]
        if each:
            lines[name] = curves.over_seeds(each)
    return lines


def _logged(item: StudyRun, name: str) -> tuple[np.ndarray, np.ndarray]:
    xs, ys = [], []
    for record in item.events("step"):
        value = record["loss"] if name == "loss" else record["terms"].get(name)
        if value is not None and np.isfinite(value):
            xs.append(item.place(record["task"] - 1, record["step"]))
            ys.append(value)
    return curves.thin(np.array(xs), np.array(ys))
