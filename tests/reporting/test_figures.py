"""Every figure on its own: something is drawn, within its axes and its canvas."""

import dataclasses
import math
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import msgspec
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import FillBetweenPolyCollection, PathCollection

from osiris.reporting import cost_tables
from osiris.reporting import figure as figures
from osiris.reporting.figure import Figure
from osiris.reporting.figures import accuracy, images, training
from osiris.reporting.studies import Study, studies
from osiris.runs.run import Run, load_runs


def only_study(paths: list[Path]) -> Study:
    (study,), damaged = studies(load_runs(paths))
    assert damaged == []
    return study


@pytest.fixture(scope="module")
def study(many_runs: list[Path]) -> Study:
    return only_study(many_runs)


def test_every_figure_is_drawn_within_its_axes_and_canvas(drawn: dict[str, Figure]):
    for name, figure in drawn.items():
        figure.canvas.draw_without_rendering()
        assert figure.canvas.axes and figure.caption.endswith("."), name
        for number, axes in enumerate(figure.canvas.axes):
            check_axes(axes, f"{name} {number}")


def check_axes(axes: Axes, name: str) -> None:
    assert len(axes.lines) + len(axes.patches) + len(axes.collections) + len(axes.images), f"{name} is empty"
    (left, right), (bottom, top) = sorted(axes.get_xlim()), sorted(axes.get_ylim())
    slack_x, slack_y = 0.005 * (right - left), 0.005 * (top - bottom)
    for line in axes.lines:
        x, y = (np.asarray(values, dtype=float) for values in line.get_data())
        if line.get_transform() != axes.get_yaxis_transform():
            assert x.min() >= left - slack_x and x.max() <= right + slack_x, f"{name}: a line leaves the axes sideways"
        if line.get_transform() != axes.get_xaxis_transform():
            assert np.nanmin(y) >= bottom - slack_y and np.nanmax(y) <= top + slack_y, f"{name}: a line leaves the axes"
    for points in axes.collections:
        if isinstance(points, PathCollection):
            offsets = np.asarray(points.get_offsets()).reshape(-1, 2)
            assert (offsets[:, 0] >= left).all() and (offsets[:, 0] <= right).all(), f"{name}: points outside"
            assert (offsets[:, 1] >= bottom).all() and (offsets[:, 1] <= top).all(), f"{name}: points outside"
    width, height = axes.get_figure().bbox.size  # pyright: ignore
    for text in [*axes.texts, axes.title, axes._left_title, axes.xaxis.label, axes.yaxis.label]:  # pyright: ignore
        if text.get_text():
            box = text.get_window_extent()
            inside = box.x0 >= -2 and box.y0 >= -2 and box.x1 <= width + 2 and box.y1 <= height + 2
            assert inside, f"{name}: {text.get_text()!r} leaves the canvas"


def panels_of(drawn: dict[str, Figure], name: str) -> list[Axes]:
    return drawn[name].canvas.axes


def test_ticks_on_the_axis_of_tasks_are_whole_tasks_that_exist(drawn: dict[str, Figure]):
    for name in ("accuracy", "trade-off", "tasks", "losses", "health", "overfitting", "memory"):
        for axes in panels_of(drawn, name):
            ticks = [tick for tick in axes.get_xticks() if axes.get_xlim()[0] <= tick <= axes.get_xlim()[1]]
            assert ticks and all(tick == round(tick) and 0 <= tick <= 10 for tick in ticks), (name, ticks)
    assert panels_of(drawn, "health")[0].get_xlim()[0] == 1, "nothing was measured before the end of task 1"


def test_many_methods_are_drawn_without_bands(drawn: dict[str, Figure]):
    def bands(axes: Axes) -> list[FillBetweenPolyCollection]:
        return [one for one in axes.collections if isinstance(one, FillBetweenPolyCollection)]

    assert not any(bands(axes) for axes in panels_of(drawn, "accuracy")), "five bands in one panel would be mud"


def test_axes_do_not_zoom_into_noise_or_beyond_a_cosine(drawn: dict[str, Figure]):
    rank, spread, uniformity = panels_of(drawn, "health")
    low, high = rank.get_ylim()
    assert high / low >= 1.2 / 0.8 - 1e-6
    assert spread.get_ylim() == (0, 1) and uniformity.get_ylim()[1] == 0
    assert all(axes.get_xlim()[0] >= -1 and axes.get_xlim()[1] <= 1 for axes in panels_of(drawn, "distributions"))


def test_maps_and_matrices_have_their_legends(drawn: dict[str, Figure]):
    assert panels_of(drawn, "maps")[-1].get_ylabel() == "task", "a colour bar instead of numbers over each other"
    assert panels_of(drawn, "similarity")[-1].get_ylabel() == "mean cosine similarity"
    assert all(axes.get_xlabel() for axes in panels_of(drawn, "similarity")[:-1])


