"""The optimisers. The paper's is SGD; weight decay acts on tensors with more than one dimension only.

All of them honour `found_inf`: where that device flag is set, a step changes neither parameters nor state. So the host
never waits for the device to learn whether the loss was finite.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set
from typing import Any

import torch
from torch import Tensor, nn

from osiris import processes
from osiris.config import LearningConfig
from osiris.framework.objectives import Objective

ADAMW_SCALE = 0.02
"""The learning rate of AdamW as a part of that of the filters, in Muon."""
EPSILON = 1e-8
ITERATIONS, COEFFICIENTS = 3, (3.4445, -4.7750, 2.0315)
"""The Newton-Schulz iteration, as tuned by its authors."""
COUNTS = ("step", "count")
"""Numbers in the state of a parameter, those of torch and ours; everything else there has the parameter's shape."""
FUSED = ("cpu", "cuda")
"""Devices on which the fused optimisers of torch honour `found_inf`; others get those below."""


def build_optimiser(model: nn.Module, config: LearningConfig) -> torch.optim.Optimizer:
    parameters = [p for p in model.parameters() if p.requires_grad]
    objectives = [part for part in model.modules() if isinstance(part, Objective)]
    constant = {p for part in objectives for name in part.constant_rate for p in part.get_submodule(name).parameters()}
    groups = [
        {"params": chosen, "weight_decay": config.weight_decay if matrices else 0.0, "constant": fixed}
        for fixed in (False, True)
        for matrices in (True, False)
        if (chosen := [p for p in parameters if (p.ndim > 1) == matrices and (p in constant) == fixed])
    ]
    fused = all(parameter.device.type in FUSED for parameter in parameters)
    if config.optimiser == "adamw":
        kind = torch.optim.AdamW if fused else GatedAdamW
        return kind(groups, lr=config.learning_rate, fused=fused)
    if config.optimiser == "muon":
        return Muon(parameters, config.learning_rate, config.momentum, config.weight_decay, constant)
    if config.optimiser == "lars":
        return LARS(groups, config.learning_rate, config.momentum)
    kind = torch.optim.SGD if fused else GatedSGD
    optimiser = kind(groups, lr=config.learning_rate, momentum=config.momentum, fused=fused)
    if config.momentum > 0:
        # A first step that is gated would otherwise leave its momentum undefined. 0.9 * 0 + gradient is the gradient.
        for parameter in parameters:
            optimiser.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    return optimiser


def set_learning_rate(optimiser: torch.optim.Optimizer, value: float, constant: float | None = None) -> None:
    """`constant`: the learning rate of the groups that follow no schedule."""
    for group in optimiser.param_groups:
        fixed = group.get("constant", False) and constant is not None
        group["lr"] = (constant if fixed else value) * group.get("scale", 1.0)


def update_parameters(
    optimiser: torch.optim.Optimizer, scaler: torch.amp.GradScaler, parameters: list[nn.Parameter], loss: Tensor
) -> tuple[Tensor, Tensor]:
    """Backward, average over processes, step: (whether the step was finite and done, norm of the gradient)."""
    optimiser.zero_grad(set_to_none=True)
    finite = torch.isfinite(loss.detach())
    # Half precision: the scaler looks at gradients, so an infinite loss must make them undefined (inf - inf + 1).
    spoiled = loss * (loss.detach() - loss.detach() + 1) if scaler.is_enabled() else loss
    scaler.scale(spoiled).backward()
    processes.average_gradients(parameters)
    if scaler.is_enabled():
        scaler.unscale_(optimiser)
    norm = nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
    if scaler.is_enabled():
        # Gradients overflow now and then: the scaler skips such steps and tries a smaller scale. If that does not help,
        # the gradient itself is bad.
        scale = scaler.scale(torch.ones((), device=loss.device))
        finite = finite & (torch.isfinite(norm) | (scale >= 1))
        scaler.step(optimiser)
        scaler.update()
    else:
        finite = finite & torch.isfinite(norm)
        optimiser.found_inf = (~finite).float()  # pyright: ignore[reportAttributeAccessIssue]
        optimiser.step()
    return finite, norm


