"""The optimisers. The paper's is SGD; weight decay acts on tensors with more than one dimension only.

All of them honour `found_inf`: where that device flag is set, a step changes neither parameters nor momentum, and
nobody had to ask the device whether the loss was finite.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from osiris.training.config import LearningConfig
from osiris.training.muon import Muon


def build_optimiser(modules: Iterable[nn.Module], config: LearningConfig) -> torch.optim.Optimizer:
    parameters = [p for module in modules for p in module.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]
    if config.optimiser == "adamw":
        return torch.optim.AdamW(groups, lr=config.learning_rate, fused=True)
    if config.optimiser == "muon":
        return Muon(parameters, config.learning_rate, config.momentum, config.weight_decay)
    if config.optimiser == "lars":
        return LARS(groups, config.learning_rate, config.momentum)
    optimiser = torch.optim.SGD(groups, lr=config.learning_rate, momentum=config.momentum, fused=True)
    if config.momentum > 0:
        # A first step that is gated would otherwise leave its momentum undefined. 0.9 * 0 + gradient is the gradient.
        for parameter in parameters:
            optimiser.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    return optimiser


def set_learning_rate(optimiser: torch.optim.Optimizer, value: float) -> None:
    for group in optimiser.param_groups:
        group["lr"] = value * group.get("scale", 1.0)


class LARS(torch.optim.Optimizer):
    """Layer-wise adaptive rate scaling (You et al. 2017): tensors with one dimension are stepped as in SGD."""

    _step_supports_amp_scaling = True
    found_inf: Tensor | None = None
    grad_scale: Tensor | None = None

    def __init__(self, params: Any, lr: float, momentum: float = 0.9, trust: float = 0.02) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "trust": trust, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        assert closure is None
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group)

    def _update(self, parameter: Tensor, group: dict[str, Any]) -> None:
        assert parameter.grad is not None
        gradient = parameter.grad if self.grad_scale is None else parameter.grad / self.grad_scale
        if parameter.ndim > 1:
            gradient = gradient + group["weight_decay"] * parameter
            sizes = parameter.norm(), gradient.norm()
            ratio = group["trust"] * sizes[0] / (sizes[1] + 1e-12)
            gradient = gradient * torch.where((sizes[0] > 0) & (sizes[1] > 0), ratio, torch.ones_like(ratio))
        state = self.state[parameter]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(parameter)
        momentum = state["momentum_buffer"]
        fine = torch.ones((), device=parameter.device) if self.found_inf is None else 1 - self.found_inf
        updated = group["momentum"] * momentum + gradient
        momentum.copy_(torch.where(fine > 0, updated, momentum))
        parameter.sub_(torch.where(fine > 0, group["lr"] * updated, torch.zeros_like(updated)))
