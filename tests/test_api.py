"""The Python interface, line by line as the documentation shows it."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import osiris
import tiny_runs
from osiris import Method, losses, methods, terms
from osiris.evaluation.features import embed

OPTIONS = {
    **{"preset": "smoke", "width": 8, "projector_hidden": 16, "projector_output": 8, "epochs": 2, "memory_size": 12},
    **{"k": 3, "batch_size": tiny_runs.BATCH, "threads": 1, "random_encoders": 1, "device": "cpu"},
}


@pytest.fixture(scope="module")
def bench() -> osiris.Benchmark:
    (images, labels, tasks), (others, other_labels, other_tasks) = tiny_runs.pictures(14, 1), tiny_runs.pictures(4, 2)
    test = (others.transpose(0, 2, 3, 1), other_labels, other_tasks)
    return osiris.benchmark_from(images.transpose(0, 2, 3, 1), episodes=tasks, labels=labels, test=test, name="tiny")


@pytest.fixture(scope="module")
def run(bench: osiris.Benchmark, tmp_path_factory: pytest.TempPathFactory) -> osiris.Run:
    return osiris.train("osiris-d", bench, seed=1, out=tmp_path_factory.mktemp("runs") / "osiris-d", **OPTIONS)


def test_import_is_fast_and_does_not_import_torch():
    code = "import sys, time; a = time.process_time(); import osiris"
    code += "; print(time.process_time() - a, 'torch' in sys.modules)"
    seconds, torch_imported = subprocess.check_output([sys.executable, "-c", code], text=True).split()
    assert float(seconds) < 0.2 and torch_imported == "False"
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = osiris.nothing  # pyright: ignore[reportAttributeAccessIssue]
    assert all(getattr(osiris, name) is not None for name in osiris.__all__)


def test_a_run_gives_metrics_encoder_and_features(run: osiris.Run, bench: osiris.Benchmark):
    assert 0 <= (run.metrics["class-agnostic"].A or -1) <= 100 and run.seed == 1 and run.benchmark == "tiny"
    assert run.metrics.fingerprint.k == 3
    encoder = run.encoder(task=-1)
    assert encoder(torch.zeros(2, 3, 16, 16)).shape == (2, 64) and not encoder.training
    expected = embed(encoder, bench.train.images, bench.mean, bench.std)
    images = bench.train.images.take(torch.arange(len(bench.train))).permute(0, 2, 3, 1).numpy()
    assert torch.allclose(run.embed(images), expected)
    assert not torch.allclose(run.embed(images, task=0), expected)
    with pytest.raises(osiris.UserError, match="no task 3"):
        run.encoder(3)


def test_a_finished_run_is_returned_and_can_be_loaded(run: osiris.Run, bench: osiris.Benchmark):
    again = osiris.train("osiris-d", bench, seed=1, out=run.path, **OPTIONS)
    assert again.metrics == run.metrics == osiris.load_run(run.path).metrics
    with pytest.raises(osiris.UserError, match="different run"):
        osiris.train("ft", bench, seed=1, out=run.path, **OPTIONS)


def test_an_own_method_is_compared_and_reported(run: osiris.Run, bench: osiris.Benchmark, tmp_path: Path):
    own: Method = replace(methods.FT | methods.past(terms.Contrast("Y", space="g"), weight=0.5), name="mine")
    other = osiris.train(own, bench, seed=1, out=tmp_path / "runs" / "own", **OPTIONS)
    assert other.method == "mine"
    table = osiris.compare([run, tmp_path / "runs"])
    assert "osiris-d" in table.markdown() and "mine" in table.markdown()
    page = osiris.report([run, str(tmp_path / "runs" / "*")], out=tmp_path / "report")
    assert page.exists() and "mine" in page.read_text()
    with pytest.raises(osiris.UserError, match="another method named 'mine'"):
        osiris.train(replace(own, past_weight=0.7), bench, out=other.path)
    with pytest.raises(osiris.UserError, match="ft is a method of the zoo"):
        osiris.train(replace(own, name="ft"), bench)
    assert losses.contrast(torch.nn.functional.normalize(torch.randn(2, 6, 4), dim=2), 0.1).ndim == 0


def test_mistakes_are_explained(bench: osiris.Benchmark, tmp_path: Path):
    with pytest.raises(osiris.UserError, match="Did you mean 'epochs'"):
        osiris.train("ft", bench, epoch=3)
    with pytest.raises(osiris.UserError, match="unknown method"):
        osiris.train("fft", bench, out=tmp_path / "x", preset="smoke")
    with pytest.raises(osiris.UserError, match="nothing matches"):
        osiris.compare("nowhere/*")
