"""Figures of single analyses: normalisation, overfitting to the memory, storage, cost, health, forgetting, memory."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from osiris.framework.storage import Storage
from osiris.report import curves, drawing
from osiris.report.figure import Figure, Panel
from osiris.report.figures import forgetting, memory_content, normalisation
from osiris.report.figures.geometry_figures import TASK_COLOURS
from osiris.report.figures.image_figures import held_ids
from osiris.report.figures.training_figures import legend_of
from osiris.report.images import Source
from osiris.report.studies import NORMS, Study, StudyRun, seeds_of
from osiris.report.style import INK, MUTED, order_of, style_of

CLASSES_SHOWN = 12
HEALTH = {
    "effective_rank": ("Effective rank", "directions in use"),
    "spread": ("Spread", "relative to an even spread"),
    "uniformity": ("Uniformity", "lower: more even"),
}


def norm_bars(study: Study, protocol: str) -> Figure | None:
    """Fig. 2."""
    values = []
    for item in study.runs:
        accuracy = item.run.values(protocol)["A"]
        if accuracy is not None:
            values.append((item.label, item.norm, accuracy))
    found = normalisation.bars(values)
    if not found:
        return None
    methods = sorted({bar.method for bar in found}, key=order_of)

    def draw(axes: Axes) -> None:
        for bar in found:
            x = methods.index(bar.method) + (-0.2 if bar.norm == "bn" else 0.2)
            colour = style_of(bar.method).colour
            hatch = "////" if bar.norm == "bn" else ""
            face = "none" if bar.norm == "bn" else colour
            axes.bar(x, bar.mean, 0.36, color=face, edgecolor=colour, hatch=hatch, linewidth=1)
            if bar.deviation is not None:
                axes.errorbar(x, bar.mean, bar.deviation, color=INK, linewidth=1, capsize=2)
            axes.annotate(
                f"{NORMS[bar.norm][:5]}\n{bar.mean:.1f}",
                (x, bar.mean + (bar.deviation or 0)),
                xytext=(0, 2),
                textcoords="offset points",
                ha="center",
                va="bottom",
                fontsize=7.5,
            )
        axes.set_xticks(range(len(methods)), methods, color=INK)
        axes.set_ylim(0, 1.25 * max(bar.mean + (bar.deviation or 0) for bar in found))
        axes.set_ylabel("A (%)")

    items = [item for item in study.runs if item.label in methods]
    return Figure(
        f"{study.identifier}-norms",
        "BatchNorm against GroupNorm",
        "Hatched bars are BatchNorm, filled ones GroupNorm: the gap is what the running statistics of BatchNorm cost "
        "when the data keeps changing.",
        [Panel(draw, max(4.2, 1.3 * len(methods)), 2.9)],
        f"{protocol} KNN",
        tuple(item.number for item in items),
        seeds_of(items),
        columns=1,
    )


def overfitting(study: Study, measured: dict[int, list[tuple[float, dict[str, float]]]]) -> Figure | None:
    """Fig. 3b and 5. `measured`: run number -> (x, relative difference by space)."""
    replaying = [item for item in study.main if item.uses_memory and item.label in study.plain]
    items = [item for item in replaying if measured.get(item.number)]
    if not items:
        return None
    labels = sorted({item.label for item in items}, key=order_of)

    def line(label: str, space: str) -> curves.Curve | None:
        each = []
        for item in items:
            points = [(x, values[space]) for x, values in measured[item.number] if space in values]
            if item.label == label and points:
                xs, ys = np.array(points).T
                each.append((xs, ys))
        return curves.over_seeds(each) if each else None

    def draw(axes: Axes, second: bool) -> None:
        axes.axhline(0, color=MUTED, linewidth=0.8)
        for label in labels:
            found = line(label, "h") if second else line(label, "g")
            found = line(label, "g") if found is None else found  # one projector alone: Fig. 5b shows it in both
            if found is not None:
                drawing.curve(axes, found, style_of(label), len(found.x) <= 24, band=len(labels) <= drawing.BANDS)
        drawing.task_axis(axes, len(study.task_names), study.environments)
        axes.margins(y=0.1)
        axes.set_ylabel("relative loss difference")
        axes.set_title("where past terms act (h, or the only g)" if second else "where the current term acts (g)")

    return Figure(
        f"{study.identifier}-overfitting",
        "Overfitting to the memory",
        "(L_all - L_mem) / L_all, the contrastive loss on all past data against that on the memory, without the "
        "current task: near zero the memory stands for the past, well above it the encoder knows the memory too well.",
        [Panel(lambda axes, second=second: draw(axes, second), 4.3, 2.7) for second in (False, True)],
        "contrastive loss on equal numbers of images",
        tuple(item.number for item in items),
        seeds_of(items),
        [(label, style_of(label)) for label in labels],
        columns=2,
    )


def storage(study: Study, protocol: str, sizes: dict[str, Storage]) -> Figure | None:
    """Fig. 6, as the paper counts and as really stored."""
    rows = {}
    for label in (label for label in sizes if label in study.plain):
        values = [item.run.values(protocol)["A"] for item in study.by_label[label]]
        rows[label] = [value for value in values if value is not None]
    rows = {label: values for label, values in rows.items() if values}
    if len(rows) < 2:
        return None

    def draw(axes: Axes, paper: bool) -> None:
        for label, values in rows.items():
            style, megabytes = style_of(label), (sizes[label].paper if paper else sizes[label].stored) / 1e6
            spread = float(np.std(values, ddof=1)) if len(values) > 1 else None
            mean = float(np.mean(values))
            axes.errorbar(
                megabytes, mean, spread, color=style.colour, marker=style.marker, markersize=7, linewidth=1, capsize=2
            )
        axes.grid(visible=True, axis="x")
        axes.margins(x=0.16, y=0.12)
        axes.set_xlabel("extra storage (MB)")
        axes.set_ylabel("A (%)")
        axes.set_title("as the paper counts" if paper else "as stored here")

    items = [item for label in rows for item in study.by_label[label]]
    return Figure(
        f"{study.identifier}-storage",
        "Accuracy against extra storage",
        "Further up and to the left is better: the paper counts every extra parameter and every pixel channel in the "
        "memory as 64 bits, while images really take bytes and parameters 32 bits.",
        [Panel(lambda axes, paper=paper: draw(axes, paper), 4.3, 3.0) for paper in (True, False)],
        f"{protocol} KNN",
        tuple(item.number for item in items),
        seeds_of(items),
        [(label, style_of(label)) for label in rows],
        columns=2,
    )


def health(study: Study) -> Figure | None:
    """Effective rank, spread and uniformity of the features, through training."""
    labels = [label for label, items in study.plain.items() if all(_health(item, "spread")[1].size for item in items)]
    if not labels:
        return None

    def draw(axes: Axes, field: str) -> None:
        title, unit = HEALTH[field]
        for label in labels:
            line = curves.over_seeds([_health(item, field) for item in study.by_label[label]])
            drawing.curve(axes, line, style_of(label), band=len(labels) <= drawing.BANDS)
        drawing.task_axis(axes, len(study.task_names), study.environments)
        axes.yaxis.set_major_locator(MaxNLocator(5))
        axes.margins(y=0.08)
        axes.set_ylabel(unit)
        axes.set_title(title)

    items = [item for label in labels for item in study.by_label[label]]
    return Figure(
        f"{study.identifier}-health",
        "Health of the representation",
        "A representation that collapses shows here first: rank and spread fall towards 1 and 0, and uniformity rises "
        "to 0.",
        [Panel(lambda axes, field=field: draw(axes, field), 3.7, 2.5) for field in HEALTH],
        "normalised features of the KNN bank",
        tuple(item.number for item in items),
        seeds_of(items),
        legend_of(study, labels),
    )


def _health(item: StudyRun, field: str) -> tuple[np.ndarray, np.ndarray]:
    entries = item.run.metrics.evaluations
    xs = [float(number + 1) if item.run.continual else float(item.task_count) for number in range(len(entries))]
    values = [getattr(entry.health, field) for entry in entries]
    pairs = [(x, value) for x, value in zip(xs, values) if value is not None]
    return np.array([x for x, _ in pairs]), np.array([value for _, value in pairs], dtype=np.float64)


def forgotten_classes(study: Study, protocol: str, source: Source) -> Figure | None:
    """Which classes each method forgets: those it forgets most, and all of them as a sorted curve."""
    found: dict[str, np.ndarray] = {}
    for label, items in study.few().items():
        each = [
            forgetting.per_class([entry.protocols[protocol].per_class for entry in item.run.metrics.evaluations])
            for item in items
        ]
        found[label] = np.mean(each, axis=0)
    if not found:
        return None
    worst = forgetting.most(np.mean(list(found.values()), axis=0), CLASSES_SHOWN)

    def sorted_curves(axes: Axes) -> None:
        for label, values in found.items():
            ordered = np.sort(values[np.isfinite(values)])[::-1]
            style = style_of(label)
            every = max(1, len(ordered) // 8)
            axes.plot(np.arange(1, len(ordered) + 1), ordered, marker=style.marker, markevery=every, **style.line)
        axes.set_xlim(left=0)
        axes.set_xlabel("classes, the most forgotten first")
        drawing.percent_axis(axes, "forgetting (points)")
        axes.set_title("All classes")

    def by_class(axes: Axes) -> None:
        for y, index in enumerate(worst):
            values = [one[index] for one in found.values()]
            axes.plot([min(values), max(values)], [y, y], color=MUTED, linewidth=0.8, zorder=1)
            for label, one in found.items():
                style = style_of(label)
                axes.plot(one[index], y, marker=style.marker, color=style.colour, markersize=6, markeredgewidth=0)
        axes.set_yticks(range(len(worst)), [source.class_name(index) for index in worst], color=INK)
        axes.invert_yaxis()
        axes.grid(visible=True, axis="x")
        axes.grid(visible=False, axis="y")
        axes.margins(x=0.06)
        axes.set_xlabel("forgetting (points)")
        axes.set_title("Most forgotten")

    items = [item for label in found for item in study.by_label[label]]
    return Figure(
        f"{study.identifier}-forgetting",
        "Forgetting class by class",
        "How far the final accuracy on a class lies below its best after any task: a low, flat curve forgets little, "
        "and the rows name the classes that suffer most.",
        [Panel(sorted_curves, 4.3, 3.1), Panel(by_class, 4.5, 3.1)],
        f"{protocol} KNN",
        tuple(item.number for item in items),
        seeds_of(items),
        legend_of(study, list(found)),
        columns=2,
    )


def memory_shares(study: Study) -> Figure | None:
    """Which tasks the memory holds, through training."""
    rows: dict[str, np.ndarray] = {}
    used: list[StudyRun] = []
    count = len(study.task_names)
    for label, items in study.continual.items():
        if not items[0].uses_memory:
            continue
        held = [held_ids(items[0], task) for task in range(count)]
        if all(one is not None for one in held):
            rows[label] = memory_content.shares([one[1] for one in held if one is not None], count)
            used.append(items[0])
    if not rows:
        return None
    # Reservoirs of one seed and size are the same for every method: one panel is enough where they are equal.
    first = next(iter(rows))
    if all(np.array_equal(rows[first], other) for other in rows.values()):
        rows = {f"{', '.join(rows)} (the same)" if len(rows) > 1 else first: rows[first]}

    def draw(axes: Axes, label: str) -> None:
        share = rows[label]
        colours = [TASK_COLOURS(task / max(1, count - 1)) for task in range(count)]
        axes.stackplot(np.arange(1, count + 1), share.T * 100, colors=colours, alpha=0.85, linewidth=0)
        bottom = np.cumsum(share[-1] * 100)
        for task in range(count):
            middle = bottom[task] - share[-1, task] * 50
            if share[-1, task] > 0.035:
                axes.text(count + 0.06, middle, str(task + 1), fontsize=7, va="center", clip_on=False)
        axes.set_xlim(1, count)
        axes.set_ylim(0, 100)
        axes.set_xlabel("tasks learned")
        axes.set_ylabel("part of the memory (%)")
        axes.set_title(label if len(label) < 44 else "all methods with a memory")

    return Figure(
        f"{study.identifier}-memory",
        "Which tasks the memory holds",
        "Each band is the part of the memory that comes from one task (numbers at the right): a reservoir gives every "
        "task seen so far about the same part.",
        [Panel(lambda axes, label=label: draw(axes, label), 4.4, 2.8) for label in rows],
        "checkpoints after each task",
        tuple(item.number for item in used),
        f"seed {used[0].seed}",
        columns=2,
    )
