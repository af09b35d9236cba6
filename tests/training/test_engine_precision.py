"""Lower precision and compilation: other last bits, the same learning."""

import math
import shutil
from functools import cache
from typing import Any

import pytest
import torch

from osiris.devices import prepare_host
from osiris.errors import UserError
from osiris.framework.config import MethodConfig
from osiris.runs.state import digest
from osiris.training.engine import Engine
from osiris.training.log import Meter
from process_jobs import build
from tiny_runs import config


def losses(engine: Engine, stretch: list[Any], steps: int = 4) -> list[float]:
    seen = []
    for phase in stretch[:2]:
        engine.begin(phase)
        for step in range(steps):
            result = engine.step(phase, step)
            assert bool(result.finite) and {value.dtype for value in result.values.values()} == {torch.float32}
            seen.append(float(result.values["loss"]))
        engine.end(phase)
    state = engine.model.state_dict().values()
    assert {value.dtype for value in state if value.is_floating_point()} == {torch.float32}
    return seen


@cache
def losses_in_float32(method: str, norm: str) -> list[float]:
    return losses(*build(MethodConfig(method), norm, learning_rate=0.005))


@pytest.mark.whole
@pytest.mark.parametrize("method", ["osiris-d", "der", "ewc", "pocon"])
@pytest.mark.parametrize("precision", ["bf16", "16"])
def test_lower_precision_stays_finite_and_near(method: str, precision: str) -> None:
    for norm in ("gn", "bn"):
        whole = losses_in_float32(method, norm)
        lower = losses(*build(MethodConfig(method), norm, learning_rate=0.005, precision=precision))
        assert lower[0] == pytest.approx(whole[0], rel=0.02)
        if precision == "bf16":  # half precision leaves out the first steps, while it looks for its scale
            assert lower == pytest.approx(whole, rel=0.15)


def test_the_gradient_norm_is_logged_without_the_scale() -> None:
    """And as nothing at all for the steps that overflowed."""
    whole, (phase, *_) = build(MethodConfig("ft"), learning_rate=0.0)
    half, _ = build(MethodConfig("ft"), learning_rate=0.0, precision="16")
    meter = Meter([phase], seed=0, allowed_bad_steps=0, seconds_before=0)
    norms = []
    while not norms or norms[-1] is None:
        meter.add(half.step(phase, 0))
        record = meter.read(phase, len(norms) + 1)
        assert record is not None and record.loss is not None and math.isfinite(record.loss)
        norms.append(record.gradient_norm)
    assert norms[0] is None
    assert norms[-1] == pytest.approx(float(whole.step(phase, 0).values["gradient_norm"]), rel=0.05)


def test_the_scale_is_part_of_the_state() -> None:
    engine, (phase, *_) = build(MethodConfig("ft"), precision="16")
    fresh = engine.scaler.state_dict()
    engine.step(phase, 0)
    assert engine.scaler.state_dict() != fresh
    again, _ = build(MethodConfig("ft"), precision="16")
    again.restore(engine.state())
    assert again.scaler.state_dict() == engine.scaler.state_dict()


def test_compilation_without_a_compiler_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(UserError, match="compiler"):
        prepare_host(config(compile=True).engine, torch.device("cpu"))
    prepare_host(config().engine, torch.device("cpu"))


def test_the_frozen_encoder_is_compiled_too() -> None:
    """What `compile` sets is used at the first call."""
    engine, _ = build(MethodConfig("osiris-d"), compile=True)
    for encoder in (engine.networks.encoder, engine.networks.past["encoder"]):
        assert encoder._compiled_call_impl is not None


@pytest.mark.slow
def test_a_compiled_encoder_learns_the_same_and_resumes_to_the_same_bits() -> None:
    """Batches of 13 and 15 images, with and without Y: one dynamic kernel for all of them, whichever comes first."""
    plain = losses(*build(MethodConfig("er")))
    engine, stretch = build(MethodConfig("er"), compile=True)
    assert losses(engine, stretch) == pytest.approx(plain, rel=1e-3)

    def run(engine: Engine, steps: range) -> None:
        for step in steps:
            engine.step(stretch[0], step)

    torch._dynamo.reset()
    whole, _ = build(MethodConfig("er"), compile=True)
    run(whole, range(4))
    torch._dynamo.reset()
    first, _ = build(MethodConfig("er"), compile=True)
    run(first, range(1))
    torch._dynamo.reset()
    second, _ = build(MethodConfig("er"), compile=True)
    second.restore(first.state())
    run(second, range(1, 4))
    assert digest(whole.model.state_dict()) == digest(second.model.state_dict())
