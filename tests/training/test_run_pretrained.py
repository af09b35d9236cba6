"""Episodes one by one are one run, also from an encoder that has learned before."""

from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import process_jobs
from fork_server import Pool
from osiris.files import load_tensors
from process_jobs import WEEKS
from quick import quick
from tiny_encoders import save_vision_model
from tiny_runs import episode, last_state, pictures

pytest.importorskip("transformers")

STARTS = ("own", "resnet", "vit")
"""An own module with BatchNorm and dropout; hf: with BatchNorm; hf: with LayerNorm and dropout."""
MODES: dict[str, dict[str, Any]] = {
    "merged": {},
    "not merged": {"merge": 1.0},
    "batch statistics": {"merge": 1.0, "statistics": "batch"},
    "dropout": {"dropout": True},
}


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("photos")
    images, _, tasks = pictures(6, seed=3)
    for task, week in enumerate(WEEKS):
        (root / week).mkdir()
        for number, image in enumerate(images[tasks == task]):
            Image.fromarray(image.transpose(1, 2, 0)).save(root / week / f"{number:02d}.png")
    return root


@pytest.fixture(scope="module")
def starts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    names = {kind: f"hf:{save_vision_model(tmp_path_factory.mktemp(kind), kind)}" for kind in STARTS[1:]}
    return {"own": "own"} | names


def assert_same_weights(one: Path, other: Path) -> None:
    assert last_state(one) == last_state(other)
    for task in range(len(WEEKS) + 1):
        first, second = (load_tensors(episode(path, task).weights)[0] for path in (one, other))
        assert first.keys() == second.keys()
        assert all(torch.equal(value, second[key]) for key, value in first.items()), task


CASES = [(start, mode) for start in STARTS for mode in MODES]
QUICK = {
    ("own", "merged"),
    ("resnet", "merged"),
    ("resnet", "not merged"),
    ("vit", "dropout"),
    ("own", "batch statistics"),
}


@pytest.mark.parametrize(("start", "mode"), quick(QUICK, CASES))
def test_one_episode_after_the_other_is_one_run(
    start: str, mode: str, photos: Path, starts: dict[str, str], tmp_path: Path
) -> None:
    """Bit for bit; one episode is interrupted on the way."""
    process_jobs.observe_weeks(photos, tmp_path / "state", starts[start], MODES[mode], stop_in=(1, 1))
    process_jobs.train_weeks(photos, tmp_path / "run", starts[start], MODES[mode])
    assert_same_weights(tmp_path / "state", tmp_path / "run")
    moved = [load_tensors(episode(tmp_path / "run", task).weights)[0] for task in (0, 3)]
    assert any(not torch.equal(value, moved[1][name]) for name, value in moved[0].items() if "encoder." in name)


@pytest.mark.parametrize(("start", "mode"), quick({("resnet", "merged")}, CASES))
def test_the_same_in_two_processes(
    start: str, mode: str, photos: Path, starts: dict[str, str], tmp_path: Path, pool: Pool
) -> None:
    given = {"photos": photos, "encoder": starts[start], "options": MODES[mode]}
    pool.run("observe_weeks", out=tmp_path / "state", **given)
    pool.run("train_weeks", out=tmp_path / "run", **given)
    assert_same_weights(tmp_path / "state", tmp_path / "run")
