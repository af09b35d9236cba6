"""Optimisers and schedules against plain re-implementations."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from osiris.config import LearningConfig
from osiris.framework.config import MethodConfig
from osiris.training import optimisers
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
    """As in solo-learn: g <- (g + decay theta) min(r / lr, 1), r = 0.02 |theta| / (|g| + decay |theta| + 1e-8)."""

    def step(self, theta: Tensor, gradient: Tensor) -> Tensor:
        decay, size = self.config.weight_decay, sum(float(value) ** 2 for value in theta.flatten()) ** 0.5
        length = sum(float(value) ** 2 for value in gradient.flatten()) ** 0.5
        if theta.ndim > 1 and size and length:
            rate = 0.02 * size / (length + decay * size + 1e-8)
            gradient = (gradient + decay * theta) * min(rate / self.config.learning_rate, 1)
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


class Muon(AdamW):
    """Filters: v <- momentum v + g; theta <- theta sqrt(filters) / |theta| - lr orthogonal(g + momentum v).

    Everything else, the stem with three channels included: AdamW with betas 0.9 and 0.99, at 0.02 of the rate.
    """

    def __init__(self, config: LearningConfig) -> None:
        super().__init__(config)
        self.velocity = 0.0

    def step(self, theta: Tensor, gradient: Tensor) -> Tensor:
        if theta.ndim == 4 and theta.shape[1] > 3:
            self.velocity = self.config.momentum * self.velocity + gradient
            direction = orthogonal((gradient + self.config.momentum * self.velocity).flatten(1)).view_as(theta)
            size = sum(float(value) ** 2 for value in theta.flatten()) ** 0.5
            return theta * len(theta) ** 0.5 / (size + 1e-7) - self.config.learning_rate * direction
        self.count += 1
        self.first = 0.9 * self.first + 0.1 * gradient
        self.second = 0.99 * self.second + 0.01 * gradient.square()
        direction = (self.first / (1 - 0.9**self.count)) / ((self.second / (1 - 0.99**self.count)).sqrt() + 1e-8)
        rate, decay = 0.02 * self.config.learning_rate, self.config.weight_decay if theta.ndim > 1 else 0
        return theta * (1 - rate * decay) - rate * direction


def orthogonal(matrix: Tensor) -> Tensor:
    """The same left and right singular vectors; three times s <- 3.4445 s - 4.7750 s^3 + 2.0315 s^5 for each value."""
    left, values, right = torch.linalg.svd(matrix, full_matrices=False)
    values = values / (float((matrix**2).sum()) ** 0.5 + 1e-7)
    for _ in range(3):
        values = torch.stack([3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5 for s in values])
    return left @ torch.diag(values) @ right


@pytest.mark.parametrize("momentum", [0.6, 0.0])
def test_steps_of_muon_are_those_of_the_formula(momentum: float) -> None:
    """More rows than columns and fewer, the stem, a matrix and vectors."""
    config = LearningConfig(optimiser="muon", learning_rate=0.1, momentum=momentum, weight_decay=3.0)
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 5, 2), nn.Conv2d(5, 8, 1), nn.Linear(8, 2)).double()
    optimiser = build_optimiser(module, config)
    set_learning_rate(optimiser, config.learning_rate)
    check_steps(module, optimiser, Muon, config, rtol=1e-5)  # it counts steps in float32


@pytest.mark.parametrize(("name", "naive"), [("sgd", Sgd), ("lars", Lars), ("adamw", AdamW)])
@pytest.mark.parametrize("momentum", [0.9, 0.0])
@pytest.mark.parametrize("fused", [("cpu",), ()])
def test_steps_are_those_of_the_formula(
    name: Any, naive: type[Sgd], momentum: float, fused: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weight decay acts on tensors with more than one dimension only, whatever the optimiser. Gradients get smaller, so
    that LARS comes to its limit; one of them is zero, and one tensor starts at zero."""
    monkeypatch.setattr(optimisers, "FUSED", fused)
    config = LearningConfig(optimiser=name, learning_rate=0.1, momentum=momentum, weight_decay=0.03)
    module = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)).double()
    nn.init.zeros_(module[1].weight)  # pyright: ignore[reportArgumentType]
    check_steps(module, build_optimiser(module, config), naive, config)


def check_steps(
    module: nn.Module, optimiser: Any, naive: type[Sgd], config: LearningConfig, rtol: float = 1e-10
) -> None:
    references = [(parameter, naive(config)) for parameter in module.parameters()]
    random = torch.Generator().manual_seed(0)
    for step in range(STEPS):
        expected = []
        for parameter, reference in references:
            size = 0.0 if step == STEPS - 1 else 0.1**step
            parameter.grad = size * torch.randn(parameter.shape, generator=random, dtype=torch.float64)
            expected.append(reference.step(parameter.detach().clone(), parameter.grad.clone()))
        optimiser.step()
        for (parameter, _), value in zip(references, expected):
            torch.testing.assert_close(parameter.detach(), value, rtol=rtol, atol=rtol)


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


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_without_fused_kernels_a_bad_step_changes_nothing(name: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on MPS. The optimiser is still one of torch's, which ewc asks for."""
    monkeypatch.setattr(optimisers, "FUSED", ())
    module, config = nn.Linear(3, 4), LearningConfig(optimiser=name)
    optimiser = build_optimiser(module, config)
    assert isinstance(optimiser, torch.optim.SGD if name == "sgd" else torch.optim.AdamW)
    assert not any(group["fused"] for group in optimiser.param_groups)

    def values() -> list[Tensor]:
        stored = [value for state in optimiser.state.values() for value in state.values()]
        return [value.detach().clone() for value in (*module.parameters(), *stored)]

    def step(gradient: float, bad: float) -> list[Tensor]:
        for parameter in module.parameters():
            parameter.grad = torch.full_like(parameter, gradient)
        optimiser.found_inf = torch.tensor([bad])  # pyright: ignore[reportAttributeAccessIssue]
        optimiser.step()
        return values()

    before = step(1.0, 0.0)
    torch.testing.assert_close(step(float("nan"), 1.0), before, rtol=0, atol=0)
    assert not torch.equal(step(1.0, 0.0)[0], before[0])


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
