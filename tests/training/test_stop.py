"""Signals, locks, other people's directories and full disks, on the command line as a user meets them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fork_server import ForkServer
from osiris.errors import Stopped
from osiris.training.interrupt import Interrupt
from tiny_runs import arguments, assert_same_run


def wait_for(condition: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"the condition was not met within {seconds} seconds"
        time.sleep(0.02)


def training(run: Path) -> Callable[[], bool]:
    """Whether some lines of a run's log are written."""
    log = run / "log.jsonl"
    return lambda: log.exists() and log.stat().st_size > 500


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_and_stops_and_the_run_continues(
    number: signal.Signals,
    server: ForkServer,
    arrays: str,
    uninterrupted: Callable[..., tuple[Path, int]],
    tmp_path: Path,
) -> None:
    run, output = tmp_path / "run", tmp_path / "output"
    pid = server.start("command", output, arguments=arguments(arrays, run, "osiris-d", "--evaluate-every", "4"))
    wait_for(training(run))
    asked = time.monotonic()
    os.kill(pid, number)
    assert server.wait(pid) == Stopped.exit_code, output.read_text()
    assert time.monotonic() - asked < 20
    assert f"osiris train --resume {run}" in output.read_text()
    assert server.run("command", output, arguments=["train", "--resume", str(run), "--quiet"]) == 0, output.read_text()
    assert_same_run(uninterrupted("osiris-d", "--evaluate-every", "4")[0], run)
    assert server.run("command", output, arguments=["train", "--resume", str(run)]) == 0
    assert "already finished" in output.read_text()


def test_the_first_signal_waits_for_the_step_and_the_second_does_not() -> None:
    before = signal.getsignal(signal.SIGINT)
    with Interrupt() as interrupt:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        assert interrupt.asked
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_a_stop_that_became_another_error_in_a_library_is_a_stop() -> None:
    with Interrupt() as interrupt:
        with pytest.raises(KeyError), interrupt.at_once():
            raise KeyError
        with pytest.raises(Stopped), interrupt.at_once():
            try:
                signal.raise_signal(signal.SIGTERM)
            except Stopped:
                raise KeyError from None


def test_a_signal_stops_at_once_where_nothing_would_be_lost() -> None:
    with Interrupt() as interrupt:
        with pytest.raises(Stopped), interrupt.at_once():
            signal.raise_signal(signal.SIGTERM)
            raise AssertionError("still here")
        assert interrupt.asked
        with pytest.raises(Stopped), interrupt.at_once():
            raise AssertionError("asked before")


def test_two_processes_cannot_have_one_directory(server: ForkServer, arrays: str, tmp_path: Path) -> None:
    run, output = tmp_path / "run", tmp_path / "output"
    typed = arguments(arrays, run, "ft", "--epochs", "2000")
    pid = server.start("command", tmp_path / "first", arguments=typed)
    wait_for(training(run))
    assert server.run("command", output, arguments=typed) == 2
    assert f"in use by process {pid}" in output.read_text()
    os.kill(pid, signal.SIGKILL)
    server.wait(pid)
    assert (run / ".lock").read_text() != ""  # stale, and ignored
    pid = server.start("command", tmp_path / "first", arguments=typed)
    wait_for(lambda: str(pid) in (run / ".lock").read_text())
    os.kill(pid, signal.SIGKILL)
    server.wait(pid)


def test_another_run_is_not_touched(
    server: ForkServer, arrays: str, uninterrupted: Callable[..., tuple[Path, int]], tmp_path: Path
) -> None:
    run, _ = uninterrupted("osiris-d", "--evaluate-every", "4")
    before = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in run.rglob("*") if path.is_file()}
    output = tmp_path / "output"
    for typed in (
        arguments(arrays, run, "osiris-r", "--evaluate-every", "4"),
        [*arguments(arrays, run, "osiris-d", "--evaluate-every", "4"), "--seed", "1"],
        arguments(arrays, run, "osiris-d"),
    ):
        assert server.run("command", output, arguments=typed) == 2
    text = output.read_text().replace("\n", " ")
    for difference in ("method.method is 'osiris-d' there and 'osiris-r' here", "seed is 0", "evaluate_every is 4"):
        assert difference in text
    after = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in run.rglob("*") if path.is_file()}
    assert {path for path in before if before[path] != after[path]} <= {run / ".lock"}
    assert before.keys() == after.keys()


def test_a_refused_start_leaves_the_directory_free(server: ForkServer, arrays: str, tmp_path: Path) -> None:
    """A mistake in one flag must not make the corrected command a `different run`."""
    run, output = tmp_path / "run", tmp_path / "output"
    wrong = [*arguments(arrays, run, "er"), "--memory-size", "5"]
    assert server.run("command", output, arguments=wrong) == 2
    assert "--memory-size 9" in output.read_text()
    assert not (run / "config.json").exists()
    assert server.run("command", output, arguments=arguments(arrays, run, "er")) == 0, output.read_text()


def test_a_full_disk_is_named_and_survived(
    server: ForkServer, arrays: str, uninterrupted: Callable[..., tuple[Path, int]], tmp_path: Path
) -> None:
    """Files may not grow beyond a limit that the first checkpoints respect: writing fails in the middle of a file."""
    run, output = tmp_path / "run", tmp_path / "output"
    typed = arguments(arrays, run, "osiris-d", "--evaluate-every", "4")
    code = server.run("cramped", output, arguments=typed, saves=3)
    assert code == 2, output.read_text()
    assert "the disk is full" in output.read_text() and "Traceback" not in output.read_text()
    assert sorted(path.name for path in (run / "checkpoints").glob("*.pt")) == ["latest.pt", "previous.pt"]
    assert server.run("command", output, arguments=typed) == 0, output.read_text()
    assert_same_run(uninterrupted("osiris-d", "--evaluate-every", "4")[0], run)
