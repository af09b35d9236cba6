"""Presets: complete configs that fit their benchmark."""

import os
from dataclasses import replace

import pytest

from osiris.commands.train import parse
from osiris.config import Config, from_dict, to_dict
from osiris.grids.grid import GridRun
from osiris.models.encoder import build_encoder
from osiris.presets import PRESETS, configure

BENCHMARKS = ("tinyworld", "split-cifar100-20", "folder:photos")


@pytest.mark.parametrize("benchmark", BENCHMARKS)
@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_a_valid_config_that_survives_json(name: str, benchmark: str) -> None:
    config = configure(benchmark, name)
    config.check()
    assert from_dict(to_dict(config)) == config and config.preset == name
    if name != "smoke":
        assert config.data.bank_per_class is None or config.evaluation.k <= config.data.bank_per_class / 5
    if name in ("smoke", "fast"):
        assert build_encoder(config.encoder).features == config.encoder.features


def test_paper_released_halves_the_gradient_of_the_paper() -> None:
    """lr/2 and twice the weight decay: the decay per step is the same, the gradient counts half."""
    paper, released = configure("split-cifar100-20", "paper"), configure("split-cifar100-20", "paper-released")
    assert released.learning.learning_rate == paper.learning.learning_rate / 2 == 0.015
    assert released.learning.weight_decay == 2 * paper.learning.weight_decay == 1e-3
    same = replace(released.learning, learning_rate=0.03, weight_decay=5e-4)
    assert replace(released, preset="paper", learning=same) == paper


def test_gpu_is_the_paper_in_another_precision() -> None:
    paper, gpu = configure("split-cifar100-20", "paper"), configure("split-cifar100-20", "gpu")
    assert gpu.engine.precision == "bf16" and gpu.engine.compile
    assert replace(gpu, preset="paper", engine=replace(gpu.engine, precision="32", compile=False)) == paper


def test_objectives_with_batch_norm_in_their_heads_learn_at_a_lower_rate() -> None:
    rates = {
        name: configure("tinyworld", "fast", options={"objective": name}).learning.learning_rate
        for name in ("dcl", "byol")
    }
    assert rates == {"dcl": 0.1, "byol": 0.03}
    assert configure("tinyworld", "fast", options={"objective": "barlow(scale=0.025)"}).learning.learning_rate == 0.03
    plain, byol = configure("tinyworld", "smoke"), configure("tinyworld", "smoke", options={"objective": "byol"})
    assert plain.learning == byol.learning, "SGD, as in the paper"
    parsed = parse(["--preset", "fast", "--objective", "simsiam"]).settings
    assert parsed.learning.learning_rate == 0.03 and parsed.method.objective == "simsiam"
    assert (
        parse(["--preset", "fast", "--objective", "simsiam", "--learning-rate", "0.1"]).settings.learning.learning_rate
        == 0.1
    )
    run = GridRun("ft", "tinyworld", 0, "fast", (("objective", "simsiam"),))
    assert run.config == parse(run.arguments).settings


@pytest.mark.parametrize(
    ("granted", "processes", "threads"), [("", "1", 6), ("", "4", 1), ("4", "1", 4), ("4", "2", 2), ("64", "1", 6)]
)
def test_threads_of_a_process(granted: str, processes: str, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 2, 4, 6, 8, 10}, raising=False)
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", granted)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", processes)
    assert Config().complete().engine.threads == threads
