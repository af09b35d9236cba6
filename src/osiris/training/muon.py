"""Muon: conv filters are stepped along the nearest orthogonal matrix of their momentum, everything else by AdamW.

With a few hundred steps per task this learns more per step than SGD or AdamW alone (Jordan et al. 2024; filters keep
their norm, as in airbench).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

ADAMW_SCALE = 0.02
"""The learning rate of AdamW as a part of that of the filters."""
BETAS, EPSILON = (0.9, 0.99), 1e-8
ITERATIONS, COEFFICIENTS = 3, (3.4445, -4.7750, 2.0315)
"""Of the Newton-Schulz iteration, as tuned by its authors."""


def orthogonalise(matrix: Tensor) -> Tensor:
    """Approximately U V^T of the singular value decomposition U S V^T, by matrix products alone."""
    tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if tall else matrix
    x = x / (x.norm() + 1e-7)
    a, b, c = COEFFICIENTS
    for _ in range(ITERATIONS):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if tall else x


class Muon(torch.optim.Optimizer):
    """As the other optimisers, a step where `found_inf` is set changes neither parameters nor state."""

    _step_supports_amp_scaling = True
    found_inf: Tensor | None = None
    grad_scale: Tensor | None = None

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float, momentum: float, weight_decay: float) -> None:
        groups: dict[str, list[nn.Parameter]] = {"filters": [], "matrices": [], "vectors": []}
        for p in parameters:
            # The stem, with three input channels, is AdamW's: whitening filters have a scale of their own.
            groups["filters" if p.ndim == 4 and p.shape[1] > 3 else "matrices" if p.ndim > 1 else "vectors"].append(p)
        decays = {"filters": 0.0, "matrices": weight_decay, "vectors": 0.0}
        scales = {"filters": 1.0, "matrices": ADAMW_SCALE, "vectors": ADAMW_SCALE}
        rows = [
            {"params": group, "kind": kind, "weight_decay": decays[kind], "scale": scales[kind]}
            for kind, group in groups.items()
            if group
        ]
        super().__init__(rows, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        assert closure is None
        for group in self.param_groups:
            update = self._step_filters if group["kind"] == "filters" else self._step_adamw
            for parameter in group["params"]:
                if parameter.grad is not None:
                    gradient = parameter.grad if self.grad_scale is None else parameter.grad / self.grad_scale
                    fine = torch.ones((), device=parameter.device) if self.found_inf is None else 1 - self.found_inf
                    update(parameter, torch.nan_to_num(gradient, 0.0, 0.0, 0.0), fine.squeeze(), group)

    def _step_filters(self, parameter: Tensor, gradient: Tensor, fine: Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state["momentum_buffer"] = torch.zeros_like(parameter)
        momentum = state["momentum_buffer"]
        updated = group["momentum"] * momentum + gradient
        momentum.copy_(torch.where(fine > 0, updated, momentum))
        direction = orthogonalise((gradient + group["momentum"] * updated).flatten(1)).view_as(parameter)
        stepped = parameter * (len(parameter) ** 0.5 / (parameter.norm() + 1e-7)) - group["lr"] * direction
        parameter.copy_(torch.where(fine > 0, stepped, parameter))

    def _step_adamw(self, parameter: Tensor, gradient: Tensor, fine: Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state["step"] = torch.zeros((), device=parameter.device)
            state["first"], state["second"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
        state["step"] += fine
        count = state["step"].clamp(min=1)
        state["first"].lerp_(gradient, (1 - BETAS[0]) * fine)
        state["second"].lerp_(gradient.square(), (1 - BETAS[1]) * fine)
        scale = state["second"].sqrt().div_((1 - BETAS[1] ** count).sqrt()).add_(EPSILON)
        parameter.mul_(1 - group["lr"] * group["weight_decay"] * fine)
        parameter.sub_(state["first"] / scale * (group["lr"] * fine / (1 - BETAS[0] ** count)))
