"""What every term has in common, and what it is told about a task and about a step.

A term declares the inputs that must go through f (`inputs`), may make an input of its own (`make`), and turns
shared embeddings into a scalar (`loss`). Its options are dataclass fields, so a term is written in the zoo, on the
command line and in `config.json` in the same way. Its state consists of buffers and submodules that `attach` creates
before training starts, so checkpoints contain it. The training loop calls `begin_task`, `after_step` and `end_task`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from torch import Tensor

from osiris.framework.options import Configurable
from osiris.framework.representations import Networks, Representations
from osiris.memory import Memory

if TYPE_CHECKING:
    from osiris.framework.methods import Method

X, Y = "X", "Y"
"""The batch of the current task, and the batch drawn from the memory."""

Space = Literal["g", "h"]


@dataclass
class TaskContext:
    """What a term may know when a task begins, after each of its steps and when it ends."""

    networks: Networks
    optimiser: torch.optim.Optimizer
    seed: int
    task: int
    task_count: int
    steps: int
    """Steps of this task."""
    steps_per_epoch: int = 1
    step: int = 0
    """Steps completed in this task."""
    stream: bool = False
    """Whether all tasks are learned as one stream: `task` then counts the models of the past so far."""
    learning_rate: float = 0.03
    momentum: float = 0.9
    tau: float = 0.1
    weight: float = 1.0
    """The weight of the term that is called."""
    seen: int = 0
    """In a stream: images seen so far."""
    frames: Callable[[Tensor], Tensor] | None = None
    """In a stream: the unit features f, in evaluation mode, of the images at some positions, without views."""
    batches: Callable[[str], Iterator[Representations]] | None = None
    """One pass over the data of the task in full batches, with a random stream for the given purpose."""


@dataclass
class StepContext:
    """What a term may know about one step besides the embeddings."""

    memory: Memory | None
    slots: Tensor | None
    """The slots of Y in the memory."""
    seed: int
    task: int
    step: int
    tau: float = 0.1
    images: int = 0
    """|X|, over all processes."""
    stream: bool = False
    """Whether `source` in the memory is a position in a stream."""

    def stored(self, field: str, like: Tensor) -> Tensor:
        """The values of a field of the memory for the images of Y, in the dtype of `like`."""
        assert self.memory is not None and self.slots is not None
        return self.memory.field(field, self.slots).to(like.dtype)


class Term(Configurable):
    """One summand of L_current, L_cross or L_past."""

    needs: ClassVar[frozenset[str]] = frozenset()
    """The frozen networks of the previous task that it uses: f*, g*."""
    stores: ClassVar[str] = ""
    """What it stores besides networks, in words for tables."""
    formula: ClassVar[str] = ""
    """Its formula in tables and pictures (notation: docs/methods/README.md); `{space}` is the value of that option."""
    inputs: ClassVar[tuple[str, ...]] = (X,)
    """The inputs that go through f."""
    symbols: ClassVar[Mapping[str, str]] = {}
    """Symbols of its modules in tables and pictures, by attribute; without one, the name of the attribute is shown."""

    @property
    def reads(self) -> tuple[str, ...]:
        """The batches that must be drawn for it: its inputs, or X and Y if it makes an input of them."""
        return self.inputs if set(self.inputs) <= {X, Y} else (X, Y)

    @property
    def needs_past(self) -> bool:
        """Whether it acts in a stream only when there is a model of the past."""
        return bool(self.needs)

    @property
    def spaces(self) -> frozenset[str]:
        """The heads it uses."""
        return frozenset({getattr(self, "space", "g")})

    def default_weight(self, task_count: int) -> float:
        """The weight of the term in a method that does not set one."""
        return 1.0

    def check(self, method: Method) -> None:
        """Raise a UserError if it cannot work in this method."""

    def check_stream(self, method: Method) -> None:
        """Raise a UserError if it cannot work in a stream, which has no end of a task."""

    def attach(self, networks: Networks, seed: int) -> None:
        """Create its modules and buffers."""

    def make(self, views: Mapping[str, Tensor], context: StepContext) -> dict[str, Tensor]:
        """Inputs of its own, made of X and Y, with as many images as Y."""
        return {}

    @abstractmethod
    def loss(self, rep: Representations, context: StepContext) -> Tensor:
        """The value of the term: its equation."""

    def begin_task(self, context: TaskContext) -> None: ...

    def after_step(self, context: TaskContext) -> None: ...

    def end_task(self, context: TaskContext) -> None: ...


class StoringTerm(Term):
    """A term that stores values with each image of the memory (der, minred, cla-r)."""

    memory_fields: ClassVar[Mapping[str, str]] = {}
    """The fields that it stores, and the head whose embeddings they are."""

    def entry(self, rep: Representations, head: str) -> Tensor:
        """The values of a field for the images of X, [N, d] (default: the normalised embeddings of view 1)."""
        return rep(X, head=head)[0]

    def rewritten(self, rep: Representations, context: StepContext) -> dict[str, Tensor]:
        """New values of its fields for the images of Y, after the loss of a step (default: they never change)."""
        return {}
