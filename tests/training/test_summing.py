"""Runs of `smt` as a method: joint learning after every task, stops, several processes, and what is refused."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from torch import Tensor

from fork_server import Pool
from osiris import cli
from osiris.config import Config
from osiris.errors import Stopped
from osiris.evaluation.encoder_files import load_checkpoint
from osiris.exact.spectrum import episode_sums, solve
from osiris.models.manifold import JoinedManifold, Manifold
from osiris.training import schedule
from osiris.training.summing import SummingEngine
from pictures import write_pictures
from process_jobs import WEEKS, observe_by_sums
from tiny_runs import (
    TASKS,
    asked_to_stop,
    assert_same_run,
    benchmark,
    config,
    episode,
    progress_of,
    read_newest,
    train,
)

STEPS = 3


@pytest.fixture
def several_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """28 images a task: steps of 12, 12 and 4."""
    monkeypatch.setattr(schedule, "IMAGES_PER_STEP", 12)


def settings() -> Config:
    tiny = config("smt", save_every=60)
    return replace(tiny, encoder=replace(tiny.encoder, codes=128))


def encoder_after(run: Path, task: int) -> JoinedManifold:
    module = load_checkpoint(episode(run, task).weights).module
    assert isinstance(module, JoinedManifold)
    return module.eval()


def joint(encoder: JoinedManifold, images: Tensor) -> JoinedManifold:
    """From all images at once, with the same dictionary."""
    parts = []
    for layer in encoder.parts:
        assert isinstance(layer, Manifold)
        red, green, blue = layer.scale.flatten().tolist()
        parts.append(
            Manifold.of(layer.codes, solve(episode_sums(layer.codes, images), layer.config), (red, green, blue))
        )
    return JoinedManifold(parts)


@pytest.mark.usefixtures("several_steps")
def test_after_every_task_it_is_joint_learning(tmp_path: Path) -> None:
    train(settings(), tmp_path / "run")
    data = benchmark()
    assert data.test is not None
    asked = data.test.images.take(torch.arange(24)) / 255 - 0.5
    before: Tensor | None = None
    for task in range(TASKS):
        seen = torch.cat([data.train.images.take(data.training_indices(one)) for one in range(task + 1)])
        learned = encoder_after(tmp_path / "run", task + 1)
        expected, found = joint(learned, seen)(asked), learned(asked)
        assert len(seen) == 28 * (task + 1) and found.norm(dim=1).sub(1).abs().max() < 1e-5
        for one, other in zip(found.T, expected.T):
            assert min((one - other).abs().max(), (one + other).abs().max()) <= 1e-6
        assert before is None or float((found - before).abs().max()) > 0.01, "the task has taught something"
        before = found


@pytest.mark.parametrize("size", [9, 12, 13, 27, 28, 100])
def test_every_image_is_counted_once(size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those that are too few for a step of their own: 28 = 3 * 9 + 1."""
    monkeypatch.setattr(schedule, "IMAGES_PER_STEP", size)
    train(settings(), tmp_path / "run")
    state, learned = read_newest(tmp_path / "run").engine, 28 * TASKS
    assert len(state["learned"]) == len({bytes(row) for row in state["learned"].tolist()}) == learned
    assert int(state["sums"]["total"]["0/even_images.count"]) == learned


@pytest.mark.usefixtures("several_steps", "signals_arrive")
def test_stopped_at_every_step_it_ends_with_the_same_bits(tmp_path: Path) -> None:
    train(settings(), tmp_path / "whole")
    for task in range(TASKS):
        for step in range(STEPS):
            with asked_to_stop(task, step, SummingEngine), pytest.raises(Stopped, match=f"at step {step + 1}"):
                train(settings(), tmp_path / "stopped")
    train(settings(), tmp_path / "stopped")
    assert_same_run(tmp_path / "whole", tmp_path / "stopped")


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("photos")
    for number, week in enumerate(WEEKS):
        write_pictures(root / week, 25, seed=number)
    return root


