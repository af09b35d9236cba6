"""Table 1 of the paper next to measurements on the code: gradient reach, storage and cost of each method.

The ticks of the paper cannot be derived from gradients alone: by gradient reach ewc leaves the space of g alone and
cassle does not, while the ticks say the opposite. The tables show both and list the differences.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from osiris.framework.cost import Cost, Storage, measure_cost, measure_storage
from osiris.framework.methods import ZOO, Method, find_method
from osiris.framework.tracing import Scene, Traced, one_thread, symbol_of, trace
from osiris.models.config import EncoderConfig, ProjectorConfig

Ticks = tuple[bool, bool, bool]
"""Isolated space for L_current, L_cross, L_past: the columns of Table 1."""
COLUMNS = ("isolated", "cross", "past")
GROUPS = {
    "reference": ("ft", "offline", "d1-only"),
    "replay": ("er", "er+", "er++", "der", "lump", "osiris-r"),
    "distillation": ("ewc", "cassle", "pocon", "osiris-d"),
    "sums": ("readout", "smt"),
    "later": ("pfr", "pnr", "cromo", "minred", "cla-e", "cla-r", "cla-b", "storyboard"),
}
"""The groups of methods in the paper's tables, those that learn by sums, and those that came after it."""
YES, NO = True, False
TICKS: dict[str, Ticks] = {
    "ft": (YES, NO, NO),
    "er": (NO, NO, YES),
    "er+": (NO, YES, YES),
    "er++": (NO, YES, YES),
    "der": (NO, NO, YES),
    "lump": (NO, YES, YES),
    "osiris-r": (YES, YES, YES),
    "ewc": (NO, NO, YES),
    "cassle": (YES, NO, YES),
    "pocon": (YES, NO, YES),
    "osiris-d": (YES, YES, YES),
}
"""Table 1 as printed."""


def group_of(name: str) -> str:
    """reference, replay, distillation, sums or later; `other` for methods that are not in the zoo."""
    return next((group for group, names in GROUPS.items() if name in names), "other")


@dataclass(frozen=True)
class Facts:
    """One row of Table 1 with all measurements."""

    name: str
    group: str
    learns: str
    paper: Ticks | None
    measured: Ticks | None
    """None: it has no losses."""
    terms: tuple[Traced, ...]
    stores: str
    storage: Storage
    cost: dict[str, Cost]

    @property
    def kind(self) -> str:
        """`replay`, `distillation`, both, `sums`, or `-`."""
        if self.storage.sums:
            return "sums"
        replay = ["replay"] if self.storage.slots else []
        distils = self.group == "distillation" or (
            self.group == "later" and ("f*" in self.stores or "f~" in self.stores)
        )
        return " + ".join(replay + (["distillation"] if distils else [])) or "-"

    @property
    def origin(self) -> str:
        """Where the method is from: paper, later, reference, osiris or own."""
        if self.learns != "continual":
            return "reference"
        return {"later": "later", "sums": "osiris", "other": "own"}.get(self.group, "paper")

    @property
    def differences(self) -> tuple[str, ...]:
        """The columns in which the tick of the paper and the measured reach differ."""
        if self.paper is None or self.measured is None:
            return ()
        return tuple(column for column, said, seen in zip(COLUMNS, self.paper, self.measured) if said != seen)


@one_thread()
def facts(name: str, encoder: EncoderConfig, projector: ProjectorConfig, memory_size: int, image_size: int) -> Facts:
    method = find_method(name)
    return Facts(
        name=name,
        group=group_of(name),
        learns=method.learns,
        paper=TICKS.get(name),
        measured=measure_ticks(method) if method.sums is None else None,
        terms=trace(method) if method.sums is None else (),
        stores=stores(method),
        storage=measure_storage(method, encoder, projector, memory_size, (3, image_size, image_size)),
        cost=measure_cost(method),
    )


def all_facts(
    encoder: EncoderConfig, projector: ProjectorConfig, memory_size: int = 500, image_size: int = 32
) -> list[Facts]:
    """The facts about every method of the zoo, in the order of Table 1."""
    return [facts(name, encoder, projector, memory_size, image_size) for name in ZOO]


def stores(method: Method) -> str:
    """What a method stores, in words: `memory, f*`."""
    if method.sums is not None:
        return "sums"
    words = ["memory"] if method.reads_memory else []
    for _, term, _ in method.weighted(20):
        words += sorted(term.needs)
        words += [term.stores] if term.stores else []
    return ", ".join(dict.fromkeys(words)) or "-"


def measure_ticks(method: Method) -> Ticks:
    """Gradient reach, from one step on a tiny GroupNorm model (BatchNorm would join X and Y in its statistics).

    isolated: a projector of L_current learns from X alone: its gradient ignores the memory and the past.
    cross: X and Y meet in one loss: L(X, Y) is not a sum of a function of X and a function of Y.
    past: the gradient of f depends on the memory or on the past.
    """
    scene = Scene(method)
    return _learns_from_x_alone(scene), _mixed_difference(scene) > 1e-9, not _ignores_the_past(scene, "f")


def _learns_from_x_alone(scene: Scene) -> bool:
    rep, context = scene.represent()
    heads: dict[str, None] = {}
    for name, term, _ in scene.model.later:
        if name.split(".")[0] == "current":
            term.loss(rep, context)
            heads |= {symbol_of(head, scene.networks, term): None for _, _, chain in rep.requests for head in chain}
    return any(_ignores_the_past(scene, head) for head in heads if head in scene.trained())


def _gradient(scene: Scene, symbol: str) -> Tensor:
    parameters = scene.trained()[symbol]
    gradients = torch.autograd.grad(scene.loss(), parameters, allow_unused=True)
    parts = [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, gradients)]
    return torch.cat([part.flatten() for part in parts])


def _ignores_the_past(scene: Scene, symbol: str) -> bool:
    """Whether the gradient of a network stays the same with another memory and another past."""
    gradients = []
    for version in (1, 0):
        scene.redraw("Y", version)
        scene.redraw("past", version)
        gradients.append(_gradient(scene, symbol))
    return bool(torch.allclose(*gradients, rtol=1e-9, atol=1e-12))


def _mixed_difference(scene: Scene) -> float:
    """|L(X, Y) - L(X', Y) - L(X, Y') + L(X', Y')|, zero for every sum of separate losses on X and on Y."""
    total = 0.0
    for x in (0, 1):
        for y in (0, 1):
            scene.redraw("X", x)
            scene.redraw("Y", y)
            total += (-1) ** (x + y) * float(scene.loss().detach())
    scene.redraw("X", 0)
    scene.redraw("Y", 0)
    return abs(total)
