"""Every figure on its own: something is drawn, and what is drawn lies within its axes and its canvas."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure as Canvas

from osiris.evaluation.runs import load_runs
from osiris.report import cost_tables, overfitting
from osiris.report.figure import Figure, Panel, canvas_of
from osiris.report.figures import analysis_figures, geometry_figures, image_figures, training_figures
from osiris.report.images import Source, find_images
from osiris.report.studies import Study, studies

PROTOCOL = "class-agnostic"


@pytest.fixture(scope="module")
def study(many_runs: list[Path]) -> Study:
    return studies(load_runs(many_runs))[0]


@pytest.fixture(scope="module")
def source(study: Study) -> Source:
    return find_images(study)


def makers(study: Study, source: Source, cache: Path) -> dict[str, Figure | None]:
    measured, _ = overfitting.overfitting_points(study, source, cache, slow=False)
    return {
        "overview": training_figures.overview(study),
        "accuracy": training_figures.accuracy_through_training(study),
        "trade-off": training_figures.trade_off(study, PROTOCOL),
        "tasks": training_figures.every_task(study, PROTOCOL),
        "matrices": training_figures.accuracy_matrices(study, PROTOCOL),
        "losses": training_figures.loss_terms(study),
        "norms": analysis_figures.norm_bars(study, PROTOCOL),
        "overfitting": analysis_figures.overfitting(study, measured),
        "storage": analysis_figures.storage(study, PROTOCOL, cost_tables.storage_sizes(study)),
        "health": analysis_figures.health(study),
        "forgetting": analysis_figures.forgotten_classes(study, PROTOCOL, source),
        "memory": analysis_figures.memory_shares(study),
        "similarity": geometry_figures.class_similarity(study),
        "distributions": geometry_figures.distributions(study),
        "maps": geometry_figures.feature_maps(study),
        "class-maps": geometry_figures.class_maps(study),
        "images": image_figures.task_sheets(study, source),
        "views": image_figures.views(study, source),
        "neighbours": image_figures.neighbours(study, source),
        "memory-images": image_figures.memory_sheets(study, source),
    }


def test_every_figure_is_made_and_within_its_axes(study: Study, source: Source, tmp_path: Path):
    for name, figure in makers(study, source, tmp_path).items():
        assert figure is not None and figure.panels, name
        for number, panel in enumerate(figure.panels):
            if isinstance(panel, Panel):
                check_panel(canvas_of(panel), f"{name} {number}")
            else:
                assert np.asarray(panel.image)[..., :3].std() > 5, f"{name} {number} is blank"


def check_panel(canvas: Canvas, name: str) -> None:
    canvas.draw_without_rendering()
    (axes,) = canvas.axes
    drawn = len(axes.lines) + len(axes.patches) + len(axes.collections) + len(axes.images)
    assert drawn, f"{name} is empty"
    (left, right), (bottom, top) = sorted(axes.get_xlim()), sorted(axes.get_ylim())
    slack_x, slack_y = 0.005 * (right - left), 0.005 * (top - bottom)
    for line in axes.lines:
        x, y = (np.asarray(values, dtype=float) for values in line.get_data())
        horizontal = line.get_transform() != axes.get_yaxis_transform()
        vertical = line.get_transform() != axes.get_xaxis_transform()
        if horizontal:
            assert x.min() >= left - slack_x and x.max() <= right + slack_x, f"{name}: a line leaves the axes sideways"
        if vertical:
            assert np.nanmin(y) >= bottom - slack_y and np.nanmax(y) <= top + slack_y, f"{name}: a line leaves the axes"
    for points in axes.collections:
        if isinstance(points, PathCollection):
            offsets = np.asarray(points.get_offsets())
            assert (offsets[:, 0] >= left).all() and (offsets[:, 0] <= right).all(), f"{name}: points outside"
            assert (offsets[:, 1] >= bottom).all() and (offsets[:, 1] <= top).all(), f"{name}: points outside"
    width, height = canvas.bbox.width, canvas.bbox.height
    for text in [*axes.texts, axes.title, axes._left_title, axes.xaxis.label, axes.yaxis.label]:  # pyright: ignore
        if text.get_text():
            box = text.get_window_extent()
            inside = box.x0 >= -2 and box.y0 >= -2 and box.x1 <= width + 2 and box.y1 <= height + 2
            assert inside, f"{name}: {text.get_text()!r} leaves the canvas"


def test_a_study_without_memory_methods_has_no_memory_figures(real_runs: dict[str, Path], tmp_path: Path):
    alone = studies(load_runs([real_runs["ft"]]))[0]
    assert analysis_figures.memory_shares(alone) is None
    assert image_figures.memory_sheets(alone, find_images(alone)) is None
    assert analysis_figures.norm_bars(alone, PROTOCOL) is None
    assert analysis_figures.storage(alone, PROTOCOL, cost_tables.storage_sizes(alone)) is None


def test_overfitting_can_be_measured_on_checkpoints(real_runs: dict[str, Path], tmp_path: Path):
    """Where training did not track it: from f, g, h and the ids of the memory, and only once."""
    whole = studies(load_runs([real_runs["osiris-d"]]))[0]
    item = whole.runs[0]
    tracked, _ = overfitting.overfitting_points(whole, find_images(whole), tmp_path, slow=False)
    object.__setattr__(item, "log", [record for record in item.log if record["event"] != "overfitting"])
    measured, missing = overfitting.overfitting_points(whole, find_images(whole), tmp_path, slow=False)
    assert set(tracked) == set(measured) == {1} and missing == ""
    assert {space for _, values in measured[1] for space in values} == {"g", "h"}
    assert all(x in range(2, 11) for x, _ in measured[1])
    kept = list(tmp_path.glob("overfitting-*.json"))
    assert len(kept) == 1
    kept[0].write_text('[[2.0, {"g": 0.5}]]')
    again, _ = overfitting.overfitting_points(whole, find_images(whole), tmp_path, slow=False)
    assert again[1] == [(2.0, {"g": 0.5})]
    nothing, missing = overfitting.overfitting_points(whole, Source(None, "no images"), tmp_path / "new", slow=False)
    assert nothing == {} and "--track-overfitting" in missing
