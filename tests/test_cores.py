"""The number of threads follows the cores that a process may use."""

from __future__ import annotations

import os

import pytest

from osiris.training.config import Config


@pytest.mark.parametrize(
    ("granted", "processes", "threads"), [("", "1", 6), ("", "4", 1), ("4", "1", 4), ("4", "2", 2), ("64", "1", 6)]
)
def test_threads_of_a_process(granted: str, processes: str, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 2, 4, 6, 8, 10}, raising=False)
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", granted)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", processes)
    assert Config().complete().engine.threads == threads
