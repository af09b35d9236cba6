"""The Python interface, line by line as the documentation shows it."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import osiris
import tiny_runs
from osiris import Method, cli, losses, methods, terms
from osiris.errors import Stopped
from osiris.evaluation.features import embed
from osiris.models import external
from osiris.training.engine import Engine, StepResult

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
    assert 0 <= (run.metrics["class-agnostic"].A or -1) <= 100 and run.seed == 1 and run.metrics.benchmark == "tiny"
    assert run.metrics.fingerprint.k == 3
    encoder: nn.Module = run.encoder(task=-1)
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
    page: Path = osiris.report([run, str(tmp_path / "runs" / "*")], out=tmp_path / "report")
    assert page.exists() and "mine" in page.read_text()
    with pytest.raises(osiris.UserError, match="another method named 'mine'"):
        osiris.train(replace(own, past_weight=0.7), bench, seed=1, out=other.path, **OPTIONS)
    with pytest.raises(osiris.UserError, match="ft is the name of a built-in method"):
        osiris.train(replace(own, name="ft"), bench)
    assert losses.contrast(torch.nn.functional.normalize(torch.randn(2, 6, 4), dim=2), 0.1).ndim == 0


def test_a_run_of_an_own_method_is_evaluated_but_not_resumed_by_name(
    arrays: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    own = replace(methods.FT | methods.past(terms.Contrast("Y", space="g"), weight=0.5), name="mine")
    run = osiris.train(own, arrays, out=tmp_path / "run", **OPTIONS)
    osiris.evaluate(run, out=tmp_path / "again")
    again = osiris.load_run(tmp_path / "again").metrics
    assert (again.method, again.protocols) == ("mine", run.metrics.protocols)
    methods.OWN.clear()  # as in a new process
    assert cli.main(["train", "--resume", str(run.path)]) == 2
    assert "'mine', a method of your own" in " ".join(capsys.readouterr().err.split())
    assert osiris.train(own, arrays, out=run.path, **OPTIONS).metrics == run.metrics


class Small(nn.Sequential):
    """An encoder with dropout, whose randomness must not break resuming."""

    def __init__(self) -> None:
        super().__init__(nn.Conv2d(3, 8, 8, 8), nn.Flatten(), nn.Dropout(0.2), nn.Linear(32, 12))


def test_an_own_encoder_is_trained_resumed_and_loaded(
    bench: osiris.Benchmark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    options = OPTIONS | {"save_every": 0.0, "encoder": Small}
    whole = osiris.train("osiris-d", bench, out=tmp_path / "whole", **options)
    real_step, calls = Engine.step, []

    def step(*arguments: Any) -> StepResult:
        calls.append(arguments)
        if len(calls) == 9:
            raise ValueError("power cut")
        return real_step(*arguments)

    with monkeypatch.context() as patch, pytest.raises(ValueError, match="power cut"):
        patch.setattr(Engine, "step", step)
        osiris.train("osiris-d", bench, out=tmp_path / "resumed", **options)
    run = osiris.train("osiris-d", bench, out=tmp_path / "resumed", **options)
    expected = whole.encoder().state_dict()
    assert all(torch.equal(value, expected[name]) for name, value in run.encoder().state_dict().items())
    assert run.metrics.plain() == whole.metrics.plain() and run.metrics.fingerprint.encoder == {"encoder": "own:Small"}
    monkeypatch.setattr(external, "_registered", {})  # another process
    with pytest.raises(osiris.UserError, match=r"own:Small .*test_api\.Small.*register_encoder"):
        osiris.load_run(run.path).encoder()
    osiris.register_encoder(nn.Linear(2, 2), "Small")
    with pytest.raises(osiris.UserError, match="does not fit"):
        osiris.load_run(run.path).encoder()
    osiris.register_encoder(Small)
    assert osiris.load_run(run.path).embed(bench.train.images.take(torch.arange(5))).shape == (5, 12)


def test_any_encoder_is_evaluated(run: osiris.Run, tmp_path: Path, arrays: str):
    """A run, a checkpoint, a module, a baseline; a module is never taken for the one of an earlier call."""
    data: dict[str, Any] = {"benchmark": arrays, "k": 3, "threads": 1}
    again = osiris.evaluate(run, **data, out=tmp_path / "run")
    assert list(again) == ["task-01", "task-02", "task-03"]
    one = osiris.evaluate(run.checkpoint(1), **data, out=tmp_path / "one")
    assert one == {"task-02": again["task-02"]}
    module, scores = Small(), []
    for scale in (1.0, 0.0):
        with torch.no_grad():
            module.get_parameter("0.weight").mul_(scale)
        scores.append(osiris.evaluate(encoder=module, **data, device="cpu", out=tmp_path / "module")["encoder"])
    first, second = (one.protocols["class-agnostic"].accuracy for one in scores)
    assert first != second and len(first) == 3 and module.training, "evaluated as it is now, and left as it was"
    pixels = osiris.evaluate(baseline="pixels", **data, out=tmp_path / "pixels")["pixels"]
    assert sum(value or 0 for value in pixels.protocols["class-agnostic"].accuracy) > 90
    with pytest.raises(osiris.UserError, match="Did you mean 'threads'"):
        osiris.evaluate(run, thread=3)
    with pytest.raises(osiris.UserError, match="give one of"):
        osiris.evaluate(run, encoder=module)


@pytest.mark.usefixtures("signals_arrive")
def test_the_advice_after_a_stop_works(bench: osiris.Benchmark, arrays: str, tmp_path: Path, capsys: Any):
    """Neither images nor modules of this process can be named on the command line."""
    with (
        tiny_runs.asked_to_stop(1, 1),
        pytest.raises(Stopped, match=r"Call osiris\.train again with the same arguments"),
    ):
        osiris.train("ft", bench, out=tmp_path / "run", **OPTIONS)
    assert cli.main(["train", "--resume", str(tmp_path / "run"), "--quiet"]) == 2
    assert "osiris.train" in " ".join(capsys.readouterr().err.split()), "after a kill, this is what a user would try"
    finished = osiris.train("ft", bench, out=tmp_path / "run", **OPTIONS)
    assert finished.metrics == osiris.train("ft", bench, out=tmp_path / "whole", **OPTIONS).metrics
    name = osiris.register_encoder(Small, "small-advice")
    with tiny_runs.asked_to_stop(0, 1), pytest.raises(Stopped, match=r"Call osiris\.train again"):
        osiris.train("ft", arrays, out=tmp_path / "own", encoder=name, **OPTIONS)
    with tiny_runs.asked_to_stop(0, 1), pytest.raises(Stopped, match="osiris train --resume"):
        osiris.train("ft", arrays, out=tmp_path / "plain", **OPTIONS)


def test_mistakes_are_explained(bench: osiris.Benchmark, tmp_path: Path):
    with pytest.raises(osiris.UserError, match="Did you mean 'epochs'"):
        osiris.train("ft", bench, epoch=3)
    with pytest.raises(osiris.UserError, match="unknown method"):
        osiris.train("fft", bench, out=tmp_path / "x", preset="smoke")
    with pytest.raises(osiris.UserError, match="nothing matches"):
        osiris.compare("nowhere/*")


def test_every_module_can_be_imported_first():
    """A cycle of imports fails only for some first modules, and so only in some commands."""
    code = """
import importlib, pkgutil, sys, osiris
modules = [module.name for module in pkgutil.walk_packages(osiris.__path__, "osiris.")]
for name in modules:
    for loaded in [loaded for loaded in sys.modules if loaded.split(".")[0] == "osiris"]:
        del sys.modules[loaded]
    if not name.endswith("__main__"):
        importlib.import_module(name)
"""
    subprocess.run([sys.executable, "-c", code], check=True)
