"""What a grid of runs will cost on this machine. What had to be measured is cached, so that a plan takes no time."""

from __future__ import annotations

import platform
import shlex
import time
from dataclasses import dataclass, replace

import torch

import osiris
from osiris.config import Config, to_dict
from osiris.console import duration
from osiris.data.catalogue import DATASETS, parse_name
from osiris.data.tinyworld.walk import FRAMES
from osiris.devices import open_device
from osiris.evaluation.fingerprint import json_digest
from osiris.files import cache_directory, read_json, write_json
from osiris.framework.composition import resolve
from osiris.framework.config import BY_SUMS
from osiris.framework.cost import TWO_VIEWS, later_cost, measure_cost
from osiris.framework.terms import X
from osiris.framework.tracing import IMAGES
from osiris.grids.grid import GridDirectory, GridRun
from osiris.models.encoder import build_encoder
from osiris.training.estimate import encoder_flops

PROBE_SECONDS = 0.3
"""Seconds for which the speed of an encoder is measured."""


START_SECONDS, WHOLE_RUN = 3.0, 2.0
REPORT_SECONDS, REPORT_RUN = 10.0, 0.5
"""Of the report of a grid, and more for each run."""


@dataclass(frozen=True)
class RunCost:
    """The estimated cost of one run."""

    flops: float
    """FLOPs of the encoder, forward and backward, in training and evaluation."""
    seconds: float
    """Of the encoder alone: a run does not take less."""

    @property
    def most(self) -> float:
        """With start, views, losses, updates and the KNN: what runs on a CPU were measured to need, rounded up."""
        return START_SECONDS + WHOLE_RUN * self.seconds


@dataclass(frozen=True)
class Sizes:
    """The numbers of images of a benchmark under a config, known without loading it."""

    train_per_task: list[int]
    bank: int
    test: int
    side: int


class Costs:
    """Costs of runs. Measurements (encoder passes of a method, FLOPs and speed of an encoder) are kept on disk."""

    def __init__(self) -> None:
        self.path = cache_directory() / "costs.json"
        try:
            self.known: dict[str, float] = read_json(self.path)
        except (OSError, ValueError):
            self.known = {}
        self.measured = False

    def of(self, run: GridRun) -> RunCost | None:
        """None where the size of the benchmark is known only after reading the data."""
        config = run.config
        sizes = sizes_of(config)
        if sizes is None:
            return None
        tasks = len(sizes.train_per_task) if self._measure("continual", config) else 1
        tasks = config.evaluation.points if is_stream(config) else tasks
        by_sums = config.method.method in BY_SUMS  # of whole images
        views = sizes.side if by_sums else config.learning.view_size or sizes.side
        passes = (
            (views, self.training_passes(config, sizes)),
            (sizes.side, evaluation_passes(config, sizes, tasks)),
        )
        flops = [count * self._measure("flops", config, side) for side, count in passes]
        seconds = [count / self._measure("speed", config, side) for side, count in passes]
        return RunCost(sum(flops), sum(seconds))

    def training_passes(self, config: Config, sizes: Sizes) -> float:
        """Encoder forward passes of single views in training, a backward pass counted as two."""
        epochs = 1 if config.method.method in BY_SUMS else config.learning.epochs * config.learning.passes
        if is_stream(config):
            return sum(sizes.train_per_task) * epochs * stream_work(config)
        images = [count * epochs for count in sizes.train_per_task]
        first, later = (self._measure(part, config) for part in ("first", "later"))
        return images[0] * first + sum(images[1:]) * later

    def _measure(self, what: str, config: Config, side: int = 0) -> float:
        key = [what, osiris.__version__, to_dict(config.encoder if side else config.method), side]
        key += [platform.node(), platform.machine(), config.engine.threads] if what == "speed" else []
        name = json_digest(key)
        if name not in self.known:
            self.known[name], self.measured = float(measure_part(what, config, side)), True
        return self.known[name]

    def save(self) -> None:
        if self.measured:
            write_json(self.path, self.known)


def measure_part(what: str, config: Config, side: int) -> float:
    """Of the method: whether it is `continual`, and encoder passes per image in the `first` and in a `later` task. Of
    the encoder with images of `side` pixels: `flops` and `speed` of a forward pass."""
    if what == "flops":
        return encoder_flops(config.encoder, side)
    if what == "speed":
        return speed(config, side)
    method = resolve(config.method)
    if what == "continual":
        return method.learns == "continual"
    return TWO_VIEWS.work if what == "first" and method.sums is None else later_cost(method).work