def sums_of(state: Path) -> dict[str, Tensor]:
    return read_newest(state).engine["sums"]["total"]


@pytest.mark.parametrize("method", ["smt", "readout"])
@pytest.mark.parametrize("stop_in", [None, (1, 1)])
def test_two_processes_give_the_sums_of_one(
    method: str, stop_in: tuple[int, int] | None, photos: Path, pool: Pool, tmp_path: Path
) -> None:
    """Also when they were stopped in the middle of an episode: what was saved has the images of both."""
    observe_by_sums(photos, tmp_path / "alone", method)
    pool.run("observe_by_sums", photos=photos, out=tmp_path / "two", method=method, stop_in=stop_in)
    alone, two = sums_of(tmp_path / "alone"), sums_of(tmp_path / "two")
    assert alone.keys() == two.keys()
    for name, value in alone.items():
        assert torch.equal(value, two[name]) if method == "smt" else torch.allclose(value, two[name], rtol=1e-9)
    digests = [read_newest(tmp_path / name).engine["learned"] for name in ("alone", "two")]
    assert len(digests[0]) == 3 * 25 and torch.equal(*digests)


def arguments(state: Path, folder: Path, *more: str) -> list[str]:
    return ["observe", str(state), str(folder), "--method", "smt", "--image-size", "16", "--threads", "1", *more]


def folder_of(images: np.ndarray, path: Path) -> Path:
    from PIL import Image

    path.mkdir()
    for number, image in enumerate(images):
        Image.fromarray(image).save(path / f"{number}.png")
    return path


NOISE = np.random.default_rng(0).integers(0, 256, (5, 16, 16, 3)).astype(np.uint8)
BLACK = np.zeros((5, 16, 16, 3), np.uint8)


@pytest.mark.parametrize(
    ("images", "more", "said"),
    [
        (NOISE[:1], (), "has too few images (1): learning needs at least 4"),
        (BLACK, (), "the images are flat: no patch of them has a pattern to learn"),
        (NOISE, ("--codes", "4096"), "patches with a pattern; 4096 codes need more than 2048"),
        (NOISE, ("--codes", "127"), "127"),
        (NOISE, ("--epochs", "3"), "--epochs changes nothing in 'smt'"),
    ],
)
def test_what_cannot_be_learned_is_one_sentence(
    images: np.ndarray, more: tuple[str, ...], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = folder_of(images, tmp_path / "photos")
    assert cli.main(arguments(tmp_path / "state", folder, "--quiet", *more)) == 2
    error = " ".join(capsys.readouterr().err.split())
    assert said in error and "Traceback" not in error and error.count("osiris: ") <= 1, error
    assert not (tmp_path / "state" / "progress.json").exists()


def test_too_little_memory_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    little = psutil.virtual_memory()._replace(available=10**6)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: little)
    folder = folder_of(NOISE, tmp_path / "photos")
    assert cli.main(arguments(tmp_path / "state", folder, "--quiet")) == 2
    assert "Choose fewer --codes" in " ".join(capsys.readouterr().err.split())


def test_black_images_after_the_first_episode(tmp_path: Path) -> None:
    """They have no codes: the features stay what they are."""
    assert cli.main(arguments(tmp_path / "state", folder_of(NOISE, tmp_path / "one"), "--codes", "128")) == 0
    assert cli.main(arguments(tmp_path / "state", folder_of(BLACK, tmp_path / "two"), "--codes", "128")) == 0
    images = torch.from_numpy(NOISE).permute(0, 3, 1, 2) / 255 - 0.5
    one, other = (encoder_after(tmp_path / "state", task)(images) for task in (1, 2))
    assert torch.allclose(one @ one.T, other @ other.T, atol=0.05) and other.isfinite().all()
    assert progress_of(tmp_path / "state").finished == 2
