"""A method watched for one step of its second task, on a tiny model: what its terms read, and where gradients go.

Nothing here knows a method by name. A new term appears in tables and pictures as soon as it exists.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from osiris.framework.methods import Method
from osiris.framework.objective import Objective
from osiris.framework.representations import Frozen, Head, Networks, Passes, Representations
from osiris.framework.terms import Drawn, Term, X, Y
from osiris.memory import Memory
from osiris.models import EncoderConfig, ProjectorConfig
from osiris.randomness import generator

ENCODER = EncoderConfig(width=4, blocks=(1, 1, 1, 1))
PROJECTOR = ProjectorConfig(projector_hidden=32, projector_output=8)
IMAGES, SIZE = 8, 8
"""|X| and the side of the images: small, and divisible by four for |Y| = 3/4 |X|."""


@dataclass(frozen=True)
class Path:
    """One way from images to a term: `X -> f -> g`, `X -> f* -> h`."""

    source: str
    encoder: str
    heads: tuple[str, ...]
    frozen: tuple[str, ...] = ()
    """Which of them are: no gradient into those."""


@dataclass(frozen=True)
class Traced:
    """A term as it was seen to act."""

    name: str
    """As it is logged: current, cross, past, past.distil."""
    kind: str
    formula: str
    weight: float
    paths: tuple[Path, ...]
    stored: tuple[str, ...]
    """What it compares with besides networks: stored embeddings, its own buffers."""
    reaches: tuple[str, ...]
    """Networks that get gradient from it."""
    learns_from: tuple[str, ...]
    """Images (X, Y) that its gradient depends on."""

    @property
    def role(self) -> str:
        return self.name.split(".")[0]


class Watched(Representations):
    """Representations that note which encoder and heads each term asks for."""

    asked: list[tuple[str, nn.Module, tuple[nn.Module, ...]]]
    _depth: int

    @contextmanager
    def _noted(self, name: str, encoder: nn.Module, heads: tuple[nn.Module, ...]) -> Iterator[None]:
        """Only what a term asks for itself, not what that asks for in turn."""
        self._depth = getattr(self, "_depth", 0)
        if self._depth == 0:
            self.asked = [*getattr(self, "asked", []), (name, encoder, heads)]
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1

    def __call__(self, name: str, head: Head = "g", encoder: str | nn.Module = "live") -> Tensor:
        with self._noted(name, self._encoder(encoder), tuple(self._heads(head))):
            return super().__call__(name, head, encoder)

    def outputs(self, name: str, head: Head = "g", encoder: str | nn.Module = "live") -> Tensor:
        with self._noted(name, self._encoder(encoder), tuple(self._heads(head))):
            return super().outputs(name, head, encoder)

    def features(self, name: str, encoder: str | nn.Module = "live") -> Tensor:
        with self._noted(name, self._encoder(encoder), ()):
            return super().features(name, encoder)


class WatchedMemory(Memory):
    """A full memory that notes which stored fields are read."""

    fields_read: tuple[str, ...] = ()

    def field(self, name: str, slots: Tensor) -> Tensor:
        self.fields_read = (*self.fields_read, name)
        return super().field(name, slots)


@contextmanager
def one_thread() -> Iterator[None]:
    """For work so small that threads would only wait for each other: on a busy machine that takes minutes."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Scene:
    """A method in its second task: tiny networks, random images, a full memory, in float64."""

    def __init__(self, method: Method, task_count: int = 20) -> None:
        self.objective = Objective(method, task_count)
        self.networks = self.objective.build_networks(ENCODER, PROJECTOR, seed=0)
        fields = {name: PROJECTOR.projector_output for name in self.objective.memory_fields}
        self.memory = WatchedMemory(IMAGES, (3, SIZE, SIZE), fields)
        self.memory.advance(IMAGES)
        for module in (self.networks, self.objective, self.memory):
            module.double()
        self.replayed = int(IMAGES * method.replay)
        self.views: dict[str, Tensor] = {}
        for part in ("weights", "past", "X", "Y"):
            self.redraw(part, 0)

    @torch.no_grad()
    def redraw(self, part: str, version: int) -> None:
        """Other weights, other images, or another past (frozen networks, buffers, stored embeddings)."""
        random = generator(version, f"scene.{part}")
        if part in (X, Y):
            count = IMAGES if part == X else self.replayed
            self.views[part] = torch.randn(2, count, 3, SIZE, SIZE, generator=random, dtype=torch.float64)
            return
        named = [
            *self.networks.named_parameters(),
            *self.objective.named_parameters(),
            *self.objective.named_buffers(),
            *self.memory.named_buffers(),
        ]
        for _, value in named:
            if value.is_floating_point() and value.requires_grad == (part == "weights"):
                inputs = value.numel() / (len(value) if value.ndim else 1)
                value.copy_(torch.randn(value.shape, generator=random, dtype=torch.float64) / inputs**0.5)

    def represent(self, passes: Passes | None = None) -> tuple[Watched, Drawn]:
        drawn = Drawn(self.memory, torch.arange(self.replayed), seed=0, task=1, step=0)
        views = self.views if self.objective.reads_memory(1) else {X: self.views[X]}
        made = self.objective.make(views, drawn)
        return Watched(self.networks, made, encode=self.objective.inputs(1), passes=passes), drawn

    def loss(self, passes: Passes | None = None) -> Tensor:
        rep, drawn = self.represent(passes)
        return self.objective(rep, drawn)[0]

    def trained(self) -> dict[str, list[nn.Parameter]]:
        """The networks that are trained, by symbol."""
        found = {"f": list(self.networks.encoder.parameters())}
        found |= {name: list(head.parameters()) for name, head in self.networks.heads.items()}
        for _, term, _ in self.objective.later:
            for name, module in term.named_children():
                if not isinstance(module, Frozen):
                    found.setdefault(term.symbols.get(name, name), []).extend(module.parameters())
        return found


def symbol_of(module: nn.Module, networks: Networks, term: Term) -> str:
    """f, f*, g, h, g*, or what the term calls its own module."""
    named = {networks.encoder: "f", **{head: name for name, head in networks.heads.items()}}
    named |= {frozen: "f*" if name == "encoder" else f"{name}*" for name, frozen in networks.past.items()}
    named |= {part: name for name, part in term.named_modules() if name}
    named |= {child: term.symbols.get(name, name) for name, child in term.named_children()}
    return named[module]


def trace(method: Method, task_count: int = 20) -> tuple[Traced, ...]:
    """Every term of a method in its second task."""
    scene = Scene(method, task_count)
    return tuple(_trace(scene, name, term, weight) for name, term, weight in scene.objective.later)


def _trace(scene: Scene, name: str, term: Term, weight: float) -> Traced:
    leaves = {key: value.detach().requires_grad_() for key, value in scene.views.items()}
    scene.views, scene.memory.fields_read = leaves, ()
    rep, drawn = scene.represent()
    value = term.loss(rep, drawn, scene.objective.tau)
    paths = dict.fromkeys(_path(scene.networks, term, *asked) for asked in getattr(rep, "asked", []))
    buffers = [term.stores] if any(True for _ in term.buffers(recurse=False)) else []
    groups = scene.trained()
    return Traced(
        name=name,
        kind=term.kind,
        formula=term.formula,
        weight=weight,
        paths=tuple(paths),
        stored=(*dict.fromkeys(f"stored {field}" for field in scene.memory.fields_read), *buffers),
        reaches=tuple(symbol for symbol, parameters in groups.items() if _moves(value, parameters)),
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
