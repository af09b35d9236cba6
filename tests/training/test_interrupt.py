"""Signals, locks, other people's directories and full disks, on the command line as a user meets them."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import fork_server
from osiris.errors import Stopped
from osiris.training.interrupt import Interrupt
from tiny_runs import arguments, assert_only_what_is_named, assert_same_run


def wait_for(condition: Callable[[], bool], seconds: float = 240) -> None:
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
    arrays: str,
    uninterrupted: Callable[..., tuple[Path, int]],
    tmp_path: Path,
) -> None:
    run, output = tmp_path / "run", tmp_path / "output"
    typed = arguments(arrays, run, "osiris-d", "--evaluate-every", "4")
    process = fork_server.start("command", output, arguments=typed)
    wait_for(training(run))
    assert process.pid is not None
    os.kill(process.pid, number)
    assert fork_server.wait(process) == Stopped.exit_code, output.read_text()
    assert f"osiris train --resume {run}" in output.read_text()
    resume = ["train", "--resume", str(run), "--quiet"]
    assert fork_server.run("command", output, arguments=resume) == 0, output.read_text()
    assert_same_run(uninterrupted("osiris-d", "--evaluate-every", "4")[0], run)
    assert fork_server.run("command", output, arguments=resume) == 0
    assert "already finished" in output.read_text()


@pytest.mark.usefixtures("signals_arrive")
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


def test_two_processes_cannot_have_one_directory(arrays: str, tmp_path: Path) -> None:
    run, output = tmp_path / "run", tmp_path / "output"
    typed = arguments(arrays, run, "ft", "--epochs", "2000")
    process = fork_server.start("command", tmp_path / "first", arguments=typed)
    wait_for(training(run))
    assert fork_server.run("command", output, arguments=typed) == 2
    assert f"in use by process {process.pid}" in output.read_text()
    process.kill()
    fork_server.wait(process)
    assert (run / ".lock").read_text() != ""  # stale, and ignored
    process = fork_server.start("command", tmp_path / "first", arguments=typed)
    wait_for(lambda: str(process.pid) in (run / ".lock").read_text())
    process.kill()
    fork_server.wait(process)


def test_a_full_disk_is_named_and_survived(
    arrays: str, uninterrupted: Callable[..., tuple[Path, int]], tmp_path: Path
) -> None:
    """Files may not grow beyond a limit that the first checkpoints respect: writing fails in the middle of a file."""
    run, output = tmp_path / "run", tmp_path / "output"
    typed = arguments(arrays, run, "osiris-d", "--evaluate-every", "4")
    code = fork_server.run("cramped", output, arguments=typed, saves=3)
    assert code == 2, output.read_text()
    assert "the disk is full" in output.read_text() and "Traceback" not in output.read_text()
    assert_only_what_is_named(run)
    assert fork_server.run("command", output, arguments=typed) == 0, output.read_text()
    assert_same_run(uninterrupted("osiris-d", "--evaluate-every", "4")[0], run)
