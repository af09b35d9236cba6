"""The terms that methods are made of (Sec. 3.2 and 3.3).

A term says which inputs the live encoder must see (`inputs`), may make an input of its own (`make`), and turns shared
embeddings into a scalar (`loss`). Its options are dataclass fields, so a term prints and serialises as it is written in
the zoo. What it must remember are buffers and submodules, created by `attach` before training starts: they are saved
and resumed with everything else. It learns of the world through `begin_task`, `after_step` and `end_task`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn

from osiris.framework import losses
from osiris.framework.representations import Networks, Representations
from osiris.memory import Memory
from osiris.randomness import derive_seed

X, Y = "X", "Y"
"""The batch of the current task, and the batch drawn from the memory."""

Space = Literal["g", "h"]


@dataclass
class World:
    """What a term may know of its surroundings."""

    networks: Networks
    optimiser: torch.optim.Optimizer
    seed: int
    task: int
    task_count: int
    steps: int
    """Steps in this task."""
    step: int = 0
    """Steps done in this task."""
    learning_rate: float = 0.03
    momentum: float = 0.9
    tau: float = 0.1
    weight: float = 1.0
    """The weight of the term being told."""
    batches: Callable[[str], Iterator[Representations]] | None = None
    """One pass over the task's data in full batches, with a random stream of its own for the given purpose."""


@dataclass
class Drawn:
    """What one step drew besides the views: the slots of Y in the memory, and the key of the step."""

    memory: Memory | None
    slots: Tensor | None
    seed: int
    task: int
    step: int


