"""A method, built: its terms with their state, and the one scalar of a step.

L = L_current(X) + lambda_1 L_cross(X, Y) + lambda_2 L_past(X, Y, f*, g*)        (Eq. of the framework, Sec. 3.3)
"""

from __future__ import annotations

import copy
from dataclasses import replace

import torch
from torch import Tensor, nn

from osiris.framework.methods import Method
from osiris.framework.representations import Networks, Representations, copy_state
from osiris.framework.terms import Contrast, Drawn, Term, World, X, Y
from osiris.models import EncoderConfig, ProjectorConfig


class Objective(nn.Module):
    """The weighted terms of a method. In the first task every method is ft, bit for bit."""

    def __init__(self, method: Method, task_count: int, tau: float = 0.1) -> None:
        super().__init__()
        self.method, self.tau = method, tau
        self.first: list[tuple[str, Term, float]] = [("current", Contrast(X, space="g"), 1.0)]
        rows = method.weighted(task_count)
        self.later = [(name, copy.deepcopy(term), weight) for name, term, weight in rows]
        self.terms = nn.ModuleDict({name.replace(".", "_"): term for name, term, _ in self.later})

    def build_networks(
        self, encoder: EncoderConfig, heads: ProjectorConfig, seed: int, images: Tensor | None = None
    ) -> Networks:
        """The networks its terms need, and the state of its terms. `images`: see `build_encoder`."""
        needs = {need for _, term, _ in self.later for need in (*term.needs, *term.spaces)}
        networks = Networks(encoder, heads, seed, frozenset(needs), images)
        for _, term, _ in self.later:
            term.attach(networks, seed)
        return networks

    def active(self, task: int) -> list[tuple[str, Term, float]]:
        return self.first if task == 0 else self.later

    def inputs(self, task: int) -> tuple[str, ...]:
        """What the live encoder must see, without repetition, X before Y before what terms make."""
        names = dict.fromkeys(name for _, term, _ in self.active(task) for name in term.inputs)
        return tuple(sorted(names, key=lambda name: (name != X, name != Y, name)))

    def reads_memory(self, task: int) -> bool:
        return any(Y in term.reads for _, term, _ in self.active(task))

    @property
    def memory_fields(self) -> dict[str, str]:
        """Field -> head, of all terms."""
        return {field: head for _, term, _ in self.later for field, head in term.memory_fields.items()}

    def make(self, views: dict[str, Tensor], drawn: Drawn) -> dict[str, Tensor]:
        made = dict(views)
        for _, term, _ in self.active(drawn.task):
            made.update(term.make(views, drawn))
        return made

    def forward(self, rep: Representations, drawn: Drawn) -> tuple[Tensor, dict[str, Tensor]]:
        """(L, every term by name): weights apply to L, the named terms are as the paper writes them."""
        values = {name: term.loss(rep, drawn, self.tau) for name, term, _ in self.active(drawn.task)}
        total = torch.stack([weight * values[name] for name, _, weight in self.active(drawn.task)]).sum()
        return total, values

    def begin_task(self, world: World) -> None:
        if world.task == 1 and self.method.second_space == "copy" and "h" in world.networks.heads:
            copy_state(world.networks.heads["g"], world.networks.heads["h"])
        self._tell("begin_task", world)

    def after_step(self, world: World) -> None:
        self._tell("after_step", world)

    def end_task(self, world: World) -> None:
        """Terms first (Fisher, snapshots), then f* <- f and g* <- g."""
        self._tell("end_task", world)
        world.networks.end_task()

    def _tell(self, event: str, world: World) -> None:
        for _, term, weight in self.later:
            getattr(term, event)(replace(world, weight=weight))
