"""Trace one step of a method in its second task, on a tiny model: what its terms read, and where gradients go.

Nothing here depends on the name of a method, so tables and pictures include new terms without changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from osiris.framework.methods import Method
from osiris.framework.objectives import Objective
from osiris.framework.representations import Frozen, Networks, Representations
from osiris.framework.terms import StepContext, Term, X, Y
from osiris.framework.trainable import TrainableMethod
from osiris.models.config import EncoderConfig, ProjectorConfig
from osiris.models.encoder import build_encoder
from osiris.randomness import generator

ENCODER = EncoderConfig(width=4, blocks=(1, 1, 1, 1))
PROJECTOR = ProjectorConfig(projector_hidden=32, projector_output=8)
IMAGES, SIZE = 8, 8
"""|X| and the side of the images: small, and divisible by four for |Y| = 3/4 |X|."""


@dataclass(frozen=True)
class Path:
    """The networks between images and a term: `X -> f -> g`, `X -> f* -> h`."""

    source: str
    encoder: str
    heads: tuple[str, ...]
    frozen: tuple[str, ...] = ()
    """The frozen ones among them."""


@dataclass(frozen=True)
class Traced:
    """What a term does, as measured."""

    name: str
    """The logged name: current, cross, past, past.distil."""
    kind: str
    formula: str
    weight: float
    paths: tuple[Path, ...]
    stored: tuple[str, ...]
    """What it reads besides the outputs of networks: stored embeddings, its own buffers."""
    reaches: tuple[str, ...]
    """Networks that receive a gradient from it."""
    learns_from: tuple[str, ...]
    """Images (X, Y) that its gradient depends on."""

    @property
    def role(self) -> str:
        return self.name.split(".")[0]


@contextmanager
def one_thread() -> Iterator[None]:
    """Use one thread for small measurements: several threads on a busy machine can take minutes."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Scene:
    """A method in its second task: tiny networks, random images, a full memory, in float64."""

    def __init__(self, method: Method, task_count: int = 20) -> None:
        encoder = build_encoder(ENCODER)
        slots = max(IMAGES, method.replayed(IMAGES))
        self.model = TrainableMethod(method, encoder, PROJECTOR, slots, (3, SIZE, SIZE), task_count).double()
        self.model.memory.advance(slots)
        self.networks = self.model.networks
        self.views: dict[str, Tensor] = {}
        for part in ("weights", "past", "X", "Y"):
            self.redraw(part, 0)

    @torch.no_grad()
    def redraw(self, part: str, version: int) -> None:
        """Draw other weights, other images, or another past (frozen networks, buffers, stored embeddings)."""
        random = generator(version, f"scene.{part}")
        if part in (X, Y):
            count = IMAGES if part == X else self.model.replayed(1, IMAGES)
            self.views[part] = torch.randn(2, count, 3, SIZE, SIZE, generator=random, dtype=torch.float64)
            return
        for name, value in [*self.model.named_parameters(), *self.model.named_buffers()]:
            kept = "running" in name or ("objective" in name and part == "past")  # moving averages are not the past
            if value.is_floating_point() and value.requires_grad == (part == "weights") and not kept:
                inputs = value.numel() / (len(value) if value.ndim else 1)
                value.copy_(torch.randn(value.shape, generator=random, dtype=torch.float64) / inputs**0.5)

    def represent(self) -> tuple[Representations, StepContext]:
        replayed = self.model.replayed(1, IMAGES)
        context = StepContext(self.model.memory, torch.arange(replayed), seed=0, task=1, step=0)
        views = self.model.make(self.views if replayed else {X: self.views[X]}, context)
        return Representations(self.networks, views, encode=self.model.inputs(1)), context

    def loss(self) -> Tensor:
        return self.model(*self.represent())[0]

    def trained(self) -> dict[str, list[nn.Parameter]]:
        """The parameters of the networks that are trained, by symbol."""
        groups = {"f": list(self.networks.encoder.parameters())}
        groups |= {name: list(head.parameters()) for name, head in self.networks.heads.items()}
        for part in (self.networks.objective, *self.model.terms.values()):
            for name, module in part.named_children():
                if not isinstance(module, Frozen):
                    groups.setdefault(_symbol(part, name), []).extend(module.parameters())
        return groups


def symbol_of(module: nn.Module, networks: Networks, term: Term) -> str:
    """f, f*, g, h, g*, or the symbol of a module of the term."""
    named = {networks.encoder: "f", **{head: name for name, head in networks.heads.items()}}
    named |= {frozen: symbol for symbol, frozen in networks.frozen.items()}
    named |= {part: name for name, part in term.named_modules() if name}
    for part in (networks.objective, term):
        named |= {child: _symbol(part, name) for name, child in part.named_children()}
    return named[module]


def _symbol(part: nn.Module, attribute: str) -> str:
    assert isinstance(part, Objective | Term)
    return part.symbols.get(attribute, attribute)


def trace(method: Method, task_count: int = 20) -> tuple[Traced, ...]:
    """Every term of a method in its second task."""
    scene = Scene(method, task_count)
    return tuple(_trace(scene, name, term, weight) for name, term, weight in scene.model.later)


def _trace(scene: Scene, name: str, term: Term, weight: float) -> Traced:
    leaves = {key: value.detach().requires_grad_() for key, value in scene.views.items()}
    scene.views = leaves
    rep, context = scene.represent()
    value, symbol = term.loss(rep, context), scene.networks.objective.symbol
    paths = dict.fromkeys(_path(scene.networks, term, *request) for request in rep.requests)
    buffers = [term.stores or "queue"] if any(True for _ in term.buffers(recurse=False)) else []
    formula = (term.formula or term.kind).format(**term.options)
    return Traced(
        name=name,
        kind=term.kind,
        formula=formula.replace("NTX_g", f"{symbol}_g").replace("NTX(", f"{symbol}("),
        weight=weight,
        paths=tuple(paths),
        stored=(*(f"stored {field}" for field in getattr(term, "memory_fields", ())), *buffers),
        reaches=tuple(symbol for symbol, parameters in scene.trained().items() if _moves(value, parameters)),
        learns_from=tuple(key for key, views in leaves.items() if _moves(value, [views])),
    )


def _path(networks: Networks, term: Term, source: str, encoder: nn.Module, heads: tuple[nn.Module, ...]) -> Path:
    symbols = {module: symbol_of(module, networks, term) for module in (encoder, *heads)}
    frozen = tuple(symbol for module, symbol in symbols.items() if isinstance(module, Frozen))
    return Path(source, symbols[encoder], tuple(symbols[head] for head in heads), frozen)


def _moves(value: Tensor, leaves: list) -> bool:
    if not leaves:
        return False
    gradients = torch.autograd.grad(value, leaves, retain_graph=True, allow_unused=True)
    return any(gradient is not None and bool(gradient.abs().max() > 0) for gradient in gradients)
