"""What a run says about collapsed embeddings."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import tiny_runs
from osiris.training.engine import Engine, StepResult
from osiris.training.schedule import Episode


@pytest.mark.parametrize("preset", ["fast", "smoke"])
def test_a_collapse_is_named_once_and_counted_at_the_end(
    preset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """From the second of three tasks on. Runs of the preset smoke are too short to say anything."""
    healthy = Engine.step

    def collapsed(engine: Engine, episode: Episode, step: int) -> StepResult:
        result = healthy(engine, episode, step)
        spread = {"spread": torch.tensor(0.001)} if episode.task > 0 else {}
        return replace(result, values=result.values | spread)

    monkeypatch.setattr(Engine, "step", collapsed)
    tiny_runs.train(replace(tiny_runs.config("ft"), preset=preset), tmp_path)
    said = " ".join(capsys.readouterr().err.split())
    times = 0 if preset == "smoke" else 1
    assert said.count("the embeddings have collapsed in task 2 at step") == times
    assert said.count("the embeddings have collapsed in task ") == times
    assert said.count("the embeddings have collapsed in 2 tasks, the first of them task 2") == times
