"""Networks, terms, memory and optimiser of a run; one training step from images to update; the steps of an episode."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from osiris import processes
from osiris.augment.operations import upload
from osiris.augment.views import normalise
from osiris.config import Config
from osiris.data.benchmark import Benchmark
from osiris.evaluation.scores import Budget
from osiris.framework.augmentation import build_views
from osiris.framework.methods import Method
from osiris.framework.past import Detector, pictures
from osiris.framework.representations import Frozen, Representations
from osiris.framework.terms import StepContext, TaskContext, X, Y
from osiris.models.external import Architecture, architecture_of
from osiris.models.normalisation import AnyBatchNorm, evaluating
from osiris.randomness import generator, scoped
from osiris.runs.state import Position
from osiris.training.build import build_model
from osiris.training.optimisers import build_optimiser, restore_optimiser, set_learning_rate, update_parameters
from osiris.training.schedule import Episode, TrainingImages, batch_positions, learning_rate

FRAMES_AT_ONCE = 256
"""Images of a stream that are embedded at once for a segmentation."""
Accept = Callable[[nn.Module, nn.Module], bool]
"""The encoders before and after an episode -> whether the second one may replace the first."""


@dataclass
class StepResult:
    """The result of a step, still on the device."""

    values: dict[str, Tensor]
    """loss, every term by name, spread (of the embeddings) and gradient_norm."""
    finite: Tensor
    images: int


@dataclass(frozen=True)
class Stepped:
    """A step is done."""

    step: int
    """Steps done in this episode."""
    result: StepResult
    at_point: bool
    """Whether a point to evaluate follows."""


@dataclass(frozen=True)
class Point:
    """The encoder is to be evaluated between two steps."""

    step: int


@dataclass(frozen=True)
class Trained:
    """All steps are done; the end of the episode comes next."""


@dataclass(frozen=True)
class Ended:
    """The episode has ended: its encoder is final."""


Event = Stepped | Point | Trained | Ended


class Engine:
    """Everything that training changes. `state()` and `restore()` carry it through a checkpoint to the same bits."""

    def __init__(
        self,
        config: Config,
        method: Method,
        benchmark: Benchmark,
        device: torch.device,
        architecture: Architecture | None = None,
        planned: int | None = None,
    ) -> None:
        """`architecture`, `planned`: those of the state that will be restored."""
        self.config, self.method, self.benchmark, self.device = config, method, benchmark, device
        self.planned = planned or benchmark.task_count
        self.model = build_model(config, method, benchmark, architecture, self.planned).to(device)
        self.architecture = architecture_of(config.encoder.encoder, self.model.networks.encoder)
        self.before: dict[str, Tensor] | None = None
        """The encoder's state before the episode, while that is learned, if it may be needed at its end; after the end,
        only if the episode was judged by `accept`."""
        self.guarded = False
        """Whether an episode may be refused at its end."""
        self.networks, self.memory = self.model.networks, self.model.memory
        self.renewals: list[int] = []
        """In a stream: the steps after which f* was renewed."""
        self.detector = Detector()
        self.views: dict[str, int] = {}
        """In a stream: views that went forward through f (`x`, `y`, ...) or others (`frozen`), and `backward`."""
        self.optimiser = build_optimiser(self.model, config.learning)
        self.images: TrainingImages | None = None
        """The images of the episode that is being learned."""
        self.two_views = build_views(config.learning.views, benchmark.mean, benchmark.std, config.learning.view_size)
        self.scaler = torch.amp.GradScaler(device.type, enabled=config.engine.precision == "16")
        self.running_statistics = [
            statistic
            for layer in self.model.modules()
            if isinstance(layer, AnyBatchNorm) and layer.running_mean is not None and layer.running_var is not None
            for statistic in (layer.running_mean, layer.running_var)
        ]
        if config.engine.compile:
            # Dynamic from the start: one kernel for all batch sizes, whichever a resumed run sees first.
            self.networks.encoder.compile(dynamic=True)
            if "f*" in self.networks.frozen:
                self.networks.frozen["f*"].compile(dynamic=True)

    def learn(
        self,
        episode: Episode,
        position: Position | None = None,
        evaluate_at: Container[int] = (),
        at_once: Callable[[], AbstractContextManager[None]] = nullcontext,
        accept: Accept | None = None,
    ) -> Iterator[Event]:
        """Learn from an episode. Yields what happens; whoever consumes it decides what is logged, saved and evaluated.

        `evaluate_at`: after which numbers of steps the encoder is evaluated.

            begin -> step, step, ... (a point to evaluate now and then) -> all steps are done -> end (terms, f* <- f)

        `position`: where the run stands in the episode; default: at its beginning. `at_once`: a context in which an
        interruption need not wait, because all steps are saved. `accept`: see `end`.
        """
        stage, start = ("train", 0) if position is None else (position.stage, position.step)
        if stage in ("train", "curve"):
            if start == 0:
                self.begin(episode)
            if stage == "curve":
                yield Point(start)
            for step in range(start, episode.steps):
                result, done = self.step(episode, step), step + 1
                at_point = done in evaluate_at and done < episode.steps
                yield Stepped(done, result, at_point)
                if at_point:
                    yield Point(done)
            yield Trained()
        if stage != "evaluate":
            with at_once():
                self.end(episode, accept)
            yield Ended()

    def begin(self, episode: Episode) -> None:
        if self._merges(episode) or self.guarded:
            self.before = {name: value.clone() for name, value in self.networks.encoder.state_dict().items()}
        self.model.begin_task(self.task_context(episode, 0))

    def end(self, episode: Episode, accept: Accept | None = None) -> None:
        """Merge, then the terms' own ends (Fisher, snapshots), then f* <- f and g* <- g.

        `accept`: whether to keep what was learned; otherwise the encoder becomes what it was before the episode.
        """
        before = self.before
        if accept is None:
            self.before = None
        if before is not None:
            if self._merges(episode):
                self._merge(before, self.config.learning.merge)
            if accept is not None:
                earlier = copy.deepcopy(self.networks.encoder)
                earlier.load_state_dict(before)
                if not accept(earlier, self.networks.encoder):
                    self._merge(before, 0.0)
        self.model.end_task(self.task_context(episode, episode.steps))

    def _merges(self, episode: Episode) -> bool:
        return self.config.learning.merge < 1 and (episode.task > 0 or self.config.pretrained)

    @torch.no_grad()
    def _merge(self, before: dict[str, Tensor], share: float) -> None:
        """f <- share f + (1 - share) what it was before (as WiSE-FT and model soups); f~ follows. Heads, moments of the
        optimiser and what the memory stores stay as they are."""
        if share == 0:  # to the last bit, with all statistics
            self.networks.encoder.load_state_dict(before)
        for name, parameter in self.networks.encoder.named_parameters():
            if parameter.requires_grad and share > 0:
                parameter.copy_(torch.lerp(before[name], parameter, share))
        for name, module in self.model.named_modules():
            if name.endswith("average_encoder"):
                assert isinstance(module, Frozen)
                module.update(self.networks.encoder)

    def step(self, episode: Episode, step: int) -> StepResult:
        """Read memory, make views, embed once, sum the terms, update, then offer X to the memory.

        The host takes all decisions and the device computes, so the host never waits for a result.
        """
        config, task = self.config, episode.task
        positions = batch_positions(episode, config.seed, step)
        count, learned = len(positions), self._learned(episode, positions, step)
        images = self._take(episode, learned)
        early = episode.past is not None and self.memory.before
        if early and step % episode.passes == 0:  # an image that was not learned from has no values yet
            fields = {name: self.memory.get_buffer(f"field_{name}").new_zeros(count, 1) for name in self.memory.fields}
            self._offer(positions, images, episode, step, fields)
        if episode.past is not None:
            self.model.prepare(count, past=bool(self.renewals))
        if step + 1 < episode.steps:
            following = batch_positions(episode, config.seed, step + 1)
            self._images(episode).prefetch(following[processes.share(len(following))])
        slots = self._read_slots(count, task, step)
        stream = episode.past is not None
        context = StepContext(self.memory, slots, config.seed, task, step, config.learning.tau, count, stream)
        batches = {X: (images, count, "augment.x")}
        if slots is not None:
            replayed = self.memory.read(slots[processes.share(len(slots))])
            batches[Y] = (replayed, len(slots), "augment.y")
        views = self.model.make(self._views(batches, task, step), context)
        counts = self.model.counts(task, count, 0 if slots is None else len(slots))
        statistics = [statistic.clone() for statistic in self.running_statistics]
        with self._dropout("dropout", task, step):
            rep = self.represent(views, counts, self.model.inputs(task))
            loss, values = self.model(rep, context)
        fields, rewritten = self._fields(rep, context)
        finite, norm = self._update(loss, episode, step)
        for statistic, before in zip(self.running_statistics, statistics):
            statistic.copy_(torch.where(finite, statistic, before))
        for name, value in rewritten.items():
            assert slots is not None
            self.memory.rewrite(name, slots, value)
        if (step + 1) % episode.passes == 0 and not early:
            newest = images if learned is positions else self._take(episode, positions)
            self._offer(positions, newest, episode, step, fields)
        self.model.after_step(self.task_context(episode, step + 1))
        if episode.past is not None:
            self._count(rep)
            self._renew_past(images, count, episode, step + 1)
        detached = {name: value.detach() for name, value in values.items()}
        spread = self.networks.objective.spread
        detached |= {} if spread is None else {"spread": spread}
        return StepResult({"loss": loss.detach(), **detached, "gradient_norm": norm}, finite, count)

    def _learned(self, episode: Episode, positions: Tensor, step: int) -> Tensor:
        """The positions of X: the newest images, or as many from a short memory that reaches further back."""
        short = self.model.short
        if short is None or episode.past is None:
            return positions
        held = short.short(int(positions[-1]))
        if len(held) < len(positions):
            return positions
        drawn = torch.randperm(len(held), generator=generator(self.config.seed, "short", episode.task, step))
        return held[drawn[: len(positions)]]

    @torch.no_grad()
    def _frames(self, episode: Episode, positions: Tensor) -> Tensor:
        """Unit features f of some images of a stream, in evaluation mode and without views."""
        size, features = self.config.learning.view_size, []
        with evaluating(self.networks.encoder):
            for part in positions.split(FRAMES_AT_ONCE):
                images = normalise(self._images(episode).take(part), self.benchmark.mean, self.benchmark.std)
                if size is not None:
                    images = functional.interpolate(images, (size, size), mode="bilinear", antialias=True)
                features.append(functional.normalize(self.networks.encoder(images).float(), dim=1))
        self.views["frozen"] = self.views.get("frozen", 0) + len(positions)
        return torch.cat(features)

    def _changed(self, images: Tensor, count: int) -> bool:
        """Whether the images of the stream have changed with those of this step, which belong to this process."""
        return self.detector.add(processes.gather(pictures(images), count).mean(0))

    def _renew_past(self, images: Tensor, count: int, episode: Episode, step: int) -> None:
        """f* and g* of a stream, after a step."""
        past = episode.past
        assert past is not None
        if past.kind == "ema" and self.renewals:
            self.networks.follow(past.rate)
        changed = past.kind == "detect" and step % episode.passes == 0 and self._changed(images, count)
        if (changed or past.renewed(step)) and step < episode.steps:
            self.model.end_task(self.task_context(episode, step))
            self.renewals.append(step)

    def _count(self, rep: Representations) -> None:
        """Views that went through encoders in this step, over all processes."""
        for (source, encoder, heads), features in rep.local.items():
            if not heads:
                kind = "frozen" if encoder is not self.networks.encoder else source.lower()
                learned = kind != "frozen" and features.requires_grad
                self.views[kind] = self.views.get(kind, 0) + 2 * rep.counts[source]
                self.views["backward"] = self.views.get("backward", 0) + 2 * rep.counts[source] * learned

    def budget(self, episode: Episode, step: int, evaluated: int) -> Budget:
        """What a stream has cost after this many steps."""
        frozen = [module for module in self.model.modules() if isinstance(module, Frozen)]
        return Budget(
            images=episode.seen(step),
            steps=step,
            backward=self.views.get("backward", 0),
            forward={name: count for name, count in sorted(self.views.items()) if name != "backward"},
            evaluated=evaluated,
            memory_bytes=(_bytes(self.memory.buffers()) if self.method.reads_memory else 0)
            + self._short_bytes(episode),
            frozen_bytes=sum(_bytes(module.parameters()) for module in frozen),
            renewals=[episode.seen(step) for step in self.renewals],
            cuts=[] if self.model.short is None else self.model.short.cuts,
        )

    def _short_bytes(self, episode: Episode) -> int:
        """Of the images of a short memory: here they are read from the stream again."""
        short, shape = self.model.short, self.benchmark.train.images.shape
        return 0 if short is None else len(short.short(episode.count)) * math.prod(shape)

    def _dropout(self, purpose: str, task: int, step: int) -> AbstractContextManager[None]:
        """Our own encoders have no dropout. That of others is keyed like all randomness, so that resuming is exact."""
        if not self.networks.external:
            return nullcontext()
        return scoped(self.config.seed, purpose, task, step, processes.rank())

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
        if self.model.mixes(task):  # every image of X needs one of Y, also while the memory of a learner is short
            slots = slots.repeat(-(-wanted // len(slots)))[:wanted]
        return upload(slots, self.device)

    def _take(self, episode: Episode, positions: Tensor) -> Tensor:
        """This process' share of the images of a global batch, on the device."""
        return self._images(episode).take(positions[processes.share(len(positions))])

    def _images(self, episode: Episode) -> TrainingImages:
        assert episode.images is not None, "its images are not at hand any more"
        if self.images is None or self.images.images is not episode.images:
            self.images = None  # not two episodes on the device
            self.images = TrainingImages(episode.images, self.device, self.config.engine.images_on_device)
        return self.images

    def _views(self, batches: dict[str, tuple[Tensor, int, str]], task: int, step: int) -> dict[str, Tensor]:
        """Two views of this process' share of global batches, each given as images, size of the whole and purpose."""
        seed, two_views = self.config.seed, self.two_views
        drawn = [
            two_views.draw(images, generator(seed, purpose, task, step), processes.share(count), count)
            for images, count, purpose in batches.values()
        ]
        return dict(zip(batches, two_views.apply([images for images, *_ in batches.values()], drawn)))

    def _update(self, loss: Tensor, episode: Episode, step: int) -> tuple[Tensor, Tensor]:
        """(whether the step is finite, norm of the gradient). The device skips a step that is not finite."""
        learning = self.config.learning
        warmup = int(learning.warmup_epochs * episode.steps_per_epoch)
        rate = learning_rate(learning.learning_rate, learning.schedule, warmup, step, episode.steps)
        set_learning_rate(self.optimiser, rate, learning.learning_rate)
        return update_parameters(self.optimiser, self.scaler, list(self.model.parameters()), loss)

    def _offer(self, positions: Tensor, images: Tensor, episode: Episode, step: int, fields: dict[str, Tensor]) -> None:
        """Every process chooses the same writes for the global batch, so all memories hold the same slots."""
        task, by_task = episode.task, self.memory.by_task
        if by_task:
            positions = torch.arange(episode.count if step + 1 == episode.steps else 0)
        rows, slots = torch.arange(0), torch.arange(0)
        if len(positions):
            rows, slots = self.memory.admit(len(positions), generator(self.config.seed, "memory.write", task, step))
        if len(rows):
            source, chosen = upload(positions[rows], self.device), upload(rows, self.device)
            alone = processes.world_size() == 1 and not by_task  # otherwise some of the images are not here
            stored = images[chosen] if alone else self._images(episode).take(positions[rows])
            parts = {name: value[chosen] for name, value in fields.items()}
            self.memory.write(upload(slots, self.device), stored, source, task, step, parts)
        self.memory.advance(len(rows) if by_task else len(positions))

    def task_context(self, episode: Episode, step: int) -> TaskContext:
        learning = self.config.learning
        return TaskContext(
            networks=self.networks,
            optimiser=self.optimiser,
            seed=self.config.seed,
            task=episode.task if episode.past is None else len(self.renewals),
            task_count=self.planned,
            steps=episode.steps,
            steps_per_epoch=episode.steps_per_epoch,
            step=step,
            stream=episode.past is not None,
            seen=0 if episode.past is None else episode.seen(step),
            frames=None if episode.past is None else lambda positions: self._frames(episode, positions),
            learning_rate=learning.learning_rate,
            momentum=learning.momentum,
            tau=learning.tau,
            batches=lambda purpose: self._one_pass(episode, purpose),
        )

    def _one_pass(self, episode: Episode, purpose: str) -> Iterator[Representations]:
        """The images of the episode once, in full batches if there is one, with a random stream of its own."""
        for step in range(max(1, episode.count // episode.batch_size)):
            positions = batch_positions(episode, self.config.seed, step, f"{purpose}.order")[: episode.batch_size]
            images, count = self._take(episode, positions), len(positions)
            views = self._views({X: (images, count, f"{purpose}.augment")}, episode.task, step)
            with self._dropout(f"{purpose}.dropout", episode.task, step):
                yield self.represent(views, {X: count})

    def state(self) -> dict[str, Any]:
        return (
            {
                "model": self.model.state_dict(),
                "optimiser": self.optimiser.state_dict(),
                "scaler": self.scaler.state_dict(),
            }
            | ({} if self.before is None else {"before": self.before})
            | self._of_stream()
        )

    def _of_stream(self) -> dict[str, Any]:
        if self.benchmark.order is None:
            return {}
        parts = {"renewals": list(self.renewals), "views": dict(self.views), "detector": self.detector.state()}
        return {"stream": parts}

    def restore(self, state: dict[str, Any]) -> None:
        """Raises ValueError if the state is not one of these networks."""
        try:
            self.model.load_state_dict(state["model"])
            restore_optimiser(self.optimiser, state["optimiser"])
            self.scaler.load_state_dict(state["scaler"])
            self.before = self._restored(state["before"]) if "before" in state else None
            stream = state.get("stream", {})
            if stream:
                self.detector.restore(stream["detector"], self.device)
            self.renewals = [int(step) for step in stream.get("renewals", ())]
            self.views = {str(name): int(count) for name, count in stream.get("views", {}).items()}
        except (RuntimeError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise ValueError(" ".join(f"{type(error).__name__}: {error}".split())[:300]) from None

    def _restored(self, before: dict[str, Tensor]) -> dict[str, Tensor]:
        shapes = {name: value.shape for name, value in self.networks.encoder.state_dict().items()}
        if {name: value.shape for name, value in before.items()} != shapes:
            raise ValueError("the weights before the episode are of another encoder")
        return {name: value.to(self.device) for name, value in before.items()}

    def task_tensors(self) -> dict[str, Tensor]:
        """f, g, h and the ids of the images in the memory, for later evaluation and analyses."""
        tensors = {f"encoder.{name}": value for name, value in self.networks.encoder.state_dict().items()}
        for head, module in self.networks.heads.items():
            tensors |= {f"{head}.{name}": value for name, value in module.state_dict().items()}
        for name in ("source", "task", "step"):
            tensors[f"memory.{name}"] = self.memory.get_buffer(name)[: self.memory.filled]
        return tensors


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
