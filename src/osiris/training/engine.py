"""Networks, terms, memory and optimiser of a run, and one training step from images to update."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from osiris import processes
from osiris.augment import TwoViews
from osiris.data.base import Benchmark
from osiris.errors import UserError
from osiris.memory import Memory
from osiris.methods import Method
from osiris.objective import Objective
from osiris.randomness import generator
from osiris.representations import Passes, Representations
from osiris.terms import Drawn, World, X, Y
from osiris.training.config import Config
from osiris.training.optimisers import build_optimiser, set_learning_rate
from osiris.training.plan import Phase, batch_indices, learning_rate


def choose_device(name: str) -> torch.device:
    """cuda, then mps, then cpu; with several processes each takes the CUDA device of its local rank."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError(f"unknown device {name!r}; use auto, cpu, cuda, cuda:N or mps.") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UserError(f"--device {name}: this machine or this build of torch has no CUDA; use --device cpu.")
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise UserError("--device mps: no Apple GPU here; use --device cpu.")
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    return device


@dataclass
class StepResult:
    """What a step leaves behind, still on the device: nothing here waits for it."""

    values: dict[str, Tensor]
    """loss, every term by name, and gradient_norm."""
    finite: Tensor
    images: int


class Engine:
    """All state of a run. `state()` and `restore()` carry it through a checkpoint to the same bits."""

    def __init__(self, config: Config, method: Method, benchmark: Benchmark, device: torch.device) -> None:
        self.config, self.method, self.benchmark, self.device = config, method, benchmark, device
        self.objective = Objective(method, benchmark.task_count, config.learning.tau)
        self.networks = self.objective.build_networks(config.encoder, config.projector, config.seed)
        fields = {name: config.projector.projector_output for name in self.objective.memory_fields}
        self.memory = Memory(config.learning.memory_size, benchmark.train.images.shape, fields)
        for module in (self.networks, self.objective, self.memory):
            module.to(device)
        self.networks.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
        self.optimiser = build_optimiser([self.networks, self.objective], config.learning)
        self.two_views = TwoViews(benchmark.mean, benchmark.std)
        self.scaler = torch.amp.GradScaler(device.type, enabled=config.engine.precision == "16")
        if config.engine.compile:
            self.networks.encoder.compile()

    def step(self, phase: Phase, step: int, passes: Passes | None = None) -> StepResult:
        """Read memory, make views, embed once, sum the terms, update, then offer X to the memory."""
        config, task = self.config, phase.task
        indices = batch_indices(phase, config.seed, step)
        slots = self._read_slots(len(indices), task, step)
        drawn = Drawn(self.memory, slots, config.seed, task, step)
        views = {X: self._views_of_x(indices, task, step)}
        if slots is not None:
            views[Y] = self._views_of_y(slots, task, step)
        views = self.objective.make(views, drawn)
        # What a term makes has the rows of X.
        counts = {name: len(indices) for name in views} | {Y: 0 if slots is None else len(slots)}
        rep = self.represent(views, counts, self.objective.inputs(task), passes)
        loss, values = self.objective(rep, drawn)
        # Before the update: the embedding of this step's model (der).
        fields = {name: rep(X, head="g")[0].detach() for name in self.memory.fields}
        finite, norm = self._update(loss, phase, step)
        self._offer(indices, task, step, fields)
        detached = {name: value.detach() for name, value in values.items()}
        return StepResult({"loss": loss.detach(), **detached, "gradient_norm": norm}, finite, len(indices))

    def represent(
        self,
        views: dict[str, Tensor],
        counts: dict[str, int],
        encode: tuple[str, ...] = (X,),
        passes: Passes | None = None,
    ) -> Representations:
        precision = self.config.engine.precision
        autocast = None
        if precision != "32":
            kind = torch.bfloat16 if precision == "bf16" else torch.float16
            autocast = lambda: torch.autocast(self.device.type, kind)  # noqa: E731
        return Representations(self.networks, views, counts, encode, self.config.engine.micro_batch, autocast, passes)

    def _read_slots(self, count: int, task: int, step: int) -> Tensor | None:
        if not self.objective.reads_memory(task):
            return None
        wanted = int(count * self.method.replay)
        return self.memory.sample(wanted, generator(self.config.seed, "memory.read", task, step))

    def _views_of_x(self, indices: Tensor, task: int, step: int, purpose: str = "augment.x") -> Tensor:
        rows = processes.share(len(indices))
        images = self.benchmark.train.images.take(indices[rows]).to(self.device, non_blocking=True)
        return self.two_views(images, generator(self.config.seed, purpose, task, step), rows, len(indices))

    def _views_of_y(self, slots: Tensor, task: int, step: int) -> Tensor:
        rows = processes.share(len(slots))
        key = generator(self.config.seed, "augment.y", task, step)
        return self.two_views(self.memory.read(slots[rows]), key, rows, len(slots))

    def _update(self, loss: Tensor, phase: Phase, step: int) -> tuple[Tensor, Tensor]:
        """Backward, average over processes, step. A non-finite step is gated on the device (see optimisers.py)."""
        learning = self.config.learning
        warmup = int(learning.warmup_epochs * phase.steps_per_epoch)
        rate = learning_rate(learning.learning_rate, learning.schedule, warmup, step, phase.steps)
        set_learning_rate(self.optimiser, rate)
        self.optimiser.zero_grad(set_to_none=True)
        self.scaler.scale(loss).backward()
        processes.average_gradients(self._parameters())
        norm = nn.utils.get_total_norm([p.grad for p in self._parameters() if p.grad is not None])
        if self.scaler.is_enabled():
            # Half precision overflows now and then; the scaler leaves such steps out itself. Only the loss counts.
            finite = torch.isfinite(loss.detach())
            self.scaler.step(self.optimiser)
            self.scaler.update()
        else:
            finite = torch.isfinite(loss.detach()) & torch.isfinite(norm)
            self.optimiser.found_inf = (~finite).float()  # pyright: ignore[reportAttributeAccessIssue]
            self.optimiser.step()
        return finite, norm

    def _parameters(self) -> Iterator[nn.Parameter]:
        yield from self.networks.parameters()
        yield from self.objective.parameters()

    def _offer(self, indices: Tensor, task: int, step: int, fields: dict[str, Tensor]) -> None:
        """Every process plans the same writes for the global batch, so all memories hold the same slots."""
        rows, slots = self.memory.plan(len(indices), generator(self.config.seed, "memory.write", task, step))
        if len(rows):
            chosen = indices[rows]
            images = self.benchmark.train.images.take(chosen)
            parts = {name: value[rows.to(value.device)] for name, value in fields.items()}
            self.memory.write(slots, images, chosen, task, step, parts)
        self.memory.advance(len(indices))

    def world(self, phase: Phase, step: int) -> World:
        learning = self.config.learning
        return World(
            networks=self.networks,
            optimiser=self.optimiser,
            seed=self.config.seed,
            task=phase.task,
            task_count=self.benchmark.task_count,
            steps=phase.steps,
            step=step,
            learning_rate=learning.learning_rate,
            momentum=learning.momentum,
            tau=learning.tau,
            batches=lambda purpose: self._one_pass(phase, purpose),
        )

    def _one_pass(self, phase: Phase, purpose: str) -> Iterator[Representations]:
        """The task's data once, in full batches where there is one, with a random stream of its own."""
        full = max(1, len(phase.indices) // phase.batch_size)
        for step in range(full):
            indices = batch_indices(phase, self.config.seed, step, f"{purpose}.order")[: phase.batch_size]
            views = self._views_of_x(indices, phase.task, step, f"{purpose}.augment")
            yield self.represent({X: views}, {X: len(indices)})

    def state(self) -> dict[str, Any]:
        return {
            "networks": self.networks.state_dict(),
            "objective": self.objective.state_dict(),
            "memory": self.memory.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "scaler": self.scaler.state_dict(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        self.networks.load_state_dict(state["networks"])
        self.objective.load_state_dict(state["objective"])
        self.memory.load_state_dict(state["memory"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.scaler.load_state_dict(state["scaler"])

    def task_tensors(self) -> dict[str, Tensor]:
        """f, g, h and the ids of what the memory held: what later evaluation and analyses need."""
        tensors = {f"encoder.{name}": value for name, value in self.networks.encoder.state_dict().items()}
        for head, module in self.networks.heads.items():
            tensors |= {f"{head}.{name}": value for name, value in module.state_dict().items()}
        held = slice(0, self.memory.filled)
        for name in ("source", "task", "step"):
            tensors[f"memory.{name}"] = self.memory.get_buffer(name)[held]
        return tensors
