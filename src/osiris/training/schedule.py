"""The episodes of a run: which images are seen when, at which learning rate, and how they come to the device."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor

from osiris import processes
from osiris.augment.operations import upload
from osiris.config import LearningConfig
from osiris.data.benchmark import Benchmark, Order, TaskContent
from osiris.data.catalogue import EPISODES
from osiris.data.images import Images, Subset
from osiris.devices import total_memory
from osiris.errors import UserError
from osiris.framework.composition import check_stream
from osiris.framework.methods import Method
from osiris.framework.past import Past, past_of
from osiris.framework.terms import Contrast, CrossMix, Revisit, Storyboard
from osiris.randomness import generator

SMALLEST = 4
"""A last batch with fewer images joins the one before: it would have too few negatives to learn from."""
IMAGES_PER_STEP = 512
"""Of methods that learn by sums."""
SHARE = 0.1
"""Images are kept on a GPU if they take no more than this part of its memory."""


@dataclass(frozen=True)
class Episode:
    """What a run learns at a time: a task of a benchmark, all of them at once, or one more folder of images."""

    task: int
    content: TaskContent
    count: int
    """Images to learn from."""
    steps: int
    batch_size: int
    images: Images | None
    """None: it was learned before, and its images are not at hand any more."""
    passes: int = 1
    """Steps in a row on each batch."""
    past: Past | None = None
    """In a stream, whose images come in their order: what f* is. None: this is no stream."""

    @property
    def batches(self) -> int:
        """In an epoch. A stream leaves out a last one that is not full."""
        if self.past is not None:
            return self.count // self.batch_size
        return steps_per_epoch(self.count, self.batch_size)

    @property
    def steps_per_epoch(self) -> int:
        return self.batches * self.passes

    @property
    def epochs(self) -> int:
        return -(-self.steps // self.steps_per_epoch)

    @property
    def batch_sizes(self) -> tuple[int, int]:
        """(smallest, largest): the last batch of an epoch takes the remaining images, up to three more than others."""
        if self.past is not None:
            return self.batch_size, self.batch_size
        last = self.count - (self.batches - 1) * self.batch_size
        return min(last, self.batch_size), last if self.batches == 1 else max(last, self.batch_size)

    def seen(self, step: int) -> int:
        """Images of a stream that were seen after this many steps, those of earlier epochs included."""
        return min(-(-step // self.passes), self.epochs * self.batches) * self.batch_size

    def points(self, number: int) -> frozenset[int]:
        """The steps after so many equal parts of a stream, without the last."""
        every = self.epochs * self.batches
        return frozenset(-(-part * every // number) * self.passes for part in range(1, number)) - {self.steps}


def steps_per_epoch(images: int, batch_size: int) -> int:
    """The last partial batch is kept, unless it has fewer than four images."""
    return max(1, images // batch_size + (images % batch_size >= SMALLEST))


def plan_episodes(benchmark: Benchmark, method: Method, learning: LearningConfig) -> list[Episode]:
    """`continual`: one episode per task. `joint` and `first-task`: one episode with the steps of the whole continual
    run. Each has `length` times the steps in the later tasks.

    A task with fewer images than a batch is one batch.
    """
    if method.sums is not None:
        learning = replace(learning, epochs=1, batch_size=IMAGES_PER_STEP, passes=1)
    if benchmark.order is not None:
        return [_stream(benchmark, benchmark.order, method, learning)]
    by_task = [benchmark.training_indices(task) for task in range(benchmark.task_count)]
    before = benchmark.contents[: benchmark.learned]
    counts = [content["train"] for content in before] + [len(indices) for indices in by_task[benchmark.learned :]]
    for task, count in enumerate(counts):
        if count < SMALLEST:
            grows = benchmark.name == EPISODES
            name = benchmark.task_names[task] if grows else f"task {task + 1} of {benchmark.name}"
            raise UserError(
                f"{name} has too few images ({count}): learning needs at least {SMALLEST}. Add images to it, or leave "
                "it out."
            )
    if method.boundaries != "none" or method.past_model is not None:
        raise UserError("--boundaries and --past-model are for streams: without --stream, f* is f after a task.")
    each = learning.epochs * learning.passes
    usual = [each * steps_per_epoch(count, learning.batch_size) for count in counts]
    if method.learns == "continual":
        contents = benchmark.contents or [_content(str(task + 1), count) for task, count in enumerate(counts)]
        steps = [usual[0], *(round(method.length * number) for number in usual[1:])]
        return [
            Episode(
                task,
                contents[task],
                count,
                steps[task],
                min(learning.batch_size, count),
                _part(benchmark, task),
                learning.passes,
            )
            for task, count in enumerate(counts)
        ]
    joint, name = method.learns == "joint", "all tasks" if method.learns == "joint" else "task 1 alone"
    count, length = len(benchmark.train) if joint else counts[0], usual[0] + round(method.length * sum(usual[1:]))
    images = benchmark.train.images if joint else _part(benchmark, 0)
    content = _content(name, count, hashlib.sha256(repr(benchmark.contents).encode()).hexdigest()[:16])
    return [Episode(0, content, count, length, min(learning.batch_size, count), images, learning.passes)]


def _stream(benchmark: Benchmark, order: Order, method: Method, learning: LearningConfig) -> Episode:
    """All images in their order as one episode."""
    check_stream(method)
    if learning.merge < 1:
        raise UserError("--merge averages at the end of a task, which a stream does not have: leave it out.")
    if learning.epochs > 1 and any(isinstance(term, Storyboard) for term in method.terms):
        raise UserError("storyboard sees a stream once, because scenes are known by their time: leave out --epochs.")
    count = len(order.rows)
    if count < SMALLEST and method.sums is None:
        raise UserError(f"the stream has too few images ({count}): learning needs at least {SMALLEST}.")
    batch = min(learning.batch_size, count)
    digest = hashlib.sha256(order.rows.numpy().tobytes() + benchmark.checksum.encode()).hexdigest()[:16]
    content = _content(f"stream {order.name}", count, digest)
    images = Subset(benchmark.train.images, order.rows)
    steps = learning.epochs * (count // batch) * learning.passes
    starts = [-(-start // batch) * learning.passes for start in order.starts]
    past = Past("none")
    if method.uses_past:
        past = past_of(method.boundaries, method.past_model, steps, starts, order.name)
    return Episode(0, content, count, steps, batch, images, learning.passes, past)


def _part(benchmark: Benchmark, task: int) -> Images | None:
    return None if task < benchmark.learned else Subset(benchmark.train.images, benchmark.training_indices(task))


def _content(name: str, count: int, order: str = "") -> TaskContent:
    return TaskContent(name=name, train=count, test=0, order=order)


def check_sizes(episodes: list[Episode], method: Method, learning: LearningConfig) -> list[str]:
    """Refuse sizes that do not fit together; returns notices for the user."""
    if method.sums is not None:  # any number of images has a sum
        return []
    largest, smallest = (
        max(episode.batch_sizes[1] for episode in episodes),
        min(episode.batch_sizes[0] for episode in episodes),
    )
    if method.reads_memory:
        replayed = method.replayed(largest)
        if method.memory == "quota" and learning.memory_size < len(episodes):
            raise UserError(
                f"the memory holds {learning.memory_size} images, fewer than one of each of the {len(episodes)} tasks; "
                f"use --memory-size {len(episodes)} or more."
            )
        if learning.memory_size < replayed:
            raise UserError(
                f"the memory holds {learning.memory_size} images, but {method.name} replays {replayed} at each step; "
                f"use --memory-size {replayed} or more, or a smaller --batch-size."
            )
        if episodes[0].past is not None and episodes[0].count < replayed:
            raise UserError(
                f"the stream has {episodes[0].count} images, but {method.name} replays {replayed} at each step; use a "
                "smaller --replay or --batch-size."
            )
        offered = episodes[0].count * learning.epochs
        if episodes[0].task == 0 and offered < replayed:
            raise UserError(
                f"task 1 offers {offered} images to the memory, but {method.name} replays {replayed} at each step; "
                f"use more --epochs, or a smaller --batch-size."
            )
        fewest = _fewest_replayed(method)
        if method.replayed(smallest) < fewest:
            few = f"one with it, too few for {method.objective.kind}" if method.replayed(smallest) else "none with it"
            raise UserError(
                f"the smallest batch of this run has {smallest} images, so {method.name} would replay {few}; "
                f"use a --replay-fraction of {math.ceil(1000 * fewest / smallest) / 1000:g} or more."
            )
        smallest = min(smallest, method.replayed(smallest))
    if processes.world_size() > smallest:
        raise UserError(
            f"{processes.world_size()} processes cannot share a batch of {smallest} images, the smallest of this run. "
            "Use fewer processes, or a --batch-size that leaves a larger last batch."
        )
    if episodes[0].past is not None:
        rest = episodes[0].count % episodes[0].batch_size
        return [f"the last {rest} images of the stream are fewer than a batch, and are left out."] * bool(rest)
    small = [episode.task + 1 for episode in episodes if episode.batch_size < learning.batch_size]
    if not small:
        return []
    names = f"task {small[0]} has" if len(small) == 1 else f"{len(small)} tasks (the first: {small[0]}) have"
    return [f"{names} fewer images than a batch of {learning.batch_size}: each step uses all images of the task."]


def _fewest_replayed(method: Method) -> int:
    """The smallest |Y| for which every term is defined: one image alone has no negatives for dcl and no variance for
    vicreg, or for BatchNorm in a g that sees Y alone."""
    kind = method.objective.kind
    for term in method.terms:
        alone = isinstance(term, Contrast) and (term.batch, term.space) == ("Y", "g")
        if kind in ("dcl", "vicreg") and (alone or isinstance(term, CrossMix)):
            return 2
        if kind not in ("ntxent", "mocov2+") and isinstance(term, Revisit):
            return 2
    return 1


def batch_positions(episode: Episode, seed: int, step: int, purpose: str = "order") -> Tensor:
    """The images of one step, by their position in the episode: a keyed permutation per epoch, cut into batches; in a
    stream, its own order."""
    per_epoch = episode.batches
    epoch, position = divmod(step // episode.passes, per_epoch)
    if episode.past is not None:
        return torch.arange(position * episode.batch_size, (position + 1) * episode.batch_size)
    order = _order(episode.count, seed, purpose, episode.task, epoch)
    last = position == per_epoch - 1
    stop = None if last else (position + 1) * episode.batch_size
    return order[position * episode.batch_size : stop]


@lru_cache(maxsize=4)
def _order(count: int, seed: int, purpose: str, task: int, epoch: int) -> Tensor:
    """Cached, because the permutation of a large task costs more than the batch that is cut from it."""
    return torch.randperm(count, generator=generator(seed, purpose, task, epoch))


def learning_rate(base: float, schedule: str, warmup_steps: int, step: int, steps: int) -> float:
    """Constant in the paper. Warm-up and cosine start again in each task."""
    if step < warmup_steps:
        return base * (step + 1) / warmup_steps
    if schedule == "constant":
        return base
    progress = (step - warmup_steps) / max(1, steps - warmup_steps)
    return base * 0.5 * (1 + math.cos(math.pi * progress))


def kept_bytes(images: Images, device: torch.device, keep: bool | None = None) -> int:
    """The bytes that the images take on the device, 0 if they stay on the host. `keep`: whether all are kept on the
    device; None: if it is a GPU with room for them and they are decoded already."""
    size = len(images) * math.prod(images.shape)
    if keep is None:
        room = total_memory(device)
        keep = room is not None and images.decoded and size <= SHARE * room
    return size if keep and device.type != "cpu" else 0


class TrainingImages:
    """The images of an episode, as batches on the device.

    On a GPU with room for all of them they are copied once; then a batch needs its positions alone. Otherwise every
    batch is copied from the host, while the device works on the one before.
    """

    def __init__(self, images: Images, device: torch.device, keep: bool | None = None) -> None:
        """`keep`: see `kept_bytes`."""
        self.images, self.device = images, device
        self.kept: Tensor | None = None
        if kept_bytes(images, device, keep):
            self.kept = upload(images.take(torch.arange(len(images))), device)

    def take(self, positions: Tensor) -> Tensor:
        """uint8 [N, 3, H, W] on the device."""
        if self.kept is None:
            return upload(self.images.take(positions), self.device)
        return self.kept[upload(positions, self.device)]

    def prefetch(self, positions: Tensor) -> None:
        """Hint that these images will be taken soon."""
        if self.kept is None:
            self.images.prefetch(positions)
