"""Networks, terms, memory and optimiser of a run, and one training step from images to update."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from osiris import processes
from osiris.augment.operations import upload
from osiris.augment.views import VIEWS, TwoViews, normalise
from osiris.data.benchmark import Benchmark
from osiris.errors import UserError
from osiris.files import load_tensors
from osiris.framework.methods import Method
from osiris.framework.representations import Representations
from osiris.framework.terms import StepContext, TaskContext, X, Y
from osiris.framework.trainable import TrainableMethod
from osiris.models.config import EncoderConfig
from osiris.models.encoder import build_encoder, feature_count
from osiris.models.external import Architecture, freeze_layers
from osiris.models.normalisation import BatchNorm
from osiris.randomness import generator, scoped
from osiris.training.config import Config
from osiris.training.optimisers import build_optimiser, set_learning_rate
from osiris.training.schedule import Phase, batch_indices, learning_rate

FIT_IMAGES = 500
"""Images of the first task that a `fast` encoder is fitted to."""


def first_task_images(benchmark: Benchmark, encoder: EncoderConfig) -> Tensor | None:
    """Normalised images that a `fast` encoder is fitted to: some of the first task alone, the same for every method."""
    if encoder.encoder is not None or encoder.family != "fast":
        return None
    indices = benchmark.training_indices(0)
    if not len(indices):  # a run that is continued without them: the fitted weights come from its state
        indices = benchmark.training_indices(benchmark.task_count - 1)
    indices = indices[torch.linspace(0, len(indices) - 1, min(FIT_IMAGES, len(indices))).long()]
    return normalise(benchmark.train.images.take(indices), benchmark.mean, benchmark.std)


@dataclass
class StepResult:
    """The result of a step, still on the device."""

    values: dict[str, Tensor]
    """loss, every term by name, spread (of the embeddings) and gradient_norm."""
    finite: Tensor
    images: int


def build_model(
    config: Config, method: Method, benchmark: Benchmark, architecture: Architecture | None = None
) -> TrainableMethod:
    """Networks, terms and memory of a run, on the default device. `architecture`: see `build_encoder`."""
    images, seed = first_task_images(benchmark, config.encoder), config.seed
    encoder = build_encoder(config.encoder, seed, images=images, architecture=architecture)
    if config.learning.freeze:
        freeze_layers(encoder, config.learning.freeze)
    if config.learning.view_size is not None:
        feature_count(encoder, (3, config.learning.view_size, config.learning.view_size))
    sizes = config.learning.memory_size, benchmark.train.images.shape
    model = TrainableMethod(method, encoder, config.projector, *sizes, benchmark.task_count, seed)
    if config.engine.micro_batch is not None and model.networks.batch_norm:
        raise UserError("--micro-batch would change the statistics of the encoder's BatchNorm; leave it out.")
    return model


class Engine:
    """Everything that training changes. `state()` and `restore()` carry it through a checkpoint to the same bits."""

    def __init__(
        self,
        config: Config,
        method: Method,
        benchmark: Benchmark,
        device: torch.device,
        architecture: Architecture | None = None,
    ) -> None:
        self.config, self.method, self.benchmark, self.device = config, method, benchmark, device
        self.model = build_model(config, method, benchmark, architecture).to(device)
        self.networks, self.memory = self.model.networks, self.model.memory
        self.optimiser = build_optimiser(self.model, config.learning)
        self.two_views = TwoViews(
            benchmark.mean, benchmark.std, VIEWS[config.learning.views], config.learning.view_size
        )
        self.scaler = torch.amp.GradScaler(device.type, enabled=config.engine.precision == "16")
        self.running_statistics = [
            statistic
            for layer in self.model.modules()
            if isinstance(layer, BatchNorm) and layer.running_mean is not None and layer.running_var is not None
            for statistic in (layer.running_mean, layer.running_var)
        ]
        if config.engine.compile:
            # Dynamic from the start: one kernel for all batch sizes, whichever a resumed run sees first.
            self.networks.encoder.compile(dynamic=True)

    def step(self, phase: Phase, step: int) -> StepResult:
        """Read memory, make views, embed once, sum the terms, update, then offer X to the memory.

        The host takes all decisions and the device computes, so the host never waits for a result.
        """
        config, task = self.config, phase.task
        indices = batch_indices(phase, config.seed, step)
        images = self._take(indices)
        if step + 1 < phase.steps:
            following = batch_indices(phase, config.seed, step + 1)
            self.benchmark.train.images.prefetch(following[processes.share(len(following))])
        slots = self._read_slots(len(indices), task, step)
        context = StepContext(self.memory, slots, config.seed, task, step, config.learning.tau, len(indices))
        views = {X: self._views(images, len(indices), "augment.x", task, step)}
        if slots is not None:
            replayed = self.memory.read(slots[processes.share(len(slots))])
            views[Y] = self._views(replayed, len(slots), "augment.y", task, step)
        views = self.model.make(views, context)
        counts = self.model.counts(task, len(indices), 0 if slots is None else len(slots))
        statistics = [statistic.clone() for statistic in self.running_statistics]
        with self._dropout(task, step):
            rep = self.represent(views, counts, self.model.inputs(task))
            loss, values = self.model(rep, context)
        fields, rewritten = self._fields(rep, context)
        finite, norm = self._update(loss, phase, step)
        for statistic, before in zip(self.running_statistics, statistics):
            statistic.copy_(torch.where(finite, statistic, before))
        for name, value in rewritten.items():
            assert slots is not None
            self.memory.rewrite(name, slots, value)
        self._offer(indices, images, phase, step, fields)
        detached = {name: value.detach() for name, value in values.items()}
        spread = self.networks.objective.spread
        detached |= {} if spread is None else {"spread": spread}
        return StepResult({"loss": loss.detach(), **detached, "gradient_norm": norm}, finite, len(indices))

    def _dropout(self, task: int, step: int) -> AbstractContextManager[None]:
        """Our own encoders have no dropout. That of others is keyed like all randomness, so that resuming is exact."""
        if not self.networks.external:
            return nullcontext()
        return scoped(self.config.seed, "dropout", task, step, processes.rank())

    @torch.no_grad()
    def _fields(self, rep: Representations, context: StepContext) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """What the memory stores with X and changes for Y, from this step's model before the update. Undefined values
        of X become zero, which gives no gradient later: a bad step must not spoil the memory."""
        fields = self.model.fields(rep, context.task)
        stored = {name: torch.nan_to_num(value, 0.0, 0.0, 0.0) for name, value in fields.items()}
        return stored, self.model.rewritten(rep, context)

    def represent(
        self, views: dict[str, Tensor], counts: dict[str, int], encode: tuple[str, ...] = (X,)
    ) -> Representations:
        micro_batch = self.config.engine.micro_batch
        return Representations(self.networks, views, counts, encode, micro_batch, self.autocast)

    def autocast(self) -> torch.autocast:
        precision = self.config.engine.precision
        kind = torch.float16 if precision == "16" else torch.bfloat16
        return torch.autocast(self.device.type, kind, enabled=precision != "32")

    def _read_slots(self, count: int, task: int, step: int) -> Tensor | None:
        wanted = self.model.replayed(task, count)
        if wanted == 0:
            return None
        slots = self.memory.sample(wanted, generator(self.config.seed, "memory.read", task, step))
        return upload(slots, self.device)

    def _take(self, indices: Tensor) -> Tensor:
        """This process' share of the images of a global batch, on the device."""
        return upload(self.benchmark.train.images.take(indices[processes.share(len(indices))]), self.device)

    def _views(self, images: Tensor, count: int, purpose: str, task: int, step: int) -> Tensor:
        """Two views of this process' share of a global batch of `count` images."""
        key = generator(self.config.seed, purpose, task, step)
        return self.two_views(images, key, processes.share(count), count)

    def _update(self, loss: Tensor, phase: Phase, step: int) -> tuple[Tensor, Tensor]:
        """Backward, average over processes, step. The device skips a step that is not finite (see optimisers.py)."""
        learning = self.config.learning
        warmup = int(learning.warmup_epochs * phase.steps_per_epoch)
        rate = learning_rate(learning.learning_rate, learning.schedule, warmup, step, phase.steps)
        set_learning_rate(self.optimiser, rate, learning.learning_rate)
        self.optimiser.zero_grad(set_to_none=True)
        finite = torch.isfinite(loss.detach())
        # Half precision: the scaler looks at gradients, so an infinite loss must make them undefined (inf - inf + 1).
        spoiled = loss * (loss.detach() - loss.detach() + 1) if self.scaler.is_enabled() else loss
        self.scaler.scale(spoiled).backward()
        processes.average_gradients(self.model.parameters())
        if self.scaler.is_enabled():
            self.scaler.unscale_(self.optimiser)
        norm = nn.utils.get_total_norm([p.grad for p in self.model.parameters() if p.grad is not None])
        if self.scaler.is_enabled():
            # Gradients overflow now and then: the scaler skips such steps and tries a smaller scale. If that does not
            # help, the gradient itself is bad.
            scale = self.scaler.scale(torch.ones((), device=self.device))
            finite = finite & (torch.isfinite(norm) | (scale >= 1))
            self.scaler.step(self.optimiser)
            self.scaler.update()
        else:
            finite = finite & torch.isfinite(norm)
            self.optimiser.found_inf = (~finite).float()  # pyright: ignore[reportAttributeAccessIssue]
            self.optimiser.step()
        return finite, norm

    def _offer(self, indices: Tensor, images: Tensor, phase: Phase, step: int, fields: dict[str, Tensor]) -> None:
        """Every process plans the same writes for the global batch, so all memories hold the same slots."""
        task, by_task = phase.task, self.memory.by_task
        if by_task:
            indices = phase.indices if step + 1 == phase.steps else phase.indices[:0]
        rows, slots = torch.arange(0), torch.arange(0)
        if len(indices):
            rows, slots = self.memory.plan(len(indices), generator(self.config.seed, "memory.write", task, step))
        if len(rows):
            source, chosen = upload(indices[rows], self.device), upload(rows, self.device)
            alone = processes.world_size() == 1 and not by_task  # otherwise some of the images are not here
            stored = images[chosen] if alone else upload(self.benchmark.train.images.take(indices[rows]), self.device)
            parts = {name: value[chosen] for name, value in fields.items()}
            self.memory.write(upload(slots, self.device), stored, source, task, step, parts)
        self.memory.advance(len(rows) if by_task else len(indices))

    def task_context(self, phase: Phase, step: int) -> TaskContext:
        learning = self.config.learning
        return TaskContext(
            networks=self.networks,
            optimiser=self.optimiser,
            seed=self.config.seed,
            task=phase.task,
            task_count=self.benchmark.task_count,
            steps=phase.steps,
            steps_per_epoch=phase.steps_per_epoch,
            step=step,
            learning_rate=learning.learning_rate,
            momentum=learning.momentum,
            tau=learning.tau,
            batches=lambda purpose: self._one_pass(phase, purpose),
        )

    def _one_pass(self, phase: Phase, purpose: str) -> Iterator[Representations]:
        """The task's images once, in full batches if there is one, with a random stream of its own."""
        full = max(1, len(phase.indices) // phase.batch_size)
        for step in range(full):
            indices = batch_indices(phase, self.config.seed, step, f"{purpose}.order")[: phase.batch_size]
            views = self._views(self._take(indices), len(indices), f"{purpose}.augment", phase.task, step)
            yield self.represent({X: views}, {X: len(indices)})

    def state(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "scaler": self.scaler.state_dict(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.scaler.load_state_dict(state["scaler"])

    def task_tensors(self) -> dict[str, Tensor]:
        """f, g, h and the ids of the images in the memory, for later evaluation and analyses."""
        tensors = {f"encoder.{name}": value for name, value in self.networks.encoder.state_dict().items()}
        for head, module in self.networks.heads.items():
            tensors |= {f"{head}.{name}": value for name, value in module.state_dict().items()}
        for name in ("source", "task", "step"):
            tensors[f"memory.{name}"] = self.memory.get_buffer(name)[: self.memory.filled]
        return tensors

    def initialise(self, path: Path) -> None:
        """--init: start the encoder from given weights."""
        wanted = self.networks.encoder.state_dict()
        given = encoder_weights(load_tensors(path)[0])
        missing = [name for name in wanted if name not in given]
        shapes = [name for name in wanted if name in given and wanted[name].shape != given[name].shape]
        if missing or shapes:
            problem = f"{missing[0]} is missing" if missing else f"{shapes[0]} has another shape"
            raise UserError(
                f"--init {path} does not fit the encoder: {problem}. Check --encoder, or --width, --blocks, --stem and "
                "--norm."
            )
        self.networks.encoder.load_state_dict({name: given[name] for name in wanted})


def encoder_weights(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The encoder's state from a task checkpoint, or from a file that holds nothing else."""
    prefix = "encoder." if any(name.startswith("encoder.") for name in tensors) else ""
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
