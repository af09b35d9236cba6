"""A readout of a network that is trained: network and map are written and evaluated, and training stays what it is."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import tiny_runs
from osiris.config import Config
from osiris.data.images import ArrayImages
from osiris.data.tinyworld import render
from osiris.errors import Stopped, UserError
from osiris.evaluation.encoder_files import load_checkpoint
from osiris.evaluation.features import embed
from osiris.exact.moments import Moments
from osiris.exact.readout import fit
from osiris.framework.summed import SummedReadout
from osiris.learner import Learner
from osiris.models.joined import JoinedEncoder
from osiris.reporting.studies import with_variants
from osiris.runs.directory import RunDirectory
from osiris.runs.run import open_run
from osiris.runs.state import load_state
from osiris.training import trained_readout
from osiris.training.trained_readout import TrainedReadout


def settings(readout: str | None = "joined", **engine: Any) -> Config:
    config = tiny_runs.config("er", **engine)
    return replace(config, encoder=replace(config.encoder, readout=readout))  # pyright: ignore[reportArgumentType]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "run"
    tiny_runs.train(settings(), out)
    return out


def encoders(path: Path) -> list[torch.nn.Module]:
    return [load_checkpoint(file).module for _, file in sorted(open_run(path).weights.items())]


def test_the_network_is_trained_as_without_it(run: Path, tmp_path: Path) -> None:
    tiny_runs.train(settings(None), tmp_path / "plain")
    for joined, plain in zip(encoders(run), encoders(tmp_path / "plain"), strict=True):
        assert isinstance(joined, JoinedEncoder) and not isinstance(plain, JoinedEncoder)
        assert all(torch.equal(value, joined.network.state_dict()[name]) for name, value in plain.state_dict().items())
    both = with_variants([open_run(run), open_run(tmp_path / "plain")])
    assert [one.full_label for one in both] == ["er (readout=joined)", "er (readout=None)"]


def test_the_map_is_that_of_the_images_at_hand(run: Path) -> None:
    """Of the last episode and of the memory; against moments computed here."""
    loaded, state = load_checkpoint(open_run(run).checkpoint()), load_state(RunDirectory(run))
    encoder, benchmark = loaded.module, tiny_runs.benchmark()
    assert isinstance(encoder, JoinedEncoder) and state is not None and loaded.mean and loaded.std
    last = benchmark.train.images.take((benchmark.train.task == tiny_runs.TASKS - 1).nonzero().squeeze(1))
    at_hand = torch.cat([last, state.memory.images]).numpy()
    rows = embed(encoder.layers, ArrayImages(at_hand), loaded.mean, loaded.std, "cpu", 64)
    summed = SummedReadout(encoder, None, "joined", loaded.mean, loaded.std, tiny_runs.SIZE)
    summed.begin(torch.empty(0))
    expected = fit(Moments.of(rows), summed.drawings, encoder.layers.sizes, summed.size)
    assert int(encoder.readout.count) == len(at_hand) == 28 + 12
    assert torch.allclose(encoder.readout.projection, expected.projection, rtol=1e-3, atol=1e-4)


def test_of_a_large_episode_some_images_are_enough(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trained_readout, "MOST", 10)
    tiny_runs.train(settings(), tmp_path / "few")
    counts = [
        int(encoder.readout.count) for encoder in encoders(tmp_path / "few") if isinstance(encoder, JoinedEncoder)
    ]
    assert counts == [22, 22, 22]


@pytest.mark.parametrize("where", ["step", "readout"])
def test_a_stopped_run_continues_to_the_same_bits(
    where: str, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if where == "step":
        with tiny_runs.asked_to_stop(1, 2), pytest.raises(Stopped):
            tiny_runs.train(settings(), tmp_path / "run")
    else:
        with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
            patch.setattr(TrainedReadout, "made_of", lambda *_: 1 / 0)
            tiny_runs.train(settings(), tmp_path / "run")
    tiny_runs.train(settings(), tmp_path / "run")
    for one, other in zip(encoders(run), encoders(tmp_path / "run"), strict=True):
        assert all(torch.equal(value, other.state_dict()[name]) for name, value in one.state_dict().items())
    assert open_run(run).metrics.protocols == open_run(tmp_path / "run").metrics.protocols


def test_a_damaged_evaluation_is_computed_again_with_the_readout(run: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(run, tmp_path / "copy"))
    (copy / "metrics.json").unlink()
    next(copy.glob("episodes/02-*")).joinpath("evaluation.safetensors").unlink()
    tiny_runs.train(settings(), copy)
    assert open_run(copy).metrics.protocols == open_run(run).metrics.protocols


def test_its_network_can_be_the_start_of_another_run(run: Path, tmp_path: Path) -> None:
    weights = open_run(run).checkpoint()
    tiny_runs.train(settings(None, init=weights), tmp_path / "next", stop_after=1)
    start = load_checkpoint(RunDirectory(tmp_path / "next").start.weights).module.state_dict()
    network = encoders(run)[-1].state_dict()
    assert all(torch.equal(value, network[f"layers.network.{name}"]) for name, value in start.items())


def test_a_learner_embeds_searches_and_judges_with_it(tmp_path: Path) -> None:
    images, _ = render("test", 1)
    for number, image in enumerate(images[:36]):
        name = f"photos/2026-0{1 + number // 12}" if number < 24 else f"labelled/class {number % 2}"
        (tmp_path / name).mkdir(parents=True, exist_ok=True)
        Image.fromarray(image.transpose(1, 2, 0)).save(tmp_path / name / f"{number:02d}.png")
    options = {"epochs": 1, "batch_size": 8, "memory_size": 8, "width": 32, "blocks": (1, 1)}
    learner = Learner(tmp_path / "state", method="er", readout="joined", threads=1, **options)
    for month in ("2026-01", "2026-02"):
        learner.observe(tmp_path / "photos" / month, reference=tmp_path / "labelled")
        learner.index(tmp_path / "photos")
    one = tmp_path / "photos" / "2026-01" / "03.png"
    assert learner.search(one).searched == 24
    features = learner.embed([one])
    encoder = load_checkpoint(learner.run.checkpoint()).module
    assert isinstance(encoder, JoinedEncoder) and features.shape[1] == encoder.readout.projection.shape[1]
    observations = learner.measure()
    assert np.isfinite(observations.episodes[-1].drift or np.nan)
    with pytest.raises(UserError, match="--only-if-better judges what the network itself returns"):
        learner.observe(tmp_path / "photos" / "2026-01", name="again", only_if_better=True)


def test_smt_has_no_readout(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--readout changes nothing in 'smt'"):
        Learner(tmp_path / "state", method="smt", readout="joined").observe(tmp_path)
