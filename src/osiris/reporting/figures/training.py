"""Figures of training itself: loss terms, and the health of the representation."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.ticker import MaxNLocator

from osiris.data.catalogue import EPISODES
from osiris.evaluation.scores import Health
from osiris.framework.terms import Contrast
from osiris.reporting import axes as draw
from osiris.reporting.curves import Curve, Points, as_points, at_ends, common_points, lines_over_seeds, thin
from osiris.reporting.figure import Figure, add_legend, figure, panels
from osiris.reporting.studies import Study
from osiris.reporting.style import CHANCE, ROLE_STYLES, legend_of, role_style
from osiris.runs.run import Run

HEALTH = {
    "effective_rank": ("Effective rank", "directions in use", (0.0, np.inf), None),
    "spread": ("Spread", "relative to an even spread", (0.0, np.inf), (0.0, 1.0)),
    "uniformity": ("Uniformity", "lower: more even", (-np.inf, 0.0), (-1.0, 0.0)),
}
"""Field -> title, unit, range of the quantity, and the smallest range of the axis (None: a fifth below and above its
middle)."""
AT_CHANCE = 0.97
"""A loss above this fraction of chance counts as chance."""


@figure("losses", "Loss terms through training")
def loss_terms(study: Study) -> Figure | None:
    """Each term before weighting, and the weighted sum where there is more than one. {chance}"""
    methods = {label: lines for label, runs in study.by_label.items() if (lines := term_curves(runs))}
    if not methods:
        return None
    canvas, every = panels(len(methods), 3, 3.7, 2.4)
    chances: list[float] = []
    for axes, (label, lines) in zip(every, methods.items()):
        for name, line in lines.items():
            draw.curve(axes, line, role_style(name), markers=False, width=1.2, within=(0, np.inf))
        chance = chance_loss(study.by_label[label][0])
        if chance is not None:
            axes.axhline(chance, linewidth=1, **CHANCE.line)
            chances.append(chance)
        continual = label in study.continual
        draw.task_axis(axes, study.task_count, study.environments if continual else (), names=study.episode_names)
        axes.set(ylabel="loss", title=label)
        if not continual:
            axes.set_xlabel("training, in lengths of a task")
        axes.margins(y=0.06)
    roles = {name.split(".")[0] for lines in methods.values() for name in lines}
    entries = [
        ("weighted sum" if name == "loss" else name, style) for name, style in ROLE_STYLES.items() if name in roles
    ]
    add_legend(canvas, entries + ([("chance", CHANCE)] if chances else []), markers=False)
    text = ""
    if chances:
        loss = "the current loss of an encoder that gives every image the same embedding: log(2 · batch size - 1)"
        text = f"Chance, {min(chances):.2f}, is {loss}."
    return Figure(canvas, methods, "training loss, means over logged steps", chance=text)


def term_curves(runs: Sequence[Run]) -> dict[str, Curve]:
    """Term -> its curve over seeds; `loss` only if there is more than one term."""
    names = list(dict.fromkeys(name for run in runs for record in run.steps_logged for name in record.terms))
    names = [name for name in names if name.split(".")[0] in ROLE_STYLES]  # a method by sums has no losses
    wanted = ["loss", *names] if len(names) > 1 else names
    # A run also logs where it saves, so only some of its points are those of other seeds.
    series = {name: common_points([_logged(run, name) for run in runs]) for name in wanted}
    return lines_over_seeds({name: [thin(*points) for points in each] for name, each in series.items()})


def _logged(run: Run, name: str) -> Points:
    pairs = []
    for record in run.steps_logged:
        value = record.loss if name == "loss" else record.terms.get(name)
        if value is not None and math.isfinite(value):
            pairs.append((run.place(record.task - 1, record.step), value))
    return as_points(pairs)


def chance_loss(run: Run) -> float | None:
    """The contrastive loss of equal embeddings, log(2N - 1) for N images; None if L_current is of another kind.

    A task smaller than a batch is one batch; the files of a run have only the mean number of images per task."""
    batch = run.config.get("learning.batch_size")
    if isinstance(batch, int) and run.continual:
        batch = min(batch, run.metrics.fingerprint.train_images // run.metrics.fingerprint.tasks)
    terms = run.composition.current if run.composition else ()
    contrastive = any(isinstance(term, Contrast) and term.batch == "X" for term in terms)
    return math.log(2 * batch - 1) if contrastive and isinstance(batch, int) and batch > 1 else None


def at_chance(run: Run) -> bool:
    """Whether the current loss of the last task ended at the level of an encoder that learned nothing."""
    chance = chance_loss(run)
    last = [record for record in run.steps_logged if record.task == run.steps_logged[-1].task]
    losses = [record.terms.get("current") for record in last[len(last) // 2 :]]
    known = [value for value in losses if value is not None]
    return chance is not None and bool(known) and sum(known) / len(known) > AT_CHANCE * chance


def on_one_set(run: Run) -> list[tuple[int, Health]]:
    """(task, health on labelled images) if all episodes were measured on the same ones."""
    scores = [(one.task, one.reference) for one in run.observations.episodes if one.reference is not None]
    found = [(task, one.health) for task, one in scores if one.health is not None]
    same = len({one.digest for _, one in scores}) == 1 and len(found) == len(run.metrics.evaluations)
    return found if same else []


def known_points(found: list[tuple[int, Health]], field: str) -> Points:
    return as_points((task + 1, value) for task, one in found if (value := getattr(one, field)) is not None)


@figure("health", "Health of the representation")
def health_curves(study: Study) -> Figure:
    """A representation that collapses shows here first: its effective rank falls towards 1, its spread to 0, and its
    uniformity rises to 0.{images}"""
    methods = study.plain
    canvas, every = panels(len(HEALTH), 3, 3.7, 2.6)
    fixed = all(on_one_set(run) for runs in methods.values() for run in runs)
    for axes, (field, (title, unit, within, smallest)) in zip(every, HEALTH.items()):
        series = {
            label: [
                known_points(on_one_set(run), field)
                if fixed
                else at_ends(run, lambda one, field=field: getattr(one.health, field))
                for run in runs
            ]
            for label, runs in methods.items()
        }
        draw.curves(axes, lines_over_seeds(series), within=within)
        draw.task_axis(axes, study.task_count, study.environments, names=study.episode_names)
        axes.yaxis.set_major_locator(MaxNLocator(5))
        axes.set(ylabel=unit, title=title)
        middle = sum(axes.get_ylim()) / 2
        draw.at_least(axes, *(smallest or (0.8 * middle, 1.2 * middle)))
        axes.set_ylim(max(axes.get_ylim()[0], within[0]), min(axes.get_ylim()[1], within[1]))
    add_legend(canvas, legend_of(methods))
    episodes = study.benchmark == EPISODES
    text = " All points are measured on the same labelled images."
    if not fixed:
        text = " Each point is measured on the images of its own episode, so points also differ as those do; with "
        text += "osiris observe --reference, all are measured on the labelled images."
    basis = "labelled images" if fixed else "images of the episode" if episodes else "KNN bank"
    return Figure(canvas, methods, f"normalised features of the {basis}", images=text if episodes else "")