def is_stream(config: Config) -> bool:
    return config.data.stream is not None or parse_name(config.data.benchmark).order.startswith("walk")


def stream_work(config: Config) -> float:
    """Encoder passes for each image of a stream and each of its passes, with |Y| as it is in a mini-batch."""
    method = resolve(config.method)
    if method.sums is not None:
        return later_cost(method).work
    batch, plain = config.learning.batch_size, replace(method, replay_count=None)
    more = (method.replayed(batch) / batch) / (plain.replayed(IMAGES) / IMAGES)
    return sum(cost.work * (1 if name.endswith(X) else more) for name, cost in measure_cost(plain).items())


def sizes_of(config: Config) -> Sizes | None:
    data, name = config.data, parse_name(config.data.benchmark)
    if name.kind != "known" or name.task_count is None:
        return None
    known, tasks = DATASETS[name.place], name.task_count
    classes, train, test, side = known.class_count, known.train_per_class, known.test_per_class, known.size
    used = min(train, data.train_per_class or train)
    per_task = [classes * used // tasks] * tasks
    if name.order.startswith("walk"):
        per_task = [data.frames or FRAMES]
    bank = classes * min(train, data.bank_per_class or train)
    return Sizes(per_task, bank, classes * min(test, data.test_per_class or test), data.image_size or side)


def evaluation_passes(config: Config, sizes: Sizes, stages: int) -> float:
    """Forward passes of bank and test images, at task ends and wherever --evaluate-every asks."""
    every = config.evaluation.evaluate_every
    if every:
        steps = config.learning.epochs * max(1, sizes.train_per_task[0] // config.learning.batch_size)
        stages += len(sizes.train_per_task) * (steps // every)
    return float(stages * (sizes.bank + sizes.test))


def speed(config: Config, side: int) -> float:
    """Views per second through a forward pass alone, as a third of the time of a training step, on the device that
    training would choose. On a CPU processor time counts, because other programs may be running now."""
    device, threads = open_device("auto", config.engine.tf32), config.engine.threads
    before = torch.get_num_threads()
    torch.set_num_threads(threads or before)

    def now() -> float:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.process_time() / torch.get_num_threads() if device.type == "cpu" else time.perf_counter()

    try:
        model = build_encoder(config.encoder).to(device)
        batch = torch.zeros(32, 3, side, side, device=device)
        model(batch).square().mean().backward()  # warm up
        views, started = 0, now()
        while views == 0 or now() - started < PROBE_SECONDS:
            model(batch).square().mean().backward()
            views += len(batch)
        return 3 * views / (now() - started)
    finally:
        torch.set_num_threads(before)


def print_plan(directory: GridDirectory, jobs: int) -> None:
    """The commands as they would be typed, with their costs as comments: the output is a script."""
    costs, known = Costs(), list[RunCost]()
    of_any_seed: dict[GridRun, RunCost | None] = {}
    for run in directory.runs:
        alike = replace(run, seed=0)
        cost = of_any_seed[alike] = of_any_seed[alike] if alike in of_any_seed else costs.of(alike)
        known += [] if cost is None else [cost]
        text = "cost unknown: the size of this benchmark is known only after reading the data"
        text = text if cost is None else f"{cost.flops:.2e} FLOPs, {_range(cost.seconds, cost.most)}"
        command = ["osiris", "train", *run.arguments, "--out", str(directory.folder(run))]
        print(f"{shlex.join(command)}    # {text}", flush=True)
    costs.save()
    flops, least = sum(cost.flops for cost in known), sum(cost.seconds for cost in known)
    most, report = sum(cost.most for cost in known), REPORT_SECONDS + REPORT_RUN * len(known)
    print(
        f"# {len(directory.runs)} runs: {flops:.2e} FLOPs in encoders, {_range(least, most + report)} one after the "
        f"other on this machine, {_range(least / jobs, most / jobs + report)} with {jobs} at a time. The lower number"
        " is the encoders alone, the upper one whole runs with their evaluations and the report"
    )


def _range(least: float, most: float) -> str:
    return f"{duration(least)} to {duration(most)}"
