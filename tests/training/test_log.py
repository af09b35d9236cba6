"""Where the numbers of a run go."""

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from osiris import console
from osiris.errors import UserError
from osiris.training.dashboards import EpisodeView, ProgressView, TensorBoard, WeightsAndBiases, open_views, scalars
from osiris.training.log import JsonLines
from tiny_runs import config


def step(number: int, **changes: Any) -> dict[str, Any]:
    record = {
        **{"event": "step", "task": 2, "tasks": 10, "step": number, "total_step": 100 + number, "epoch": 3},
        **{"epochs": 24, "loss": 3.5, "gradient_norm": 0.25, "terms": {"current": 2.25, "cross": 1.125}},
        **{"learning_rate": 0.03, "images_per_second": 2100.0, "memory": 60, "progress": 0.15, "task_progress": 0.5},
        **{"seconds": 80.0, "seconds_left": 3700.0, "bad_steps": 0, "peak_memory_mb": 300.0},
    }
    return record | changes


EVALUATION = {
    **{"event": "evaluation", "task": 2, "tasks": 10, "step": 8, "total_step": 108},
    "shown": {"accuracy (class-agnostic)": 41.25, "task level": 60.0},
}
OVERFITTING = {"event": "overfitting", "total_step": 108, "spaces": {"g": {"relative": 0.25}, "h": {"relative": 0.5}}}


def test_the_log_is_one_json_line_per_record_and_is_cut_back_to_a_position(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    log = JsonLines(path)
    log.log(step(1))
    position = log.position
    log.log(step(2))
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [1, 2]  # visible before it closes
    log.close()
    log = JsonLines(path, position)
    log.log(step(3))
    log.close()
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [1, 3]


@pytest.mark.parametrize(("left", "lines"), [(10_000, 2), (700, 1), (3, 0)])
def test_a_log_that_lost_its_end_is_not_filled_up(left: int, lines: int, tmp_path: Path) -> None:
    """The machine crashed: the checkpoint knows of more than the disk has."""
    path = tmp_path / "log.jsonl"
    log = JsonLines(path)
    for number in (1, 2):
        log.log(step(number))
    position = log.position
    log.close()
    path.write_bytes(path.read_bytes()[:left])
    JsonLines(path, position).close()
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [1, 2][:lines]


def test_numbers_that_are_none_never_reach_the_log(tmp_path: Path) -> None:
    log = JsonLines(tmp_path / "log.jsonl")
    with pytest.raises(ValueError, match="JSON"):
        log.log(step(1, loss=float("nan")))
    log.log(step(1, gradient_norm=None))
    log.close()


def test_plain_lines_come_every_few_seconds_and_after_every_task(capsys: pytest.CaptureFixture[str]) -> None:
    view = ProgressView("osiris-d seed 0")
    view.log(step(1))
    assert capsys.readouterr().err == "osiris-d seed 0: starting\n"
    view.log(EVALUATION)
    view.log(OVERFITTING)
    assert capsys.readouterr().err == (
        "osiris-d seed 0: after task 2/10: accuracy (class-agnostic) 41.2, task level 60.0\n"
    )
    view.display.every = 0
    view.log(step(2))
    assert capsys.readouterr().err == (
        "osiris-d seed 0: task 2/10 epoch 3/24 loss 3.500 (current 2.250, cross 1.125) 2100 images/s, 1 h 01 min left\n"
    )
    view.log(step(3, seconds_left=None))
    assert "estimating the time left" in capsys.readouterr().err
    view.close()


def test_the_view_of_an_episode_has_its_name_and_the_time_left(capsys: pytest.CaptureFixture[str]) -> None:
    (view,) = open_views(config(), "ft", Path(), quiet=False, start=0, episodes=["2026-01", "2026-02"])
    assert isinstance(view, EpisodeView)
    view.log(EVALUATION)
    view.display.every = 0
    view.log(step(2))
    assert capsys.readouterr().err == "learning from 2026-02: 50%, 1 h 01 min left\n"
    view.close()


def test_the_live_view_shows_tasks_terms_speed_time_and_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Console(file=io.StringIO(), force_terminal=True, width=200, record=True)
    monkeypatch.setattr(console, "messages", screen)
    view = ProgressView("osiris-d[past=replay+distil] seed 0")
    view.log(step(1))
    view.log(EVALUATION)
    view.log(step(2))
    view.log(OVERFITTING)
    view.close()
    text = screen.export_text()
    for part in (
        *("osiris-d[past=replay+distil] seed 0", "task 2/10", "epoch 3/24", "current 2.250", "cross 1.125"),
        *("2100 images/s", "1 h 01 min left", "accuracy (class-agnostic) 41.2", "50%", "15%"),
    ):
        assert part in text


def test_dashboards_get_the_same_numbers() -> None:
    assert scalars(step(1)) == {
        **{"train/loss": 3.5, "train/learning_rate": 0.03, "train/images_per_second": 2100.0},
        **{"train/gradient_norm": 0.25, "train/current": 2.25, "train/cross": 1.125},
    }
    assert "train/gradient_norm" not in scalars(step(1, gradient_norm=None))
    assert scalars(EVALUATION) == {"evaluation/accuracy (class-agnostic)": 41.25, "evaluation/task level": 60.0}
    assert scalars(OVERFITTING) == {"overfitting/g": 0.25, "overfitting/h": 0.5}
    assert scalars({"event": "another"}) == {}


def test_tensorboard(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    for start, steps in ((0, (1, 2, 3)), (102, (3,))):
        view = TensorBoard(tmp_path, start)
        for number in steps:
            view.log(step(number, loss=float(number + start)))
        view.log(EVALUATION)
        view.close()
    events = accumulator.EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    # The third step of the first start lies beyond the checkpoint of the second: it is discarded.
    assert [(event.step, event.value) for event in events.Scalars("train/loss")] == [(101, 1), (102, 2), (103, 105)]
    assert "evaluation/task level" in events.Tags()["scalars"]


@pytest.mark.whole
def test_wandb_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    pytest.importorskip("wandb")
    identities = []
    for number in (1, 2):
        view = WeightsAndBiases(tmp_path, {"seed": 0}, "run")
        identities.append(view.run.id)
        view.log(step(number))
        view.log(EVALUATION)
        view.log({"event": "another", "total_step": 1})
        view.close()
    assert identities[0] == identities[1]
    assert len(list((tmp_path / "wandb").glob("offline-run-*/*.wandb"))) == 2


@pytest.mark.parametrize(("module", "extra"), [("torch.utils.tensorboard", "tensorboard"), ("wandb", "wandb")])
def test_missing_extras_are_named(module: str, extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    options: dict[str, Any] = {extra: True}
    settings = config(**options)
    with pytest.raises(
        UserError, match=rf"--{extra} needs the extra {extra}: pip install -c constraints.txt -e '\.\[{extra}\]'"
    ):
        open_views(settings, "ft", tmp_path, quiet=True, start=0)


def test_quiet_means_quiet(tmp_path: Path) -> None:
    assert open_views(config(), "ft", tmp_path, quiet=True, start=0) == []
    (view,) = open_views(config(), "ft", tmp_path, quiet=False, start=0)
    assert isinstance(view, ProgressView)
