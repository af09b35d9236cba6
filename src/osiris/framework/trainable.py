"""A method ready for training: networks, terms with their state, memory, and the scalar loss of a step.

L = L_current(X) + lambda_1 L_cross(X, Y) + lambda_2 L_past(X, Y, f*, g*)        (Eq. of the framework, Sec. 3.3)
"""

from __future__ import annotations

import copy
from dataclasses import replace

import torch
from torch import Tensor, nn

from osiris.framework.methods import Method
from osiris.framework.representations import Networks, Representations, copy_state
from osiris.framework.terms import Contrast, StepContext, StoringTerm, Storyboard, TaskContext, Term, X, Y
from osiris.memory import memory_class
from osiris.models.config import ProjectorConfig


class TrainableMethod(nn.Module):
    """All state of a method besides the optimiser. In the first task every method is ft, bit for bit."""

    def __init__(
        self,
        method: Method,
        encoder: nn.Module,
        projector: ProjectorConfig,
        memory_size: int = 500,
        image_shape: tuple[int, int, int] = (3, 32, 32),
        task_count: int = 20,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.method = method
        self.first: list[tuple[str, Term, float]] = [("current", Contrast(X, space="g"), 1.0)]
        self.later = [(name, copy.deepcopy(term), weight) for name, term, weight in method.weighted(task_count)]
        terms = [term for _, term, _ in self.later]
        needs = frozenset(need for term in terms for need in (*term.needs, *term.spaces))
        together = tuple(dict.fromkeys(name for term in terms if "g" in term.spaces for name in term.inputs))
        objective = copy.deepcopy(method.objective)
        self.networks = Networks(encoder, projector, seed, needs, objective, together, image_shape)
        for term in terms:
            term.attach(self.networks, seed)
        self.terms = nn.ModuleDict({name.replace(".", "_"): term for name, term, _ in self.later})
        self.storing = [term for term in terms if isinstance(term, StoringTerm)]
        fields = [field for term in self.storing for field in term.memory_fields.items()]
        widths = {name: self.networks.width(head) for name, head in fields}
        self.short = next((term for term in terms if isinstance(term, Storyboard)), None)
        """In a stream: the term whose short memory X comes from."""
        self.acting: list[tuple[str, Term, float]] | None = None
        """In a stream: the terms of the present step."""
        self.memory = memory_class(method.memory)(memory_size, image_shape, widths, task_count)

    def active(self, task: int) -> list[tuple[str, Term, float]]:
        """(logged name, term, weight) of the terms of a task; in a stream of those that have what they need."""
        if self.acting is not None:
            return self.acting
        return self.first if task == 0 else self.later

    def prepare(self, images: int, past: bool) -> None:
        """Before a step of a stream with |X| `images`: a term acts as soon as the memory holds Y and, if it uses f* or
        g*, there is a `past`. Without a term of L_current the loss is that of ft."""
        filled = self.memory.filled >= self.method.replayed(images)
        ready = [one for one in self.later if (filled or Y not in one[1].reads) and (past or not one[1].needs_past)]
        alone = [] if any(name.startswith("current") for name, _, _ in ready) else self.first
        self.acting = alone + ready

    def inputs(self, task: int) -> tuple[str, ...]:
        """The inputs that go through f: X, then Y, then those that terms make."""
        names = dict.fromkeys(name for _, term, _ in self.active(task) for name in term.inputs)
        return tuple(sorted(names, key=lambda name: (name != X, name != Y, name)))

    def replayed(self, task: int, images: int) -> int:
        """|Y| for |X| images; 0 if no term reads the memory."""
        reads_memory = any(Y in term.reads for _, term, _ in self.active(task))
        return self.method.replayed(images) if reads_memory else 0

    def mixes(self, task: int) -> bool:
        """Whether a term makes an input of X and Y."""
        return any(not {X, Y}.issuperset(term.inputs) for _, term, _ in self.active(task))

    def counts(self, task: int, images: int, replayed: int) -> dict[str, int]:
        """The number of images of each input, over all processes."""
        made = {name: replayed for name in self.inputs(task)}  # inputs that terms make have as many as Y
        return made | {X: images, Y: replayed}

    def fields(self, rep: Representations, task: int) -> dict[str, Tensor]:
        """The values that the memory stores with the images of X. In the first task, embeddings of g take the place of
        those of h, which becomes a copy of g after it."""
        fields = [(term, *field) for term in self.storing for field in term.memory_fields.items()]
        own = task > 0 or self.acting is not None
        return {name: term.entry(rep, head if own else "g").detach() for term, name, head in fields}

    def rewritten(self, rep: Representations, context: StepContext) -> dict[str, Tensor]:
        """New values of the fields that the memory stores, for the images of Y."""
        active = [term for _, term, _ in self.active(context.task)]
        parts = [term.rewritten(rep, context) for term in self.storing if term in active]
        return {name: value.detach() for part in parts for name, value in part.items()}

    def make(self, views: dict[str, Tensor], context: StepContext) -> dict[str, Tensor]:
        """The views of all inputs: X, Y, and those that terms make of them."""
        made = dict(views)
        for _, term, _ in self.active(context.task):
            made.update(term.make(views, context))
        return made

    def forward(self, rep: Representations, context: StepContext) -> tuple[Tensor, dict[str, Tensor]]:
        """(L, every term by its logged name, without its weight)."""
        self.networks.objective.start()
        values = {name: term.loss(rep, context) for name, term, _ in self.active(context.task)}
        total = torch.stack([weight * values[name] for name, _, weight in self.active(context.task)]).sum()
        return total, values

    def begin_task(self, context: TaskContext) -> None:
        if context.task == 1 and self.method.copies_g and "h" in self.networks.heads:
            copy_state(self.networks.heads["g"], self.networks.heads["h"])
        self.networks.objective.begin_task(context)
        self._call("begin_task", context)

    def after_step(self, context: TaskContext) -> None:
        self.networks.objective.after_step(context)
        self._call("after_step", context)

    def end_task(self, context: TaskContext) -> None:
        """Terms first (Fisher, snapshots), then f* <- f and g* <- g."""
        self._call("end_task", context)
        self.networks.end_task()

    def _call(self, event: str, context: TaskContext) -> None:
        for _, term, weight in self.later:
            getattr(term, event)(replace(context, weight=weight))