def test_compatibility_shows_raw_beside_mapped(drawn: dict[str, Figure], study: Study):
    *matrices, bar = panels_of(drawn, "compatibility")
    labels = [label for label in study.by_label if label != "offline"]
    assert [axes.get_title(loc="left") for axes in matrices] == [
        f"{label}, {way}" for label in labels for way in ("raw", "mapped")
    ]
    cells = [[(*text.get_position(), text.get_text()) for text in axes.texts] for axes in matrices[:2]]
    places = [(s + 0.5, t + 0.5) for t in range(10) for s in range(t)]
    assert cells[0] == [(*place, "20") for place in places], "ft: the mean of 20 and 21 in every cell"
    assert cells[1] == [(*place, "70") for place in places]
    assert "20.5 and 70.5 (ft)" in drawn["compatibility"].caption and bar.get_ylabel() == "Recall@10 (%)"
    assert "60 queries, 61 images in the index, 59 for each map" in drawn["compatibility"].basis


def test_sentences_are_computed_from_the_runs(drawn: dict[str, Figure], study: Study):
    caption = drawn["memory"].caption
    held = study.by_label["osiris-d"][0].memory()
    assert held is not None
    share = images.task_shares([held[1]], 10)[0] * 100
    assert f"between {share.min():.0f}% and {share.max():.0f}%; equal shares would be 10%" in caption
    assert "offline is highest" in drawn["overview"].caption


def test_a_study_without_memory_methods_has_no_memory_figures(real_runs: dict[str, Path]):
    alone = only_study([real_runs["ft"]])
    assert images.memory_shares(alone) is None and accuracy.normalisations(alone) is None
    assert accuracy.storage(alone, cost_tables.storage_sizes(alone)) is None


def test_chance_is_drawn_and_a_loss_that_stays_there_is_noticed(drawn: dict[str, Figure], study: Study):
    run = study.by_label["osiris-d"][0]
    chance = training.chance_loss(run)
    assert chance is not None and chance == pytest.approx(math.log(2 * 8 - 1))
    levels = [np.asarray(line.get_ydata()).tolist() for line in panels_of(drawn, "losses")[0].lines]
    assert [chance, chance] in levels
    offline = panels_of(drawn, "losses")[list(study.by_label).index("offline")]
    assert offline.get_xlabel() == "training, in lengths of a task", "its stream is shuffled"
    assert training.chance_loss(study.by_label["lump"][0]) is None, "mixed images have another loss at chance"
    mark = run.metrics.fingerprint
    few = msgspec.structs.replace(mark, train_images=5 * mark.tasks)
    small = dataclasses.replace(run, metrics=msgspec.structs.replace(run.metrics, fingerprint=few))
    assert training.chance_loss(small) == pytest.approx(math.log(2 * 5 - 1)), "tasks of five images"
    for value, stuck in ((chance, True), (0.9 * chance, False)):
        for record in run.steps_logged:
            record.terms["current"] = value
        assert training.at_chance(run) == stuck


def test_a_line_that_one_seed_logged_more_does_not_shorten_the_curve():
    """A run that was interrupted, or saved its state, has logged at that step too."""

    def run(steps: list[int]) -> Run:
        logged = [SimpleNamespace(task=1, step=step, loss=1.0, terms={"current": step / 1000}) for step in steps]
        return cast("Run", SimpleNamespace(steps_logged=logged, place=lambda task, step: task + step / 5000))

    regular = list(range(10, 5001, 10))
    line = training.term_curves([run(regular), run(sorted([*regular, 1003]))])["current"]
    assert len(line.x) == 240 and line.x[-1] > 0.99 and line.deviation is not None and line.deviation.max() == 0


def test_a_name_that_looks_like_an_image_stays_a_name():
    svg = '<svg width="9pt"><text>"data:image/png;base64,AAAA"</text></svg>'
    assert "<text>" in figures.inline(svg)


def test_the_page_gets_a_themed_drawing_with_ids_of_its_own(drawn: dict[str, Figure], tmp_path: Path):
    figure = drawn["trade-off"]
    text = figures.save(figure, tmp_path)
    assert (tmp_path / f"{figure.name}.png").exists() and "var(--" not in text, "files have real colours"
    element = figures.inline(text)
    assert element.startswith("<svg") and "<style" not in element and "<metadata" not in element
    assert "var(--c5f6670)" in element and "#5f6670" not in element
    assert "--c5f6670:#a9b1bb;" in figures.theme(dark=True)
