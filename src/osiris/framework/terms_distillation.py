"""The terms that remember more than a frozen encoder: EWC, CaSSLe, POCON (Sec. 3.3)."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from osiris.errors import UserError
from osiris.framework import losses
from osiris.framework.representations import Frozen, Networks, Representations, copy_state
from osiris.framework.terms import Drawn, Term, World, X
from osiris.models import adapter, predictor
from osiris.models.normalisation import frozen_statistics
from osiris.processes import average_gradients
from osiris.randomness import scoped


@dataclass(eq=False)
class Elastic(Term):
    r"""Online EWC: L_past = (Theta - Theta*)^T F (Theta - Theta*) over the encoder, F <- F + normalised(F_t).

    F_t is the mean of squared batch gradients of L^SSL through f and g, one pass over the task at its end; gamma = 1.
    """

    kind: ClassVar[str] = "elastic"
    stores: ClassVar[str] = "F, theta*"
    normaliser: Literal["sum", "max", "l2", "mean"] = "sum"
    """The paper does not say how the Fisher is normalised; `sum` gives unit trace."""

    @property
    def formula(self) -> str:
        return "Σ F (θ − θ*)²"

    @property
    def inputs(self) -> tuple[str, ...]:
        return ()

    @property
    def spaces(self) -> frozenset[str]:
        return frozenset()

    def default_weight(self, task_count: int) -> float:
        """50 for five tasks and 100 for twenty (Appendix B); the paper gives no other counts: 100 there too."""
        return 50.0 if task_count == 5 else 100.0

    def attach(self, networks: Networks, seed: int) -> None:
        for index, parameter in enumerate(networks.encoder.parameters()):
            self.register_buffer(f"fisher_{index}", torch.zeros_like(parameter))
            self.register_buffer(f"anchor_{index}", parameter.detach().clone())

    def _buffers_named(self, name: str, networks: Networks) -> list[Tensor]:
        return [self.get_buffer(f"{name}_{index}") for index, _ in enumerate(networks.encoder.parameters())]

    def loss(self, rep: Representations, drawn: Drawn, tau: float) -> Tensor:
        networks = rep.networks
        anchors, fisher = self._buffers_named("anchor", networks), self._buffers_named("fisher", networks)
        return losses.elastic(networks.encoder.parameters(), anchors, fisher)

    def begin_task(self, world: World) -> None:
        """SGD with momentum diverges beyond 2 (1 + momentum) / lr of curvature: refuse before the run blows up."""
        if not isinstance(world.optimiser, torch.optim.SGD):
            return
        largest = max(float(fisher.max()) for fisher in self._buffers_named("fisher", world.networks))
        curvature = 2 * world.weight * largest
        bound = 2 * (1 + world.momentum) / world.learning_rate
        if world.task > 0 and curvature > bound:
            # One more Fisher is added after each task: leave room for those to come.
            stable = 0.5 * world.weight * bound / curvature * world.task / max(1, world.task_count - 1)
            raise UserError(
                f"ewc would diverge in task {world.task + 1}: weight {world.weight:g} times the largest Fisher entry "
                f"{largest:.3g} gives curvature {curvature:.3g}, and SGD at this learning rate is stable below "
                f"{bound:.3g}. Use --past-weight {stable:.3g} or less, a smaller "
                f"--learning-rate, or --fisher-normaliser sum."
            )

    def end_task(self, world: World) -> None:
        """F <- F + normalised(F_t), theta* <- theta."""
        assert world.batches is not None
        networks = world.networks
        parameters = list(networks.encoder.parameters())
        total = [torch.zeros_like(parameter) for parameter in parameters]
        count = 0
        with frozen_statistics(networks):
            for rep in world.batches("fisher"):
                networks.zero_grad(set_to_none=True)
                losses.contrast(rep(X, head="g"), world.tau).backward()
                average_gradients(networks.parameters())
                for into, parameter in zip(total, parameters):
                    assert parameter.grad is not None
                    into += parameter.grad.square()
                count += 1
        networks.zero_grad(set_to_none=True)
        scale = 1 / (count * normaliser([value / count for value in total], self.normaliser))
        for index, (value, parameter) in enumerate(zip(total, parameters)):
            self.get_buffer(f"fisher_{index}").add_(value * scale)
            self.get_buffer(f"anchor_{index}").copy_(parameter.detach())


def normaliser(fisher: list[Tensor], kind: str) -> Tensor:
    """What a task's Fisher is divided by."""
    flat = torch.cat([value.reshape(-1) for value in fisher])
    value = {"sum": flat.sum, "max": flat.max, "l2": flat.norm, "mean": flat.mean}[kind]()
    return value.clamp(min=torch.finfo(flat.dtype).tiny)


