"""Grids that are damaged, were cut by a kill, or were received from another person."""

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from osiris.cli import main
from osiris.errors import UserError
from osiris.grids import local
from osiris.grids.attempts import status_of
from osiris.grids.grid import Grid, GridDirectory
from osiris.grids.journal import JournalEntry, in_progress, journal_path, last_step, read_journal, record
from osiris.grids.runner import make_launcher, run_grids

GRID = Grid(("ft",), seeds=(0,), preset="smoke")
DEEP = "[" * 200_000


@pytest.fixture
def directory(tmp_path: Path) -> GridDirectory:
    """A grid of one run that has a journal and a folder."""
    directory = GridDirectory(tmp_path / "grid")
    directory.add(GRID.runs())
    record(directory, directory.runs[0], JournalEntry("start", host="here"))
    directory.folder(directory.runs[0]).mkdir(parents=True)
    return directory


def launch(directory: GridDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same sweep again, with a run that fails at once."""
    monkeypatch.setattr(local, "training_command", lambda *_: ["sh", "-c", "echo osiris: no >&2; exit 2"])
    run_grids(make_launcher(directory, jobs=1), [GRID])


def status(directory: GridDirectory, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["sweep", "status", str(directory.path)]) == 0
    shown = capsys.readouterr()
    assert "\x1b" not in shown.out + shown.err
    return shown.out


@pytest.mark.parametrize("name", ["attempts/{}.jsonl", "attempts/{}.err", "configs/{}.json", "runs/{}", "report"])
def test_nothing_is_written_through_links_that_leave_the_grid(
    name: str, directory: GridDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, link = tmp_path / "precious", directory.path / name.format(directory.runs[0].name)
    target.mkdir() if name in ("runs/{}", "report") else target.write_text("years of work")
    link.parent.mkdir(exist_ok=True)
    link.unlink(missing_ok=True) if not link.is_dir() else link.rmdir()
    link.symlink_to(target)
    with pytest.raises(UserError, match=rf"is a link to {target}, outside {directory.path}"):
        launch(directory, monkeypatch)
    assert main(["sweep", "report", str(directory.path)]) == 2
    assert target.read_text() == "years of work" if target.is_file() else not list(target.iterdir())


def test_a_line_of_the_journal_that_a_kill_cut_is_skipped(
    directory: GridDirectory, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (run,) = directory.runs
    journal = journal_path(directory, run)
    record(directory, run, JournalEntry("end", code=1, error="the disk is full"))
    journal.write_bytes(journal.read_bytes()[:-30])
    assert "1 waiting" in status(directory, capsys)
    launch(directory, monkeypatch)
    assert [entry.event for entry in read_journal(directory, run)] == ["start", "start", "end"]
    assert status_of(directory, run).detail == "no"


@pytest.mark.parametrize(
    "text", ["", "[]", "3", '{"runs": 3}', '{"runs": [3]}', '{"runs": [{"method": 3}]}', DEEP, '{"\x1b": 3}', "\xff"]
)
def test_a_damaged_plan_is_named_and_written_again_by_the_command(
    text: str, directory: GridDirectory, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (directory.path / "grid.json").write_text(text, encoding="latin-1")
    assert main(["sweep", "status", str(directory.path)]) == 2
    shown = capsys.readouterr().err
    assert len(shown.strip().splitlines()) == 1 and "the command of the sweep writes it again" in shown
    launch(directory, monkeypatch)
    assert "no longer in the grid" in capsys.readouterr().err
    assert GridDirectory.read(directory.path).runs == GRID.runs()


JOURNALS = [
    *("[1]\n", "null\n", "3\n", DEEP, "\xff\xfe\n", '{"event": "end", "error": {"a": 1}}\n', '{"event": 3}\n'),
    *('{"event": "submit", "job": 3}\n', '{"event": "drop", "tasks": "all"}\n', '{"event": "end", "code": "x"}\n'),
]
LOGS = [
    *("[]\n", "{}\n", DEEP, "\xff\n", '{"event": "step", "task": "\\u001b[2J", "tasks": 1}\n'),
    *('{"event": "step", "task": 1, "tasks": 2, "progress": "x"}\n', '{"event": "step", "progress": 1e999}\n'),
    *('{"event": "step", "task": 1, "seconds_left": 1e300}\n', '{"event": "step", "task": 1, "progress": NaN}\n'),
]
LOCKS = [f"process {number} on {socket.gethostname()}" for number in ("-1", "9" * 100, "0", "x", "\xff", "1 2")]


@pytest.mark.parametrize(
    ("place", "text"),
    [*(("journal", text) for text in JOURNALS), *(("log.jsonl", text) for text in LOGS)]
    + [(".lock", text) for text in LOCKS]
    + [("metrics.json", text) for text in ("", DEEP, '{"fingerprint": {"encoder": {"a": ' + DEEP)],
)
def test_hostile_files_of_a_run_are_as_good_as_none(
    place: str,
    text: str,
    directory: GridDirectory,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (run,) = directory.runs
    path = journal_path(directory, run) if place == "journal" else directory.folder(run) / place
    path.write_text(text, encoding="latin-1")
    assert "1 waiting" in status(directory, capsys)
    launch(directory, monkeypatch)
    assert "failed" in status(directory, capsys)


@pytest.mark.parametrize("place", [".lock", "log.jsonl", "metrics.json"])
def test_a_folder_in_the_place_of_a_file(
    place: str, directory: GridDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    (directory.folder(directory.runs[0]) / place).mkdir()
    assert "1 waiting" in status(directory, capsys)


def test_a_pipe_is_not_read(directory: GridDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    (run,) = directory.runs
    journal_path(directory, run).unlink()
    for path in (journal_path(directory, run), *(directory.folder(run) / name for name in (".lock", "log.jsonl"))):
        os.mkfifo(path)
    assert "1 waiting" in status(directory, capsys)


def test_a_lock_from_the_future_is_not_held_forever(directory: GridDirectory) -> None:
    lock = directory.folder(directory.runs[0]) / ".lock"
    lock.write_text("process 1 on elsewhere")
    assert in_progress(directory.files(directory.runs[0]))
    future = time.time() + 1e6
    os.utime(lock, (future, future))
    assert not in_progress(directory.files(directory.runs[0]))


def test_a_process_that_got_the_number_of_a_killed_one_does_not_hold_its_run(directory: GridDirectory) -> None:
    """As after a restart of a container. A sweep with that number would wait for itself."""
    lock = directory.folder(directory.runs[0]) / ".lock"
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", "osiris"]) as process:
        lock.write_text(f"process {process.pid} on {socket.gethostname()}")
        assert in_progress(directory.files(directory.runs[0]))
        os.utime(lock, (time.time() - 3600, time.time() - 3600))
        assert not in_progress(directory.files(directory.runs[0]))
        process.kill()


def test_two_sweeps_that_start_at_once_are_both_in_the_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    earlier = GridDirectory._earlier
    monkeypatch.setattr(GridDirectory, "_earlier", lambda self: (earlier(self), time.sleep(0.2))[0])
    grids = [Grid((method,), seeds=(0,), preset="smoke") for method in ("ft", "er")]
    sweeps = [threading.Thread(target=GridDirectory(tmp_path).add, args=(grid.runs(),)) for grid in grids]
    for sweep in sweeps:
        sweep.start()
    for sweep in sweeps:
        sweep.join()
    assert {run.method for run in GridDirectory.read(tmp_path).runs} == {"ft", "er"}


def test_the_results_have_the_runs_that_another_sweep_added_meanwhile(
    directory: GridDirectory, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def add(*_: object) -> list[str]:
        GridDirectory(directory.path).add(Grid(("er",), seeds=(0,), preset="smoke").runs())
        return ["sh", "-c", "exit 75"]

    monkeypatch.setattr(local, "training_command", add)
    typed = ["sweep", "--methods", "ft", "--seeds", "0", "--preset", "smoke", "--out", str(directory.path)]
    assert main([*typed, "--retries", "0"]) == 2
    assert "no run of" in capsys.readouterr().err, "there is no page to name"
    rows = (directory.path / "results.csv").read_text().splitlines()
    assert [row.split(",")[1] for row in rows[1:]] == ["ft", "er"]


def test_ctrl_c_in_the_report_ends_the_sweep(
    directory: GridDirectory, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("osiris.commands.sweep.finish", interrupted)
    monkeypatch.setattr("osiris.commands.sweep.load_runs", lambda paths: pytest.fail("tables take minutes"))
    monkeypatch.setattr(GridDirectory, "finished", lambda *_: True)
    assert main(["sweep", "report", str(directory.path)]) == 130


def as_journal(directory: GridDirectory, text: str) -> None:
    record(directory, directory.runs[0], JournalEntry("end", code=1, error=text))


def as_job(directory: GridDirectory, text: str) -> None:
    record(directory, directory.runs[0], JournalEntry("submit", job=text))


def as_setting(directory: GridDirectory, text: str) -> None:
    runs = [{"method": "ft", "benchmark": "tinyworld", "seed": 0, "preset": "smoke", "settings": [["norm", text]]}]
    (directory.path / "grid.json").write_text(json.dumps({"runs": runs}))


@pytest.mark.parametrize("put", [as_journal, as_job, as_setting])
def test_control_characters_are_shown_as_escapes(
    put: Callable[[GridDirectory, str], None], directory: GridDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    put(directory, "\x1b[2Jgone")
    assert "\\x1b[2Jgone" in "".join(status(directory, capsys).split())


def test_the_newest_step_is_read_from_the_end(tmp_path: Path) -> None:
    lines = [
        {"event": "step", "task": 1, "tasks": 3, "step": 1, "terms": {}, "total_step": step, "progress": 0.1}
        for step in range(1000)
    ]
    text = "".join(json.dumps(line) + "\n" for line in [*lines, {"event": "evaluation", "task": 1}])
    (tmp_path / "log.jsonl").write_text(text + '{"event": "step", "ta')
    assert last_step(tmp_path / "log.jsonl").total_step == 999
    assert last_step(tmp_path / "nothing").task == 0
