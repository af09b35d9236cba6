"""Run directories, configs and data that are damaged, changed, or received from another person."""

import contextlib
import errno
import fcntl
import json
import os
import pty
import re
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec import structs

import tiny_runs
from fork_server import default_signals
from osiris import cli, console
from osiris.config import Config, to_dict
from osiris.data.benchmark import TaskContent
from osiris.errors import Stopped, UserError
from osiris.evaluation import baselines
from osiris.files import read_json
from osiris.models.encoder import build_encoder
from osiris.runs.directory import RunDirectory
from osiris.runs.progress import write_progress
from osiris.runs.records import RunMetrics
from osiris.runs.state import digest
from osiris.training import build
from osiris.training import run as training_run
from osiris.training.engine import Engine
from osiris.training.interrupt import Interrupt
from osiris.training.run import Opening
from tiny_runs import asked_to_stop, assert_same_run, benchmark, config, episode, newest, progress_of

SETTINGS = config("osiris-r", log_every=3)


def _content(train: int, digest: str) -> TaskContent:
    return {"name": "week", "train": train, "test": 8, "order": digest}


CONTENTS = (_content(28, "a"), _content(28, "b"), _content(28, "c"))
DATA = replace(benchmark(), contents=CONTENTS)


def train(settings: Config, run: Path) -> RunMetrics | None:
    return tiny_runs.train(settings, run, DATA)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OSIRIS_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield Path(os.environ["OSIRIS_CACHE"])


@pytest.fixture(scope="module")
def whole(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run."""
    run = tmp_path_factory.mktemp("whole") / "run"
    train(SETTINGS, run)
    return run


@pytest.fixture(scope="module")
def half(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run, stopped in its third task."""
    run = tmp_path_factory.mktemp("half") / "run"
    with asked_to_stop(task=2, step=1), pytest.raises(Stopped, match=f"Continue with: .* --resume {run}"):
        train(SETTINGS, run)
    return run


@pytest.fixture
def run(half: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    shutil.copytree(half, tmp_path / "run")
    return tmp_path / "run"


def _said(capsys: pytest.CaptureFixture[str]) -> Callable[[str], bool]:
    """Whether standard error has a text, wherever its lines are broken."""
    error = "".join(capsys.readouterr().err.split())
    return lambda text: "".join(text.split()) in error


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def change(path: Path) -> None:
    """One digit."""
    path.write_text(re.sub(r"\d", lambda digit: str((int(digit[0]) + 1) % 10), path.read_text(), count=1))


def remove(path: Path) -> None:
    path.unlink()


def failing(number: int) -> Callable[..., None]:
    """A system call that fails."""

    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    return fail


# Configs


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("engine.precision", 32), ("encoder.norm", "BN"), ("learning.optimiser", "AdamW"), ("encoder.stem", "Large")],
        *[("learning.schedule", "Cosine"), ("seed", "0"), ("seed", True), ("seed", None), ("learning.epochs", 2.5)],
        *[("learning.tau", "0.1"), ("encoder.blocks", [1, "1"]), ("encoder.blocks", "1111"), ("engine.tf32", 1)],
        *[("method", "ft"), ("method.method", ["ft"]), ("evaluation.protocols", "task-aware"), ("engine.init", 3)],
        *[("evaluation.k", 0), ("learning.momentumm", 0.9), ("engine.save_every", float("inf")), ("seed", 2**60)],
        *[("learning.learning_rate", float("nan")), ("data.benchmark", 5), ("evaluation.protocols", ["../../x"])],
    ],
)
def test_a_config_is_read_as_strictly_as_the_command_line(
    name: str, value: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = to_dict(SETTINGS)
    *groups, field = name.split(".")
    (record[groups[0]] if groups else record)[field] = value
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"config": record}))
    assert cli.main(["train", "--config", str(path), "--out", str(tmp_path / "run"), "--quiet"]) == 2
    told = capsys.readouterr().err
    assert "Traceback" not in told and len(told.strip().splitlines()) == 1
    assert field.replace("_", "-") in told.replace("_", "-") or groups[0] in told
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "text",
    ["", "[]", "3", '{"config": []}', '{"config": null}', "{", '{"metrics": 1}', "\xff", "[" * 10**5 + "]" * 10**5],
    ids=lambda text: text[:16],
)
def test_what_is_not_a_config_is_refused_in_one_line(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text(text, encoding="latin-1")
    assert cli.main(["train", "--config", str(tmp_path / "config.json"), "--out", str(tmp_path / "run")]) == 2
    assert cli.main(["train", "--resume", str(tmp_path)]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 2


# Data


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (_content(27, "d"), "task 2 was week with 28 training and 8 test images before and is week with 27"),
        (_content(28, "d"), "some images or labels of task 2"),
    ],
)
def test_a_run_does_not_continue_on_other_data(content: TaskContent, message: str, run: Path) -> None:
    changed = replace(benchmark(), contents=(CONTENTS[0], content, CONTENTS[2]))
    with pytest.raises(UserError, match=f"have changed since this run was saved: {message}.*Restore them"):
        tiny_runs.train(SETTINGS, run, changed)


