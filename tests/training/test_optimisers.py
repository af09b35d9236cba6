"""Optimisers and schedules against plain re-implementations."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from osiris.framework.config import MethodConfig
from osiris.training.config import LearningConfig
from osiris.training.optimisers import build_optimiser, set_learning_rate
from process_jobs import build

STEPS = 6


class Sgd:
    """v <- momentum v + (g + decay theta); theta <- theta - lr v."""

    def __init__(self, config: LearningConfig) -> None:
        self.config, self.velocity = config, 0.0

    def step(self, theta: Tensor, gradient: Tensor) -> Tensor:
        decay = self.config.weight_decay if theta.ndim > 1 else 0
        self.velocity = self.config.momentum * self.velocity + gradient + decay * theta
        return theta - self.config.learning_rate * self.velocity


class Lars(Sgd):
    """You et al. 2017: the rate of a layer is scaled by trust |theta| / |g + decay theta|."""

    def step(self, theta: Tensor, gradient: Tensor) -> Tensor:
        if theta.ndim > 1:
            gradient = gradient + self.config.weight_decay * theta
            gradient = gradient * 0.02 * theta.norm() / gradient.norm()
        self.velocity = self.config.momentum * self.velocity + gradient
        return theta - self.config.learning_rate * self.velocity


class AdamW(Sgd):
    """Loshchilov & Hutter 2019, betas 0.9 and 0.999."""

    def __init__(self, config: LearningConfig) -> None:
        self.config, self.first, self.second, self.count = config, 0.0, 0.0, 0

    def step(self, theta: Tensor, gradient: Tensor) -> Tensor:
        self.count += 1
        self.first = 0.9 * self.first + 0.1 * gradient
        self.second = 0.999 * self.second + 0.001 * gradient.square()
        direction = (self.first / (1 - 0.9**self.count)) / ((self.second / (1 - 0.999**self.count)).sqrt() + 1e-8)
        decay = self.config.weight_decay if theta.ndim > 1 else 0
        return theta * (1 - self.config.learning_rate * decay) - self.config.learning_rate * direction


@pytest.mark.parametrize(("name", "naive"), [("sgd", Sgd), ("lars", Lars), ("adamw", AdamW)])
@pytest.mark.parametrize("momentum", [0.9, 0.0])
def test_steps_are_those_of_the_formula(name: Any, naive: type[Sgd], momentum: float) -> None:
    """Weight decay acts on tensors with more than one dimension only, whatever the optimiser."""
    config = LearningConfig(optimiser=name, learning_rate=0.1, momentum=momentum, weight_decay=0.3)
    module = nn.Linear(3, 4).double()
    optimiser = build_optimiser(module, config)
    references = [(parameter, naive(config)) for parameter in module.parameters()]
    random = torch.Generator().manual_seed(0)
    for _ in range(STEPS):
        expected = []
        for parameter, reference in references:
            parameter.grad = torch.randn(parameter.shape, generator=random, dtype=torch.float64)
            expected.append(reference.step(parameter.detach().clone(), parameter.grad.clone()))
        optimiser.step()
        for (parameter, _), value in zip(references, expected):
            torch.testing.assert_close(parameter.detach(), value, rtol=1e-10, atol=1e-12)


def test_muon_steps_filters_along_an_orthogonal_matrix_and_keeps_their_norm() -> None:
    """Singular values of a step lie near 1 (three iterations reach 0.5 to 1.3); the rest is AdamW at 1/50 the rate."""
    module = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 16, 3, bias=False))
    config = LearningConfig(optimiser="muon", learning_rate=0.1, momentum=0.6, weight_decay=0.0)
    optimiser = build_optimiser(module, config)
    set_learning_rate(optimiser, 0.1)
    before = [parameter.detach().clone() for parameter in module.parameters()]
    for parameter in module.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
    optimiser.step()
    stem, bias, filters = (after.detach() - value for after, value in zip(module.parameters(), before))
    assert stem.abs().max() == pytest.approx(0.002, rel=1e-3) and bias.abs().max() == pytest.approx(0.002, rel=1e-3)
    step = (filters + before[2] - before[2] * 4 / before[2].norm()).flatten(1) / 0.1
    assert torch.linalg.svdvals(step).min() > 0.3 and torch.linalg.svdvals(step).max() < 1.4


@pytest.mark.parametrize("name", ["sgd", "lars", "adamw", "muon"])
def test_frozen_parameters_are_left_out(name: Any) -> None:
    module = nn.Linear(3, 4)
    module.weight.requires_grad_(False)
    optimiser = build_optimiser(module, LearningConfig(optimiser=name))
    assert [p is module.bias for group in optimiser.param_groups for p in group["params"]] == [True]


def test_the_engine_follows_the_schedule_anew_in_each_task() -> None:
    engine, stretch = build(MethodConfig("ft"))
    settings = replace(engine.config.learning, schedule="cosine", warmup_epochs=0.5)
    engine.config = replace(engine.config, learning=settings)
    seen = []
    for phase in stretch[:2]:
        for step in range(phase.steps):
            engine.step(phase, step)
            seen.append([group["lr"] for group in engine.optimiser.param_groups])
    expected = [0.05 * value for value in (1.0, 1.0, 0.75, 0.25)]  # two steps an epoch: one to warm up, three to fall
    assert seen == [[pytest.approx(value)] * 2 for value in expected * 2]