@dataclass(eq=False)
class Predict(Term):
    r"""CaSSLe: L^SSL(X, X; h o g o f, g* o f*): the model predicts what the previous checkpoint embedded.

    One direction, as the paper writes it; the predictor h is fresh at task 2 and then carried on.
    """

    kind: ClassVar[str] = "predict"
    needs: ClassVar[frozenset[str]] = frozenset({"past.encoder", "past.g"})
    stores: ClassVar[str] = "f*, g*"
    symbols: ClassVar[Mapping[str, str]] = {"predictor": "p"}
    positive: Literal["same", "other"] = "same"
    symmetric: bool = False
    """Also contrast targets against predictions."""
    keep_other: bool = False
    """Keep the image's other view in the denominator, as the original code does."""
    batch_norm: bool = False
    """BatchNorm in the predictor."""

    @property
    def formula(self) -> str:
        forth, back = "DISTIL(p g f(X) → g* f*(X))", "DISTIL(g* f*(X) → p g f(X))"
        return f"½ [{forth} + {back}]" if self.symmetric else forth

    def attach(self, networks: Networks, seed: int) -> None:
        config = networks.projector_config
        with scoped(seed, "init.predictor"):
            self.predictor = predictor(config.projector_output, config.projector_hidden, self.batch_norm)

    def loss(self, rep: Representations, drawn: Drawn, tau: float) -> Tensor:
        prediction, target = rep(X, head=("g", self.predictor)), rep(X, head="past.g", encoder="past")
        value = losses.distil(prediction, target, tau, self.positive, self.keep_other)
        if self.symmetric:
            value = (value + losses.distil(target, prediction, tau, self.positive, self.keep_other)) / 2
        return value


@dataclass(eq=False)
class _Snapshots(Term):
    """What the two halves of POCON share: a snapshot every `interval` steps and at each task end."""

    interval: int | None = None
    """Steps between snapshots (the paper's ds: 2000 on CIFAR-100, 4000 on Tiny-ImageNet); None: a quarter of a task."""

    @property
    def spaces(self) -> frozenset[str]:
        return frozenset()

    def snapshot(self, world: World) -> None:
        raise AssertionError("defined by the two halves")

    def due(self, world: World) -> bool:
        return world.task > 0 and world.step % (self.interval or max(1, world.steps // 4)) == 0

    def after_step(self, world: World) -> None:
        if self.due(world):
            self.snapshot(world)

    def end_task(self, world: World) -> None:
        """Not twice at one step: a second snapshot would replace the expert's by f itself."""
        if not self.due(world):
            self.snapshot(world)


@dataclass(eq=False)
class Expert(_Snapshots):
    r"""POCON's plasticity: an expert phi is trained by L^SSL on X alone, and f follows its snapshot.

    L^SSL(X; phi, its projector) + ||m(f(v)) - phi_bar(v)||^2 on normalised encoder outputs. At each snapshot
    phi_bar <- phi, phi <- f, and phi's momentum is zeroed. At the end of task 1: phi, phi_bar <- f, projector <- g.
    """

    kind: ClassVar[str] = "expert"
    stores: ClassVar[str] = "expert"
    symbols: ClassVar[Mapping[str, str]] = {"expert": "φ", "projector": "q", "expert_past": "φ*", "adapter": "m"}

    @property
    def formula(self) -> str:
        return "NTX(q φ(X)) + mean ‖m f(X) − φ*(X)‖²"

    def attach(self, networks: Networks, seed: int) -> None:
        self.expert = copy.deepcopy(networks.encoder)
        self.projector = copy.deepcopy(networks.heads["g"])
        self.expert_past = Frozen(networks.encoder)
        with scoped(seed, "init.adapter.expert"):
            self.adapter = adapter(networks.encoder_config.features)

    def loss(self, rep: Representations, drawn: Drawn, tau: float) -> Tensor:
        plasticity = losses.contrast(rep(X, head=self.projector, encoder=self.expert), tau)
        return plasticity + _follow(rep, self.adapter, self.expert_past)

    def snapshot(self, world: World) -> None:
        if world.task == 0:
            copy_state(world.networks.heads["g"], self.projector)
            copy_state(world.networks.encoder, self.expert)
        self.expert_past.update(self.expert)
        copy_state(world.networks.encoder, self.expert)
        for parameter in self.expert.parameters():
            for value in world.optimiser.state.get(parameter, {}).values():
                if isinstance(value, Tensor) and value.shape == parameter.shape:
                    value.zero_()


@dataclass(eq=False)
class Snapshot(_Snapshots):
    r"""POCON's stability: ||n(f(v)) - f_bar(v)||^2 on normalised encoder outputs, f_bar a recent snapshot of f."""

    kind: ClassVar[str] = "snapshot"
    stores: ClassVar[str] = "f*"
    symbols: ClassVar[Mapping[str, str]] = {"encoder_past": "f*", "adapter": "n"}

    @property
    def formula(self) -> str:
        return "mean ‖n f(X) − f*(X)‖²"

    def attach(self, networks: Networks, seed: int) -> None:
        self.encoder_past = Frozen(networks.encoder)
        with scoped(seed, "init.adapter.past"):
            self.adapter = adapter(networks.encoder_config.features)

    def loss(self, rep: Representations, drawn: Drawn, tau: float) -> Tensor:
        return _follow(rep, self.adapter, self.encoder_past)

    def snapshot(self, world: World) -> None:
        self.encoder_past.update(world.networks.encoder)


def _follow(rep: Representations, adapter: nn.Module, target: Frozen) -> Tensor:
    """Mean squared distance of adapter(f(v)) from the snapshot's features, both normalised, over the global batch."""
    predicted = rep(X, head=adapter)
    return losses.match(predicted, rep.share(rep.features(X, encoder=target), X))