@dataclass(eq=False)
class Term(nn.Module):
    """One summand of L_current, L_cross or L_past."""

    kind: ClassVar[str] = ""
    needs: ClassVar[frozenset[str]] = frozenset()
    """Frozen networks it uses: past.encoder, past.g."""
    stores: ClassVar[str] = ""
    """What it keeps besides the model, in words."""
    symbols: ClassVar[Mapping[str, str]] = {}
    """How tables and pictures write its own modules, by attribute; others go by their attribute's name."""

    def __post_init__(self) -> None:
        super().__init__()

    @property
    def options(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @property
    def formula(self) -> str:
        """How tables, pictures and the method pages write it (notation: docs/methods/README.md)."""
        return self.kind

    @property
    def inputs(self) -> tuple[str, ...]:
        """Inputs that the live encoder must see."""
        return (X,)

    @property
    def reads(self) -> tuple[str, ...]:
        """Batches that must be drawn for it (X, Y)."""
        return self.inputs

    @property
    def spaces(self) -> frozenset[str]:
        """Heads it uses."""
        return frozenset({getattr(self, "space", "g")})

    @property
    def memory_fields(self) -> dict[str, str]:
        """What it wants stored with each memory image: field -> head of the embedding (of view 1)."""
        return {}

    def default_weight(self, task_count: int) -> float:
        """Its weight where a method leaves it open."""
        return 1.0

    def attach(self, networks: Networks, seed: int) -> None:
        """Create what it must remember."""

    def make(self, views: Mapping[str, Tensor], drawn: Drawn) -> dict[str, Tensor]:
        """Inputs of its own, made of X and Y, with the rows of X."""
        return {}

    def loss(self, rep: Representations, drawn: Drawn, tau: float) -> Tensor:
        raise AssertionError(f"{type(self).__name__} defines no loss")

    def begin_task(self, world: World) -> None: ...

    def after_step(self, world: World) -> None: ...

    def end_task(self, world: World) -> None: ...


@dataclass(eq=False)
class Contrast(Term):
    r"""L_current = L^SSL(X; f, g) and L_past-R = L^SSL(Y; f, h): Eq. 1 within one batch, in one space.

    batch="X+Y" is the full loss on the union, L^ER++ = L^SSL(X u Y; f, g).
    """

    kind: ClassVar[str] = "contrast"
    batch: Literal["X", "Y", "X+Y"] = "X"
    space: Space = "g"

    @property
    def formula(self) -> str:
        return f"NTX_{self.space}({self.batch.replace('+', ' ∪ ')})"

    @property
    def inputs(self) -> tuple[str, ...]:
        return tuple(self.batch.split("+"))

    def loss(self, rep: Representations, drawn: Drawn, tau: float) -> Tensor:
        z = torch.cat([rep(name, head=self.space) for name in self.inputs], dim=1)
        return losses.contrast(z, tau)


@dataclass(eq=False)
class Negatives(Term):
    r"""L^ER+ = L^SSL(X, X u Y; g o f, g o f): the memory adds negatives to the current task's loss."""

    kind: ClassVar[str] = "negatives"
    space: Space = "g"

    @property
    def formula(self) -> str:
        return f"NTX_{self.space}(X; negatives X ∪ Y)"

    @property
    def inputs(self) -> tuple[str, ...]:
        return (X, Y)

    def loss(self, rep: Representations, drawn: Drawn, tau: float) -> Tensor:
        return losses.contrast_with_negatives(rep(X, head=self.space), rep(Y, head=self.space), tau)


@dataclass(eq=False)
class Cross(Term):
    r"""L_cross = 1/2 [L^SSL(X, Y; h o f, h o f) + L^SSL(Y, X; h o f, h o f)] (Sec. 3.2.3, consolidation)."""

    kind: ClassVar[str] = "cross"
    space: Space = "h"

    @property
    def formula(self) -> str:
        return f"½ [CROSS_{self.space}(X → Y) + CROSS_{self.space}(Y → X)]"

    @property
    def inputs(self) -> tuple[str, ...]:
        return (X, Y)

    def loss(self, rep: Representations, drawn: Drawn, tau: float) -> Tensor:
        x, y = rep(X, head=self.space), rep(Y, head=self.space)
        return (losses.cross(x, y, tau) + losses.cross(y, x, tau)) / 2


@dataclass(eq=False)
class Distil(Term):
    r"""L_past-D = 1/2 [L^SSL(X, X; h o f*, h o f) + L^SSL(X, X; h o f, h o f*)] (Sec. 3.2.2).

    The frozen encoder with the *live* h: no gradient into f*, gradient into h from both sides.
    """

    kind: ClassVar[str] = "distil"
    needs: ClassVar[frozenset[str]] = frozenset({"past.encoder"})
    stores: ClassVar[str] = "f*"
    space: Space = "h"
    positive: Literal["same", "other"] = "same"
    """Which view of the image the checkpoint's embedding is the positive of (Eq. 2 reads as `other`)."""

    @property
    def formula(self) -> str:
        now, past = f"{self.space} f(X)", f"{self.space} f*(X)"
        return f"½ [DISTIL({now} → {past}) + DISTIL({past} → {now})]"

    def loss(self, rep: Representations, drawn: Drawn, tau: float) -> Tensor:
        now, past = rep(X, head=self.space), rep(X, head=self.space, encoder="past")
        rows = losses.distil(now, past, tau, self.positive)
        columns = losses.distil(past, now, tau, self.positive)
        return (rows + columns) / 2


@dataclass(eq=False)
class Match(Term):
    r"""DER: 1/|Y| sum ||g(f(y)) - z||^2 on normalised vectors, z stored when y entered the memory, never renewed."""

    kind: ClassVar[str] = "match"
    stores: ClassVar[str] = "embeddings"
    space: Space = "g"

    @property
    def formula(self) -> str:
        return f"mean ‖{self.space} f(Y) − stored z‖²"

    @property
    def inputs(self) -> tuple[str, ...]:
        return (Y,)

    @property
    def memory_fields(self) -> dict[str, str]:
        return {"embedding" if self.space == "g" else f"embedding_{self.space}": self.space}

    def loss(self, rep: Representations, drawn: Drawn, tau: float) -> Tensor:
        assert drawn.memory is not None and drawn.slots is not None
        z, (field,) = rep(Y, head=self.space), self.memory_fields
        return losses.match(z, drawn.memory.field(field, drawn.slots).to(z.dtype))


@dataclass(eq=False)
class Mixed(Term):
    r"""L^LUMP = L^SSL(nu X + (1 - nu) Y; f, g): mixing makes an input, it is not a loss.

    One nu ~ Beta(alpha, alpha) per batch, the same for both views, after augmentation and normalisation.
    """

    kind: ClassVar[str] = "mixed"
    alpha: float = 0.4
    space: Space = "g"

    @property
    def formula(self) -> str:
        return f"NTX_{self.space}(ν X + (1 − ν) Y), ν ~ Beta({self.alpha:g}, {self.alpha:g})"

    @property
    def mixture(self) -> str:
        """Named by its alpha: two mixtures in one method are two inputs."""
        return f"mix({self.alpha:g})"

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.mixture,)

    @property
    def reads(self) -> tuple[str, ...]:
        return (X, Y)

    def nu(self, drawn: Drawn) -> float:
        """Keyed by the step; torch's Beta would consume the global generator."""
        seed = derive_seed(drawn.seed, "mix", drawn.task, drawn.step)
        return float(np.random.default_rng(seed).beta(self.alpha, self.alpha))

    def make(self, views: Mapping[str, Tensor], drawn: Drawn) -> dict[str, Tensor]:
        nu = self.nu(drawn)
        return {self.mixture: nu * views[X] + (1 - nu) * views[Y]}

    def loss(self, rep: Representations, drawn: Drawn, tau: float) -> Tensor:
        return losses.contrast(rep(self.mixture, head=self.space), tau)
