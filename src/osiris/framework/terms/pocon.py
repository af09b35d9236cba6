"""POCON: an expert learns the current task freely, and f follows snapshots of the expert and of itself (Sec. 3.3)."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from torch import Tensor

from osiris.errors import UserError
from osiris.framework import losses
from osiris.framework.options import Count
from osiris.framework.representations import Frozen, Networks, Representations, copy_state
from osiris.framework.terms.base import StepContext, TaskContext, Term, X
from osiris.models.heads import adapter
from osiris.randomness import scoped

if TYPE_CHECKING:
    from osiris.framework.methods import Method


class _Snapshots(Term):
    """The common part of the two terms of POCON: a snapshot every `interval` steps and at the end of each task."""

    spaces: ClassVar[frozenset[str]] = frozenset()
    interval: Count | None = None
    """Steps between snapshots (the paper's ds: 2000 on CIFAR-100, 4000 on Tiny-ImageNet); None: a quarter of a task."""

    @property
    def needs_past(self) -> bool:
        return True

    def check_stream(self, method: Method) -> None:
        if method.boundaries == "none" and (method.past_model or "").startswith("ema"):
            raise UserError(f"{self.kind} follows snapshots: use --past-model snapshot:N.")

    @abstractmethod
    def snapshot(self, context: TaskContext) -> None: ...

    def due(self, context: TaskContext) -> bool:
        """Whether a snapshot follows this step. The last quarter of a task ends with its last step."""
        if context.task == 0 or context.stream:  # a stream says itself when
            return False
        if self.interval is not None:
            return context.step % self.interval == 0
        return 4 * context.step // context.steps != 4 * (context.step - 1) // context.steps

    def after_step(self, context: TaskContext) -> None:
        if self.due(context) and context.step < context.steps:
            self.snapshot(context)

    def end_task(self, context: TaskContext) -> None:
        """Take the snapshot of the last step. `after_step` does not: a second one would make the expert's equal f."""
        self.snapshot(context)


class Expert(_Snapshots):
    r"""Plasticity: an expert phi is trained by L^SSL on X alone, and f follows its snapshot.

    L^SSL(X; phi, its projector) + ||m(f(v)) - phi_bar(v)||^2 on normalised encoder outputs. At each snapshot
    phi_bar <- phi, phi <- f, and the optimiser's state of phi is zeroed (momentum, moments and counts). At the end of
    task 1: phi, phi_bar <- f, projector <- g.
    """

    kind: ClassVar[str] = "expert"
    formula: ClassVar[str] = "NTX(q φ(X)) + mean ‖m f(X) − φ*(X)‖²"
    stores: ClassVar[str] = "expert"
    symbols: ClassVar[Mapping[str, str]] = {"expert": "φ", "projector": "q", "expert_past": "φ*", "adapter": "m"}

    def attach(self, networks: Networks, seed: int) -> None:
        self.expert = copy.deepcopy(networks.encoder)
        self.projector = copy.deepcopy(networks.heads["g"])
        self.expert_past = Frozen(networks.encoder)
        with scoped(seed, "init.adapter.expert"):
            self.adapter = adapter(networks.features)

    def loss(self, rep: Representations, context: StepContext) -> Tensor:
        plasticity = rep.networks.objective(rep, (X,), context.tau, encoder=self.expert, head=self.projector)
        return plasticity + losses.match(rep(X, head=self.adapter), rep(X, head=(), encoder=self.expert_past))

    def snapshot(self, context: TaskContext) -> None:
        if context.task == 0:
            copy_state(context.networks.heads["g"], self.projector)
            copy_state(context.networks.encoder, self.expert)
        self.expert_past.update(self.expert)
        copy_state(context.networks.encoder, self.expert)
        for parameter in self.expert.parameters():
            for value in context.optimiser.state.get(parameter, {}).values():
                if isinstance(value, Tensor):
                    value.zero_()


class Snapshot(_Snapshots):
    r"""Stability: ||n(f(v)) - f_bar(v)||^2 on normalised encoder outputs, f_bar a recent snapshot of f."""

    kind: ClassVar[str] = "snapshot"
    formula: ClassVar[str] = "mean ‖n f(X) − f*(X)‖²"
    stores: ClassVar[str] = "f*"
    symbols: ClassVar[Mapping[str, str]] = {"encoder_past": "f*", "adapter": "n"}

    def attach(self, networks: Networks, seed: int) -> None:
        self.encoder_past = Frozen(networks.encoder)
        with scoped(seed, "init.adapter.past"):
            self.adapter = adapter(networks.features)

    def loss(self, rep: Representations, context: StepContext) -> Tensor:
        return losses.match(rep(X, head=self.adapter), rep(X, head=(), encoder=self.encoder_past))

    def snapshot(self, context: TaskContext) -> None:
        self.encoder_past.update(context.networks.encoder)
