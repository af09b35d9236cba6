"""A step whose loss is not finite changes nothing, and the message names the term."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from osiris.errors import Diverged
from osiris.files import read_json
from osiris.framework.config import MethodConfig
from osiris.framework.terms import Contrast, Cross, Term
from osiris.training import loop
from osiris.training.engine import Engine
from osiris.training.optimisers import build_optimiser
from osiris.training.schedule import batch_indices
from process_jobs import build
from tiny_runs import benchmark, config, last_state, log

BadAt = Callable[[type[Term], int, int, float], None]


@pytest.fixture
def bad_at(monkeypatch: pytest.MonkeyPatch) -> BadAt:
    """Let the loss of a term be infinite or undefined at one step of one task."""

    def spoil(kind: type[Term], task: int, step: int, value: float) -> None:
        loss = kind.loss

        def spoiled(self: Any, rep: Any, context: Any) -> Tensor:
            result = loss(self, rep, context)
            return result * value if (context.task, context.step) == (task, step) else result

        monkeypatch.setattr(kind, "loss", spoiled)

    return spoil


def everything(engine: Engine) -> dict[str, Tensor]:
    """Parameters, buffers (BatchNorm's among them) and what the optimiser remembers."""
    values = {f"n.{key}": value.clone() for key, value in engine.networks.state_dict().items()}
    values |= {f"o.{key}": value.clone() for key, value in engine.model.terms.state_dict().items()}
    for number, state in engine.optimiser.state_dict()["state"].items():
        values |= {f"{number}.{key}": value.clone() for key, value in state.items()}
    return {key: value for key, value in values.items() if "num_batches_tracked" not in key}


@pytest.mark.parametrize(
    ("optimiser", "norm", "step", "value"),
    [
        *[("sgd", "gn", 0, math.nan), ("sgd", "bn", 2, math.inf), ("lars", "gn", 2, math.nan)],
        *[("adamw", "bn", 0, math.inf), ("adamw", "gn", 2, math.nan), ("muon", "gn", 2, math.inf)],
    ],
)
def test_a_bad_step_changes_nothing(optimiser: str, norm: str, step: int, value: float, bad_at: BadAt) -> None:
    """Neither parameters nor momentum nor running statistics, be it the first step or a later one; then it goes on."""
    bad_at(Contrast, 0, step, value)
    engine, (phase, *_) = build(MethodConfig("der"), norm)
    settings = replace(engine.config.learning, optimiser=optimiser)  # pyright: ignore[reportArgumentType]
    engine.optimiser = build_optimiser(engine.model, settings)
    for before in range(step):
        assert bool(engine.step(phase, before).finite)
    kept = everything(engine)
    result = engine.step(phase, step)
    assert not bool(result.finite)
    after = everything(engine)
    for key in kept:
        assert torch.equal(kept[key], after[key]), key
    assert all(bool(torch.isfinite(state).all()) for state in after.values())
    assert engine.memory.offers == sum(len(batch_indices(phase, 0, number)) for number in range(step + 1))
    assert bool(engine.step(phase, step + 1).finite)
    assert any(not torch.equal(value, everything(engine)[key]) for key, value in kept.items())


def test_an_encoder_that_overflows_spoils_neither_statistics_nor_memory() -> None:
    engine, (phase, *_) = build(MethodConfig("der"), "bn")
    engine.step(phase, 0)
    kept = everything(engine)
    hook = engine.networks.encoder.register_forward_pre_hook(lambda _, inputs: (inputs[0] * math.inf,))
    assert not bool(engine.step(phase, 1).finite)
    hook.remove()
    after = everything(engine)
    assert all(torch.equal(kept[key], after[key]) for key in kept)
    assert bool(torch.isfinite(engine.memory.get_buffer("field_embedding")).all())
    assert bool(engine.step(phase, 2).finite)


def test_embeddings_too_large_to_normalise_are_a_bad_step() -> None:
    engine, (phase, *_) = build(MethodConfig("ft"))
    before = everything(engine)

    def enlarge(_: object, inputs: object, output: Tensor) -> Tensor:
        return output * 1e25

    hook = engine.networks.heads["g"].register_forward_hook(enlarge)
    assert not bool(engine.step(phase, 0).finite)
    hook.remove()
    assert all(torch.equal(value, everything(engine)[key]) for key, value in before.items())
    assert bool(engine.step(phase, 1).finite)


def test_half_precision_leaves_bad_steps_out_too(bad_at: BadAt) -> None:
    bad_at(Contrast, 0, 1, math.inf)
    engine, (phase, *_) = build(MethodConfig("ft"), precision="16")
    assert bool(engine.step(phase, 0).finite)
    kept = everything(engine)
    assert not bool(engine.step(phase, 1).finite)
    assert all(torch.equal(value, everything(engine)[key]) for key, value in kept.items())


def test_half_precision_lowers_its_scale_before_it_complains() -> None:
    """A gradient that overflows at a large scale is skipped; one that overflows at every scale stops the run."""
    engine, (phase, *_) = build(MethodConfig("ft"), precision="16")
    first = next(engine.networks.encoder.parameters())
    first.register_hook(lambda gradient: gradient * math.inf)
    seen = [bool(engine.step(phase, 0).finite) for _ in range(20)]
    scale = float(engine.scaler.get_scale())
    assert seen[0] and scale < 1 and not seen[-1]


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OSIRIS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(loop, "load_benchmark", lambda _: benchmark())


@pytest.mark.usefixtures("tiny")
def test_the_run_stops_and_names_the_term(bad_at: BadAt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message has what is needed to build the batch again; the last checkpoint continues without the cause."""
    whole = loop.train(config("osiris-r"), tmp_path / "whole", quiet=True)
    bad_at(Cross, 1, 3, math.nan)
    with pytest.raises(Diverged) as told:
        loop.train(config("osiris-r"), tmp_path / "run", quiet=True)
    for part in ("task 2 at step 3", "term cross", "seed 0", "--skip-bad-steps"):
        assert part in str(told.value)
    assert "current" not in str(told.value).split("Try")[0]
    monkeypatch.undo()
    monkeypatch.setenv("OSIRIS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(loop, "load_benchmark", lambda _: benchmark())
    assert loop.train(config("osiris-r"), tmp_path / "run", quiet=True) == whole
    assert last_state(tmp_path / "run") == last_state(tmp_path / "whole")


@pytest.mark.usefixtures("tiny")
def test_some_bad_steps_may_be_left_out(bad_at: BadAt, tmp_path: Path) -> None:
    bad_at(Cross, 1, 3, math.nan)
    loop.train(config("osiris-r", skip_bad_steps=1), tmp_path / "run", quiet=True)
    assert read_json(tmp_path / "run" / "metrics.json")["labelled"]
    lines = log(tmp_path / "run")
    assert [line["bad_steps"] for line in lines] == [0, 0, 0, 0, 1, 1, 1, 1, 1]
    assert all(math.isfinite(line["loss"]) for line in lines)
    _, position = last_state(tmp_path / "run")
    assert position["bad_steps"] == 1
    bad_at(Contrast, 2, 0, math.inf)
    with pytest.raises(Diverged, match="task 3 at step 0: term current, term past"):
        loop.train(config("osiris-r", skip_bad_steps=1), tmp_path / "two", quiet=True)
