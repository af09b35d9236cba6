"""A run killed by SIGKILL at any moment continues to the same bytes."""

import random
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

import fork_server
from quick import quick
from tiny_runs import arguments, assert_same_run, log

METHODS = ("osiris-d", "der", "ewc", "pocon", "lump")
KILLED = -signal.SIGKILL


ALWAYS, STAGES = ("--save-every", "0"), ("--evaluate-every", "4")
STREAM = ("--stream", "blurred:0.5", "--passes", "2", "--boundaries", "detect", "--points", "4", *ALWAYS)
PAIRS = [(method, more) for method in METHODS for more in (ALWAYS, STAGES)] + [("osiris-d", STREAM)]


@pytest.mark.parametrize(
    ("method", "more"),
    quick({("osiris-d", ALWAYS), ("der", STAGES), ("ewc", ALWAYS), ("pocon", ALWAYS), ("osiris-d", STREAM)}, PAIRS),
)
def test_killed_again_and_again(
    method: str,
    more: tuple[str, ...],
    arrays: str,
    uninterrupted: Callable[..., tuple[Path, int]],
    tmp_path: Path,
) -> None:
    """One run, five deaths at random moments, each start continuing where the last one died."""
    expected, moments = uninterrupted(method, *more)
    moment = random.Random(f"{method}{more}")
    typed = arguments(arrays, tmp_path / "run", method, *more)
    for _ in range(5):
        code = fork_server.run("doomed", tmp_path / "output", arguments=typed, death=moment.randint(1, moments // 4))
        assert code in (KILLED, 0), (tmp_path / "output").read_text()
    assert fork_server.run("command", tmp_path / "output", arguments=typed) == 0, (tmp_path / "output").read_text()
    assert_same_run(expected, tmp_path / "run")
    if more == STAGES:  # nothing but stages was saved: the log has the same lines
        for event in ("step", "evaluation"):
            assert log(tmp_path / "run", event) == log(expected, event)