def restore_optimiser(optimiser: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Load the moments of a saved optimiser; its settings follow from the config."""
    fresh, groups = optimiser.state_dict()["state"], optimiser.state_dict()["param_groups"]
    same = [group["params"] for group in state["param_groups"]] == [group["params"] for group in groups]
    complete = all(set(state["state"][key]) == set(values) for key, values in fresh.items())
    if not same or not complete or not all(isinstance(values, dict) for values in state["state"].values()):
        raise ValueError("its optimiser belongs to other networks")
    optimiser.load_state_dict({"state": state["state"], "param_groups": groups})
    for parameter, values in optimiser.state.items():
        for name, value in values.items():
            shape = () if name in COUNTS else parameter.shape
            if not isinstance(value, Tensor) or value.shape != shape:
                raise ValueError(f"{name} of its optimiser has another shape")


class Gated(torch.optim.Optimizer):
    """An optimiser that honours `found_inf` and undoes the scale of half precision."""

    _step_supports_amp_scaling = True
    found_inf: Tensor | None = None
    grad_scale: Tensor | None = None

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        assert closure is None
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    gradient = parameter.grad if self.grad_scale is None else parameter.grad / self.grad_scale
                    fine = gradient.new_ones(()) if self.found_inf is None else (1 - self.found_inf).to(gradient.dtype)
                    self.update(parameter, gradient, fine.squeeze(), group)

    def update(self, parameter: Tensor, gradient: Tensor, fine: Tensor, group: dict[str, Any]) -> None:
        """Step one parameter; where `fine` is 0, change nothing."""
        raise NotImplementedError

    def momentum(self, parameter: Tensor, gradient: Tensor, fine: Tensor, group: dict[str, Any]) -> Tensor:
        """The momentum after this step; where `fine` is 0, the stored one stays as it is."""
        stored = self.state[parameter].setdefault("momentum_buffer", torch.zeros_like(parameter))
        updated = group["momentum"] * stored + gradient
        stored.copy_(torch.where(fine > 0, updated, stored))
        return updated

    def adamw(self, parameter: Tensor, gradient: Tensor, fine: Tensor, group: dict[str, Any]) -> None:
        """Step by AdamW with the `betas` of the group; where `fine` is 0, a gradient must still be finite."""
        state, betas = self.state[parameter], group["betas"]
        if not state:
            # Not `step`: torch leaves a state of that name on the CPU when it is loaded.
            state["count"] = torch.zeros((), device=parameter.device, dtype=parameter.dtype)
            state["first"], state["second"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
        state["count"] += fine
        count = state["count"].clamp(min=1)
        state["first"].lerp_(gradient, (1 - betas[0]) * fine)
        state["second"].lerp_(gradient.square(), (1 - betas[1]) * fine)
        scale = state["second"].sqrt().div_((1 - betas[1] ** count).sqrt()).add_(EPSILON)
        parameter.mul_(1 - group["lr"] * group["weight_decay"] * fine)
        parameter.sub_(state["first"] / scale * (group["lr"] * fine / (1 - betas[0] ** count)))


class GatedSGD(Gated, torch.optim.SGD):
    """torch.optim.SGD for devices on which the fused one does not honour `found_inf`."""

    def update(self, parameter: Tensor, gradient: Tensor, fine: Tensor, group: dict[str, Any]) -> None:
        updated = self.momentum(parameter, gradient + group["weight_decay"] * parameter, fine, group)
        parameter.sub_(torch.where(fine > 0, group["lr"] * updated, torch.zeros_like(updated)))


class GatedAdamW(Gated, torch.optim.AdamW):
    """torch.optim.AdamW for devices on which the fused one does not honour `found_inf`."""

    def update(self, parameter: Tensor, gradient: Tensor, fine: Tensor, group: dict[str, Any]) -> None:
        self.adamw(parameter, torch.nan_to_num(gradient, 0.0, 0.0, 0.0), fine, group)


class LARS(Gated):
    """Layer-wise adaptive rate scaling as in solo-learn: g <- (g + decay w) min(r / lr, 1), then SGD with momentum.

    r = trust |w| / (|g| + decay |w|). Where |w| or |g| is 0, and for tensors with one dimension, g stays as it is.
    (CaSSLe scales those of one dimension too for swav.)
    """

    def __init__(self, params: Any, lr: float, momentum: float = 0.9, trust: float = 0.02) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "trust": trust, "weight_decay": 0.0})

    def update(self, parameter: Tensor, gradient: Tensor, fine: Tensor, group: dict[str, Any]) -> None:
        if parameter.ndim > 1:
            decay, size, length = group["weight_decay"], parameter.norm(), gradient.norm()
            rate = group["trust"] * size / (length + decay * size + EPSILON)
            scaled = (gradient + decay * parameter) * (rate / group["lr"]).clamp(max=1)
            gradient = torch.where((size > 0) & (length > 0), scaled, gradient)
        updated = self.momentum(parameter, gradient, fine, group)
        parameter.sub_(torch.where(fine > 0, group["lr"] * updated, torch.zeros_like(updated)))


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


class Muon(Gated):
    """Conv filters are stepped along the nearest orthogonal matrix of their momentum, everything else by AdamW.

    With a few hundred steps per task this learns more per step than SGD or AdamW alone (Jordan et al. 2024). Filters
    keep their norm, as in airbench.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        lr: float,
        momentum: float,
        weight_decay: float,
        constant: Set[nn.Parameter] = frozenset(),
    ) -> None:
        """`constant`: parameters whose learning rate follows no schedule."""
        groups: dict[str, list[nn.Parameter]] = {"filters": [], "matrices": [], "vectors": []}
        for p in parameters:
            # The stem, with three input channels, is AdamW's: whitening filters have a scale of their own.
            groups["filters" if p.ndim == 4 and p.shape[1] > 3 else "matrices" if p.ndim > 1 else "vectors"].append(p)
        decays = {"filters": 0.0, "matrices": weight_decay, "vectors": 0.0}
        scales = {"filters": 1.0, "matrices": ADAMW_SCALE, "vectors": ADAMW_SCALE}
        rows = [
            {"params": chosen, "kind": kind, "weight_decay": decays[kind], "scale": scales[kind], "constant": fixed}
            for fixed in (False, True)
            for kind, group in groups.items()
            if (chosen := [p for p in group if (p in constant) == fixed])
        ]
        super().__init__(rows, {"lr": lr, "momentum": momentum, "betas": (0.9, 0.99)})

    def update(self, parameter: Tensor, gradient: Tensor, fine: Tensor, group: dict[str, Any]) -> None:
        step = self._step_filters if group["kind"] == "filters" else self.adamw
        step(parameter, torch.nan_to_num(gradient, 0.0, 0.0, 0.0), fine, group)

    def _step_filters(self, parameter: Tensor, gradient: Tensor, fine: Tensor, group: dict[str, Any]) -> None:
        updated = self.momentum(parameter, gradient, fine, group)
        direction = orthogonalise((gradient + group["momentum"] * updated).flatten(1)).view_as(parameter)
        stepped = parameter * (len(parameter) ** 0.5 / (parameter.norm() + 1e-7)) - group["lr"] * direction
        parameter.copy_(torch.where(fine > 0, stepped, parameter))
