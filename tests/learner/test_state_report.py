"""Report and model card of a learner's state: names of episodes, intervals, and no claim that they do not carry."""

import dataclasses
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from markupsafe import escape
from msgspec.structs import replace

from osiris.errors import Stopped
from osiris.evaluation.embedder import Embedder
from osiris.evaluation.encoder_files import load_checkpoint
from osiris.evaluation.health import effective_rank
from osiris.export import export
from osiris.export.export import model_card
from osiris.learner import Learner
from osiris.reporting.comparison import comparison_table
from osiris.reporting.curves import at_ends
from osiris.reporting.figures import representation, training
from osiris.reporting.figures.episodes import below_start_on_reference, memory_movement, reference_accuracy
from osiris.reporting.page import make_report
from osiris.reporting.studies import Study, studies
from osiris.runs.run import load_runs
from pictures import write_pictures
from tiny_runs import asked_to_stop, config, episode, train

MONTHS = ("2026-01", "2026-02")


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two finished episodes, measured on labelled images, and a third one that was interrupted."""
    root = tmp_path_factory.mktemp("state")
    for seed, name in enumerate(("cat", "dog")):
        write_pictures(root / "labelled" / name, 10, seed=20 + seed)
    learner = Learner(root / "state", "ft", "smoke", image_size=16, memory_size=8, epochs=1, batch_size=8, log_every=1)
    for number, month in enumerate((*MONTHS, "2026-03")):
        write_pictures(root / month, 16, seed=number)
    for month in MONTHS:
        learner.observe(root / month, reference=root / "labelled")
    with asked_to_stop(task=2, step=1), pytest.raises(Stopped):
        learner.observe(root / "2026-03")
    return root / "state"


@pytest.fixture
def study(state: Path) -> Study:
    return studies(load_runs([state]))[0][0]


def test_axes_have_the_names_of_the_finished_episodes(study: Study) -> None:
    for make in (reference_accuracy, training.loss_terms, training.health_curves):
        made = make(study)
        assert made is not None
        axes = made.canvas.axes[0]
        assert [tick.get_text() for tick in axes.get_xticklabels()] == list(MONTHS), make
        assert max(float(np.max(line.get_xdata())) for line in axes.lines) <= 2, make
    assert representation.feature_maps(study) is None, "each episode was evaluated on its own images alone"


def test_the_second_episode_alone_has_moved_features(study: Study) -> None:
    """A line through both would say that the first one was measured, too."""
    drawn = memory_movement(study)
    assert drawn is not None
    for axes in drawn.canvas.axes[:2]:
        assert [np.asarray(line.get_xdata()).tolist() for line in axes.lines] == [[2.0]]


def test_a_damaged_evaluation_of_images_that_are_gone_leaves_a_gap(
    state: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = Path(shutil.copytree(state, tmp_path / "state"))
    episode(copy, 1).evaluation.write_bytes(b"{")
    Learner(copy).observe(state.parent / "2026-03")
    (run,) = load_runs([copy])
    assert run.metrics.complete and run.metrics.lost == (0,)
    x, ranks = at_ends(run, lambda scores: scores.health.effective_rank)
    assert x.tolist() == [2, 3] and ranks[0] == load_runs([state])[0].metrics.evaluations[1].health.effective_rank
    capsys.readouterr()
    page = make_report([copy], tmp_path / "report").read_text()
    assert "evaluation after 2026-01: it was damaged or missing when its images were gone" in page
    printed = capsys.readouterr().err.splitlines()
    assert not [line for line in printed if not line.startswith("report: ")], "progress, on a slow machine"


def test_the_card_names_an_encoder_of_your_own(state: Path) -> None:
    (run,) = load_runs([state])
    loaded = dataclasses.replace(load_checkpoint(run.checkpoint()), description={"encoder": "own:encoder"})
    assert "| encoder | own:encoder |" in model_card(run, loaded, "onnx", 0.0)


@pytest.mark.parametrize(("fell", "said"), [(1, "no significant difference"), (9, "something was forgotten")])
def test_forgetting_is_claimed_only_where_a_paired_test_carries_it(fell: int, said: str, study: Study) -> None:
    run = next(iter(study.runs))
    one, two = run.observations.episodes
    assert one.reference is not None and two.reference is not None
    high, low = "1" * 20, "0" * fell + "1" * (20 - fell)
    best = replace(one.reference, hits=high, accuracy=100.0)
    last = replace(two.reference, hits=low, accuracy=100 * (20 - fell) / 20)
    run.__dict__["observations"] = replace(
        run.observations, episodes=(replace(one, reference=best), replace(two, reference=last))
    )
    made = reference_accuracy(study)
    assert made is not None and said in made.caption and "has been forgotten" not in made.caption
    assert "95% interval {:.1f} to {:.1f}".format(*last.interval) in made.caption


@pytest.mark.parametrize(("right", "worse"), [(0, False), (20, True)])
def test_the_start_is_a_line_and_a_warning_where_it_was_better(right: int, worse: bool, study: Study) -> None:
    run = study.runs[0]
    last = run.observations.episodes[-1].reference
    assert last is not None and run.observations.start is None and not below_start_on_reference(study)
    hits = "1" * right + "0" * (20 - right)
    start = replace(last, hits=hits, accuracy=5.0 * right)
    run.__dict__["observations"] = replace(run.observations, start=start)
    made = reference_accuracy(study)
    assert made is not None and f"The start had {start.accuracy:.1f}%" in made.caption
    shown = [label.get_text() for label in made.canvas.axes[1].get_xticklabels()]
    assert shown[0] == "start", "each class at the start"
    assert start.accuracy in [float(np.min(line.get_ydata())) for line in made.canvas.axes[0].lines]
    assert ("ft, seed 0: labelled" in below_start_on_reference(study)) is worse


def test_the_page_is_clean_and_the_card_has_the_accuracy(state: Path, tmp_path: Path) -> None:
    page = make_report([state], tmp_path / "report").read_text()
    assert "unknown benchmark" not in page and "Choose from" not in page
    run = Learner(state).run
    export(run, tmp_path / "encoder", "safetensors")
    card, scores = (tmp_path / "encoder" / "README.md").read_text(), run.observations.episodes[-1].reference
    assert scores is not None and "accuracy was not measured" not in card
    assert f"KNN accuracy: {scores.accuracy:.1f}% (95% interval" in card and "pretrained" not in card
    run.__dict__["observations"] = replace(run.observations, start=scores)
    export(run, tmp_path / "encoder", "safetensors")
    assert (
        f"the pretrained start {scores.accuracy:.1f}% (+0.0, p = 1.000)" in (tmp_path / "encoder/README.md").read_text()
    )


def test_a_learner_shows_its_verdict_and_curve_in_a_notebook(state: Path, tmp_path: Path) -> None:
    shown = Learner(state)._repr_html_()
    assert str(escape(Learner(state).verdict())) in shown and 'src="data:image/png;base64,' in shown
    assert "</figure>" in shown
    new = Learner(tmp_path / "<b>new")._repr_html_()
    assert "nothing is learned yet" in new and "&lt;b&gt;new" in new


def test_a_run_and_a_table_show_their_numbers_in_a_notebook(tmp_path: Path) -> None:
    metrics = train(config("ft"), tmp_path / "run")
    assert metrics is not None
    (run,) = load_runs([tmp_path / "run"])
    table = comparison_table([run])
    for shown in (run._repr_html_(), table._repr_html_()):
        assert f"{metrics['class-agnostic'].A:.1f}" in shown and "<table" in shown
    assert "data:image/png" in run._repr_html_()


def test_health_is_measured_on_the_same_images_after_every_episode(state: Path, study: Study) -> None:
    run = study.runs[0]
    labelled = sorted((state.parent / "labelled").rglob("*.png"))
    made = training.health_curves(study)
    assert made is not None and made.basis is not None
    assert "same labelled images" in made.caption and "features of the labelled images" in made.basis
    (line,) = [line for line in made.canvas.axes[0].lines if np.size(line.get_xdata()) == 2]
    for task, shown in enumerate(np.asarray(line.get_ydata()).tolist()):
        embedder = Embedder(run.weights[task], torch.device("cpu"))
        assert shown == pytest.approx(effective_rank(embedder(labelled).features), rel=1e-4)


def test_the_report_links_to_a_map_beside_it(state: Path, tmp_path: Path) -> None:
    page = make_report([state], tmp_path / "report").read_text()
    assert 'href="map.html"' not in page and "osiris map STATE FOLDER" in page
    (tmp_path / "report" / "map.html").write_text("a map")
    page = make_report([state], tmp_path / "report").read_text()
    assert 'href="map.html"' in page and "osiris map STATE FOLDER" not in page
    assert (tmp_path / "report" / "map.html").read_text() == "a map"