# Files of a run


def test_a_link_that_is_named_like_a_leftover_is_removed(run: Path) -> None:
    (run / ".x.tmp").symlink_to("episodes")
    train(SETTINGS, run)
    assert not (run / ".x.tmp").is_symlink() and (run / "episodes").is_dir()


@pytest.mark.parametrize("name", [".lock", "log.jsonl", "config.json", "episodes", "progress.json"])
def test_nothing_is_written_through_links_that_leave_the_run_directory(name: str, run: Path, tmp_path: Path) -> None:
    target = tmp_path / "precious"
    if name == "episodes":
        (run / name).rename(target)
    else:
        target.write_text("years of work")
        (run / name).unlink(missing_ok=True)
    (run / name).symlink_to(target)
    with pytest.raises(UserError, match=rf"is a link to .*precious, outside {run}\. Remove"):
        train(SETTINGS, run)
    assert target.is_dir() or target.read_text() == "years of work"


@pytest.mark.parametrize("damage", [cut, empty, remove])
def test_damaged_evaluations_and_baselines_are_made_again(
    damage: Callable[[Path], None], run: Path, whole: Path, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in (episode(run, 2).evaluation, run / "environment.json", *(cache / "baselines").iterdir()):
        damage(path)
    train(SETTINGS, run)
    assert_same_run(whole, run)
    said = _said(capsys)
    assert said("02-week/evaluation.safetensors is damaged or missing; it is computed again")
    assert said("environment.json is damaged") == (damage in (cut, empty))
    assert said("measured again") == (damage != remove)


@pytest.mark.parametrize("damage", [cut, empty, remove])
def test_damaged_evaluations_of_a_finished_run_are_made_again(
    damage: Callable[[Path], None], whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    damage(episode(run, 2).evaluation)
    train(SETTINGS, run)
    assert_same_run(whole, run)
    assert _said(capsys)("02-week/evaluation.safetensors is damaged or missing; it is computed again")
    train(SETTINGS, run)
    assert _said(capsys)("already finished")


def test_an_evaluation_whose_weights_are_damaged_too_is_refused(run: Path) -> None:
    cut(episode(run, 1).evaluation)
    cut(episode(run, 1).weights)
    with pytest.raises(UserError, match=r"evaluation\.safetensors is damaged or missing, and .*weights\.safetensors"):
        train(SETTINGS, run)


@pytest.mark.parametrize("damage", [cut, empty, change])
def test_damaged_metrics_are_made_again(damage: Callable[[Path], None], whole: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    damage(run / "metrics.json")
    train(SETTINGS, run)
    assert_same_run(whole, run)


def test_a_damaged_evaluation_between_steps_is_named_and_left_out(
    cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = replace(SETTINGS, evaluation=replace(SETTINGS.evaluation, evaluate_every=2))
    metrics = train(settings, tmp_path / "run")
    assert metrics is not None
    point = sorted((tmp_path / "run").glob("episodes/*/points/*.json"))[1]
    cut(point)
    assert train(settings, tmp_path / "run") == metrics, "metrics.json has its numbers"
    cut(tmp_path / "run" / "metrics.json")
    capsys.readouterr()
    again = train(settings, tmp_path / "run")
    assert again is not None and metrics.curve is not None
    assert again.curve == metrics.curve[:1] + metrics.curve[2:]
    assert _said(capsys)(f"{point} is damaged, and the encoder between two steps is gone")


def test_a_finished_run_without_checkpoints_keeps_its_metrics(whole: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(whole, run, ignore=shutil.ignore_patterns("*.pt"))
    metrics = train(SETTINGS, run)
    assert metrics is not None and metrics.plain() == read_json(whole / "metrics.json")
    cut(run / "metrics.json")
    assert train(SETTINGS, run) == metrics, "of the evaluations"


def test_a_cache_that_cannot_be_written_is_named_and_does_without(
    run: Path, whole: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OSIRIS_CACHE", "/nowhere")
    monkeypatch.setattr(baselines, "write_record", failing(errno.EROFS))
    train(SETTINGS, run)
    assert_same_run(whole, run)
    said = _said(capsys)
    assert said("/nowhere/baselines/") and said("cannot be written (Read-only file system)")


def test_the_state_of_another_run_is_refused(run: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    with asked_to_stop(task=0, step=1), pytest.raises(Stopped):
        train(replace(SETTINGS, seed=1), other)
    for saved in progress_of(run).states:
        shutil.copy(newest(other), run / "episodes" / saved.file)
    with pytest.raises(UserError, match=r"or of another run: its checksum is not that of progress\.json"):
        train(SETTINGS, run)
    shutil.rmtree(run / "episodes")
    shutil.copytree(other / "episodes", run / "episodes")
    shutil.copy(other / "progress.json", run)
    with pytest.raises(UserError, match="belongs to another run: seed is 1 there and 0 here"):
        train(SETTINGS, run)


def craft(change: Callable[[dict[str, Any]], object], run: Path) -> None:
    """Change the state. Its checksum is right: an attacker can compute it."""
    progress = progress_of(run)
    (saved, *_), path = progress.saved, newest(run)
    record = torch.load(path, weights_only=True)
    state = record | {"position": saved.position}
    change(state)
    torch.save(record, path)
    saved = structs.replace(saved, digest=digest(record["engine"]))
    write_progress(RunDirectory(run), structs.replace(progress, saved=[saved]))


def _first_weight(state: dict[str, Any]) -> str:
    return next(name for name, value in state["engine"]["model"].items() if value.ndim == 4 and "memory" not in name)


def _moments(state: dict[str, Any]) -> dict[str, Any]:
    return next(iter(state["engine"]["optimiser"]["state"].values()))


@pytest.mark.parametrize(
    "change",
    [
        lambda state: state["engine"]["model"].pop(_first_weight(state)),
        lambda state: state["engine"]["model"].update(another=torch.zeros(3)),
        lambda state: state["engine"]["model"].update({_first_weight(state): torch.zeros(2, 2)}),
        lambda state: state["engine"]["model"].update({"memory.images": torch.zeros(12, 3, 8, 8, dtype=torch.uint8)}),
        lambda state: state["engine"]["model"].update({"memory.source": torch.zeros(12, 2)}),
        lambda state: state["engine"].pop("optimiser"),
        lambda state: state["engine"].update(optimiser=3),
        lambda state: state["engine"].update(optimiser={"state": {}}),
        lambda state: state["engine"]["optimiser"].update(param_groups=[]),
        lambda state: state["engine"]["optimiser"].update(param_groups=[3]),
        lambda state: state["engine"]["optimiser"]["param_groups"][0].update(params=[0]),
        lambda state: state["engine"]["optimiser"].update(state={0: 3}),
        lambda state: _moments(state).update(momentum_buffer=torch.zeros(2)),
        lambda state: _moments(state).update(momentum_buffer=torch.zeros(())),
        lambda state: _moments(state).update(momentum_buffer="x"),
        lambda state: state["engine"].pop("scaler"),
        lambda state: state["engine"].update(before={"weight": torch.zeros(1)}),
        lambda state: state["engine"].update(before=3),
        lambda state: setattr(state["position"], "step", 10**9),
    ],
)
def test_a_state_that_does_not_fit_is_refused_in_one_line(
    change: Callable[[dict[str, Any]], object], run: Path
) -> None:
    craft(change, run)
    with pytest.raises(UserError) as told:
        train(SETTINGS, run)
    assert "\n" not in str(told.value) and "episodes" in str(told.value)


@pytest.mark.parametrize("option", ["lr", "momentum", "weight_decay"])
def test_the_settings_of_the_optimiser_come_from_the_config(option: str, run: Path, whole: Path) -> None:
    craft(lambda state: state["engine"]["optimiser"]["param_groups"][0].update({option: "x"}), run)
    train(SETTINGS, run)
    assert_same_run(whole, run)


def test_deleted_checkpoints_are_noticed(run: Path, whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in run.rglob("*.pt"):
        path.unlink()
    train(SETTINGS, run)
    assert_same_run(whole, run)
    assert _said(capsys)("has no checkpoint, so the run starts again")


# Locks, disks, signals, names


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOTSUP])
def test_a_file_system_without_locks(
    number: int, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    monkeypatch.setattr(fcntl, "flock", failing(number))
    with pytest.raises(UserError, match=r"does not support locks .* set OSIRIS_NO_LOCK=1 if you are sure"):
        train(SETTINGS, run)
    monkeypatch.setenv("OSIRIS_NO_LOCK", "1")
    assert cli.main(["train", "--resume", str(run), "--quiet"]) == 0


def test_a_lock_on_a_full_disk_is_a_lock_without_a_name(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as full:
        full.setattr(os, "write", failing(errno.ENOSPC))
        with RunDirectory(run), pytest.raises(UserError, match="is in use by another process"), RunDirectory(run):
            pass
    with RunDirectory(run):
        assert str(os.getpid()) in (run / ".lock").read_text()


def test_a_run_directory_removed_while_running_is_one_line(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step = Engine.step

    def removing(self: Engine, *given: Any) -> Any:
        shutil.rmtree(run, ignore_errors=True)
        return step(self, *given)

    monkeypatch.setattr(Engine, "step", removing)
    with pytest.raises(UserError, match="was removed or renamed while the run was using it"):
        train(SETTINGS, run)
    assert not run.exists()


@pytest.mark.usefixtures("signals_arrive")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_while_the_run_starts(
    number: signal.Signals, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 75 before there is a state, too: the same command can simply be given again."""

    def load(_: object) -> None:
        signal.raise_signal(number)
        raise AssertionError("still here")

    monkeypatch.setattr(training_run, "load_benchmark", load)
    with pytest.raises(Stopped, match="Nothing was saved yet: give the same command again"):
        training_run.train(Opening(SETTINGS, tmp_path / "run", quiet=True))

    def dispatch(*_: object) -> int:
        signal.raise_signal(number)
        raise AssertionError("still here")

    monkeypatch.setattr(cli, "dispatch", dispatch)
    assert cli.main(["report"]) == Stopped.exit_code


def test_nohup_stays_nohup(monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        monkeypatch.setattr(cli, "dispatch", lambda *_: int(signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN))
        assert cli.main(["report"]) == 0
    finally:
        signal.signal(signal.SIGHUP, before)


def test_names_with_markup_and_escapes_are_shown_as_they_are(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "o[/b]x\x1b[2J"
    shutil.copytree(whole, run)
    assert cli.main(["train", "--resume", str(run)]) == 0
    assert cli.main(["train", "--resume", str(run / "\x1b[31m")]) == 2
    told = capsys.readouterr()
    assert "o[/b]x\\x1b[2J" in told.out.replace("\n", "") and "\x1b" not in told.out + told.err
    assert console.printable("a\x1b\x07\nb\u202e") == "a\\x1b\\x07\nb\\u202e"


def test_untrained_encoders_have_no_zero_initialised_norms(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    """Zero would make every block the identity, and shift every T."""
    built: list[torch.nn.Module] = []

    def keep(make: Callable[[int], torch.nn.Module], *_: object) -> None:
        built.append(make(0))

    monkeypatch.setattr(build, "untrained_baseline", keep)
    build.baseline_of(SETTINGS, benchmark(), torch.device("cpu"))
    weights = [value for name, value in built[0].named_parameters() if value.ndim == 1 and name.endswith("weight")]
    assert weights and all(bool((value == 1).all()) for value in weights)
    zeroed = [value for name, value in build_encoder(SETTINGS.encoder, 0).named_parameters() if not value.any()]
    assert any(value.ndim == 1 for value in zeroed)


def test_untrained_encoders_are_measured_for_each_normalisation(cache: Path) -> None:
    """In the cache, too: R is that of the images as the run sees them."""

    def accuracies(**statistics: tuple[float, float, float]) -> object:
        measured = build.baseline_of(SETTINGS, replace(benchmark(), **statistics), torch.device("cpu"))
        return measured and measured.protocols

    other = {"mean": (0.9, 0.1, 0.1), "std": (0.01, 0.5, 0.5)}
    usual, normalised = accuracies(), accuracies(**other)
    assert usual != normalised and (usual, normalised) == (accuracies(), accuracies(**other))


def test_a_closed_terminal_does_not_keep_a_run_from_saving() -> None:
    """In a terminal of its own: after SIGHUP, writing to it is an error."""
    process, terminal = pty.fork()
    if process == 0:
        code = 1
        default_signals()
        with contextlib.suppress(OSError):
            with Interrupt() as interrupt:
                os.write(1, b"ready")
                deadline = time.monotonic() + 100
                while not interrupt.asked and time.monotonic() < deadline:
                    time.sleep(0.01)
                os.write(1, b"saving")
            code = 75 if interrupt.asked else 1
        os._exit(code)
    assert os.read(terminal, 5) == b"ready"
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 75
