"""A step whose loss is not finite changes nothing, and the message names the term."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from osiris.errors import Diverged
from osiris.files import read_json
from osiris.framework.config import MethodConfig
from osiris.framework.terms import Contrast, Cross, Term
from osiris.runs.state import digest
from osiris.training.engine import Engine
from osiris.training.optimisers import build_optimiser
from osiris.training.schedule import batch_positions
from process_jobs import build
from tiny_runs import config, last_state, log, train

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


def spoil(engine: Engine, how: str) -> RemovableHandle:
    if how == "images":
        return engine.networks.encoder.register_forward_pre_hook(lambda _, inputs: (inputs[0] * math.inf,))
    if how == "embeddings":  # too large to normalise; zero vectors would give a finite loss without a gradient
        return engine.networks.heads["g"].register_forward_hook(lambda _, inputs, output: output * 1e25)  # pyright: ignore
    if how == "value":  # the gradient is finite
        return engine.model.register_forward_hook(lambda _, inputs, output: (output[0] + math.inf, output[1]))
    return engine.model.register_forward_hook(lambda _, inputs, output: (output[0] * float(how), output[1]))


def everything(engine: Engine) -> dict[str, Tensor]:
    """Parameters, buffers (BatchNorm's among them) and what the optimiser remembers, not the memory."""
    remembered = engine.optimiser.state_dict()["state"].items()
    values = {f"{number}.{key}": value for number, state in remembered for key, value in state.items()}
    values |= {key: value for key, value in engine.model.state_dict().items() if not key.startswith("memory")}
    return {key: value.clone() for key, value in values.items() if "num_batches_tracked" not in key}


@pytest.mark.parametrize(
    ("how", "optimiser", "norm", "step", "precision"),
    [
        *[("nan", "sgd", "gn", 0, "32"), ("inf", "sgd", "bn", 2, "32"), ("nan", "lars", "gn", 2, "32")],
        *[("inf", "adamw", "bn", 0, "32"), ("nan", "adamw", "gn", 2, "32"), ("inf", "muon", "gn", 2, "32")],
        *[("images", "sgd", "bn", 1, "32"), ("embeddings", "sgd", "gn", 0, "32"), ("inf", "sgd", "gn", 1, "16")],
        *[("value", "sgd", "gn", 1, "32"), ("value", "sgd", "gn", 1, "16")],
    ],
)
def test_a_bad_step_changes_nothing(how: str, optimiser: str, norm: str, step: int, precision: str) -> None:
    """Neither parameters nor momentum nor running statistics, be it the first step or a later one; then it goes on."""
    engine, (phase, *_) = build(MethodConfig("der"), norm, precision=precision)
    settings = replace(engine.config.learning, optimiser=optimiser)  # pyright: ignore[reportArgumentType]
    engine.optimiser = build_optimiser(engine.model, settings)
    if how == "value":  # a small scale: no gradient overflows, the loss alone is bad
        engine.scaler = torch.amp.GradScaler("cpu", init_scale=8.0, enabled=precision == "16")
    for before in range(step):
        assert bool(engine.step(phase, before).finite)
    kept, handle = everything(engine), spoil(engine, how)
    assert not bool(engine.step(phase, step).finite)
    handle.remove()
    after = everything(engine) | {"stored": engine.memory.get_buffer("field_embedding")}
    torch.testing.assert_close({key: after[key] for key in kept}, kept, rtol=0, atol=0)
    assert all(bool(torch.isfinite(value).all()) for value in after.values())
    assert engine.memory.offers == sum(len(batch_positions(phase, 0, number)) for number in range(step + 1))
    assert bool(engine.step(phase, step + 1).finite)
    assert (precision == "16" and how != "value") or digest(everything(engine)) != digest(kept)


def test_half_precision_lowers_its_scale_before_it_complains() -> None:
    """A gradient that overflows at a large scale is skipped; one that overflows at every scale stops the run."""
    engine, (phase, *_) = build(MethodConfig("ft"), precision="16")
    first = next(engine.networks.encoder.parameters())
    first.register_hook(lambda gradient: gradient * math.inf)
    seen = [bool(engine.step(phase, 0).finite) for _ in range(20)]
    scale = float(engine.scaler.get_scale())
    assert seen[0] and scale < 1 and not seen[-1]


def test_the_run_stops_and_names_the_term(bad_at: BadAt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message has what is needed to build the batch again; the last checkpoint continues without the cause."""
    whole = train(config("osiris-r"), tmp_path / "whole")
    bad_at(Cross, 1, 3, math.nan)
    with pytest.raises(Diverged) as told:
        train(config("osiris-r"), tmp_path / "run")
    for part in ("task 2 at step 3", "term cross", "seed 0", "--skip-bad-steps"):
        assert part in str(told.value)
    assert "current" not in str(told.value).split("Continue")[0]
    monkeypatch.undo()
    assert train(config("osiris-r"), tmp_path / "run") == whole
    assert last_state(tmp_path / "run") == last_state(tmp_path / "whole")


def test_some_bad_steps_may_be_left_out(bad_at: BadAt, tmp_path: Path) -> None:
    bad_at(Cross, 1, 3, math.nan)
    train(config("osiris-r", skip_bad_steps=1), tmp_path / "run")
    assert read_json(tmp_path / "run" / "metrics.json")["labelled"]
    lines = log(tmp_path / "run")
    assert [line["bad_steps"] for line in lines] == [0, 0, 0, 0, 1, 1, 1, 1, 1]
    assert all(math.isfinite(line["loss"]) for line in lines)
    _, position = last_state(tmp_path / "run")
    assert position["bad_steps"] == 1
    bad_at(Contrast, 2, 0, math.inf)
    with pytest.raises(Diverged, match="task 3 at step 0: term current, term past"):
        train(config("osiris-r", skip_bad_steps=1), tmp_path / "two")
