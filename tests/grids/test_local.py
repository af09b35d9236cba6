"""A grid on this machine: what is missing is completed, a failed run does not stop the others, kills change no bit."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import osiris
from osiris.cli import main
from osiris.errors import Stopped, UserError
from osiris.grids import local
from osiris.grids.attempts import status_of, write_results
from osiris.grids.grid import Grid, GridDirectory
from osiris.grids.journal import in_progress, last_step, read_journal
from osiris.grids.local import divide_cores
from osiris.grids.runner import make_launcher, run_grids
from tiny_runs import write_arrays


def test_cores_are_divided():
    cores = os.sched_getaffinity(0)
    assert divide_cores(1) == [cores]
    parts = divide_cores(len(cores))
    assert set().union(*parts) == cores and all(len(part) == 1 for part in parts)
    assert len(divide_cores(3 * len(cores))) == 3 * len(cores)


def test_a_failing_run_does_not_stop_the_others_and_is_in_the_table(
    arrays: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """A memory of 4 images is too small for er, which a run notices only after it has started."""
    settings = {"memory_size": ("4",), "epochs": ("1",), "batch_size": ("12",), "k": ("3",)}
    arguments = ["sweep", "--methods", "er", "ft", "--benchmarks", arrays, "--seeds", "0", "--preset", "smoke"]
    arguments += ["--out", str(tmp_path), "--set", *(f"{name}={value[0]}" for name, value in settings.items())]
    assert main([*arguments, "--jobs", "1"]) == 2
    shown = capsys.readouterr()
    assert "1 failed, 1 done" in shown.err and "the memory holds 4 images" in shown.err and "ft" in shown.out
    rows = (tmp_path / "results.csv").read_text().splitlines()
    assert ",failed," in rows[1] and "the memory holds 4 images" in rows[1]
    directory = GridDirectory.read(tmp_path)
    metrics = directory.metrics(directory.runs[1])
    assert metrics is not None
    numbers = metrics.protocols
    assert {"class-agnostic", "task-aware"} <= set(numbers)
    assert [row.split(",")[5:8] for row in rows[2:]] == [["done", name, str(each.A)] for name, each in numbers.items()]
    assert (tmp_path / "report" / "report.html").exists()
    assert [len(read_journal(directory, run)) for run in directory.runs] == [2, 2], "a refusal is not tried again"
    finished = directory.folder(directory.runs[1]) / "metrics.json"
    before = finished.stat().st_mtime_ns
    with pytest.raises(UserError, match="1 failed"):  # the same grid again, from Python
        osiris.sweep(["er", "ft"], [arrays], seeds=[0], preset="smoke", settings=settings, out=tmp_path, jobs=1)
    assert finished.stat().st_mtime_ns == before
    assert [status_of(directory, run).state for run in directory.runs] == ["failed", "done"]
    assert main(["sweep", "status", str(tmp_path)]) == 0
    assert "2 runs: 1 failed, 1 done" in capsys.readouterr().out
    whole = finished.read_bytes()
    for damaged in (whole[:-9], b"{}"):
        finished.write_bytes(damaged)
        assert main(["sweep", "status", str(tmp_path)]) == 0
        assert "1 failed, 1 waiting" in capsys.readouterr().out
    (tmp_path / "grid.json").write_text("")
    for journal in (tmp_path / "attempts").glob("*.jsonl"):
        journal.write_bytes(journal.read_bytes()[:-9])
    with pytest.raises(UserError, match="1 failed"):
        osiris.sweep(["er", "ft"], [arrays], seeds=[0], preset="smoke", settings=settings, out=tmp_path, jobs=1)
    assert finished.read_bytes() == whole, "written again from the evaluations"
    assert {path.name for path in tmp_path.iterdir()} == {
        *("grid.json", "configs", "runs", "attempts", "results.csv", "report")
    }


def test_the_command_refuses_before_anything_starts(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["sweep", "--methods", "ft", "osirisd", "--out", str(tmp_path / "grid")]) == 2
    assert "Did you mean 'osiris-d'?" in capsys.readouterr().err and not (tmp_path / "grid").exists()
    (tmp_path / "grid.toml").write_text('methods = ["ft"]')
    assert main(["sweep", "--out", str(tmp_path / "grid")]) == 2
    wrong = (
        (["--methods", "ft", "--jobs", "-1"], "--jobs -1: give"),
        (["--methods", "ft", "--jobs", "0", "--plan"], "--jobs 0: give"),
        (["--methods", "ft", "--processes", "0"], "--processes 0: give"),
        (["--methods", "ft", "osirisd", "--plan"], "Did you mean 'osiris-d'?"),
        (["--methods", "ft", "--set", "seed=3,4"], "seed cannot be a setting"),
        (["--methods", "ft", "--set", "tau=1", "tau=2"], "--set names tau twice"),
        (["--grid", str(tmp_path / "grid.toml"), "--seeds", "7"], "leave out --seeds"),
    )
    capsys.readouterr()
    for given, message in wrong:
        assert main(["sweep", *given, "--out", str(tmp_path / "grid")]) == 2
        shown = capsys.readouterr()
        assert message in shown.err and not shown.out and not (tmp_path / "grid").exists()
    assert main(["reproduce", "table4", "--preset", "fastt", "--plan"]) == 2
    assert "Did you mean 'fast'?" in capsys.readouterr().err
    (tmp_path / "file").write_text("")
    assert main(["sweep", "--methods", "ft", "--preset", "smoke", "--out", str(tmp_path / "file" / "grid")]) == 2
    assert "cannot write to" in capsys.readouterr().err


def test_a_signal_at_the_moment_of_a_fork_is_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python drops exceptions there, and a sweep that went on would never stop."""
    armed = [True]
    os.register_at_fork(before=lambda: armed and armed.pop() and signal.raise_signal(signal.SIGTERM))
    monkeypatch.setattr(local, "training_command", lambda *_: ["sleep", "600"])
    directory, started = GridDirectory(tmp_path), time.monotonic()
    with pytest.raises(Stopped, match="same command"):
        run_grids(make_launcher(directory, jobs=1), [Grid(("ft",), seeds=(0,), preset="smoke")])
    assert not armed and time.monotonic() - started < 300
    start, end = read_journal(directory, directory.runs[0])
    assert start.event == "start" and end.code == Stopped.exit_code and not end.error


@pytest.mark.slow
@pytest.mark.parametrize(
    ("methods", "seeds", "kills"),
    [(("ft", "er", "osiris-d"), (0,), 1), (("ft", "er", "osiris-r", "osiris-d"), (0, 1, 2), 3)],
)
def test_killed_and_started_again_the_table_is_the_same_byte_for_byte(
    methods: tuple[str, ...], seeds: tuple[int, ...], kills: int, tmp_path: Path
) -> None:
    """At random steps, kill the sweep, which leaves its runs alone; then kill a run, and let SIGTERM stop the sweep."""
    settings, benchmark = {"threads": ("1",), "save_every": ("0",), "log_every": ("1",)}, "tinyworld"
    if len(seeds) == 1:
        sizes = {"epochs": "10", "batch_size": "12", "memory_size": "12", "k": "3"}
        settings |= {name: (value,) for name, value in sizes.items()}
        benchmark = write_arrays(tmp_path / "tiny.npz")
    grid = Grid(methods, (benchmark,), seeds, "smoke", settings)
    whole, killed = (GridDirectory(tmp_path / name, grid.runs()) for name in ("whole", "killed"))
    beside = threading.Thread(target=run_grids, args=(make_launcher(whole), [grid]), daemon=True)
    beside.start()
    command = [sys.executable, "-m", "osiris", "sweep", "--methods", *grid.methods, "--benchmarks", *grid.benchmarks]
    command += ["--seeds", *map(str, seeds), "--preset", "smoke", "--jobs", "2", "--out", str(killed.path)]
    command += ["--set", *(f"{name}={value[0]}" for name, value in settings.items())]
    choose, deadline = random.Random(0), time.monotonic() + 3000

    def starts() -> int:
        return sum(entry.event == "start" for run in killed.runs for entry in read_journal(killed, run))

    def steps() -> int:
        return sum(last_step(killed.folder(run) / "log.jsonl").total_step for run in killed.runs)

    for number, code in kills * ((signal.SIGKILL, -signal.SIGKILL), (signal.SIGTERM, Stopped.exit_code)):
        process, before, wanted = subprocess.Popen(command), starts(), steps() + choose.randint(3, 25)
        while starts() == before or steps() < wanted:
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        locks = [killed.folder(run) / ".lock" for run in killed.runs if in_progress(killed.files(run))]
        if number == signal.SIGTERM and locks:
            os.kill(int(choose.choice(locks).read_text().split()[1]), signal.SIGKILL)
        process.send_signal(number)
        assert process.wait() == code
    assert not all(killed.finished(run) for run in killed.runs)
    run_grids(make_launcher(killed, jobs=2), [grid])
    beside.join()
    names = ["results.csv", *(f"runs/{run.name}/metrics.json" for run in killed.runs)]
    for directory in (whole, killed):
        write_results(directory)
    assert [(whole.path / name).read_bytes() for name in names] == [(killed.path / name).read_bytes() for name in names]
