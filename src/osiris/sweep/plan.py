"""What a grid of runs will cost on this machine. What had to be measured is cached, so that a plan takes no time."""

from __future__ import annotations

import platform
import shlex
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import osiris
from osiris.evaluation.fingerprint import digest
from osiris.files import cache_directory, read_json, write_json
from osiris.models.config import EncoderConfig
from osiris.sweep.grid import GridDirectory, GridRun
from osiris.sweep.sharing import first_task_files
from osiris.training.config import Config, to_dict

PROBE_SECONDS = 1.0
"""How long the speed of an encoder is measured."""


@dataclass(frozen=True)
class Cost:
    """Of one run."""

    flops: float
    """Of the encoder, forward and backward, evaluation included."""
    hours: float


@dataclass(frozen=True)
class Sizes:
    """Of a benchmark under a config. Nothing is loaded."""

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

    def of(self, run: GridRun, first_task: bool = True) -> Cost | None:
        """None where the size of the benchmark is known only after reading the data. `first_task`: whether the run
        trains it, or takes that of another run."""
        config = run.config
        sizes = sizes_of(config)
        if sizes is None:
            return None
        training, stages = self._passes(config, sizes, first_task), self._stages(config, sizes)
        parts = [
            self._cost(config, config.learning.view_size or sizes.side, training),
            self._cost(config, sizes.side, evaluation_passes(config, sizes, stages)),
        ]
        return Cost(sum(part.flops for part in parts), sum(part.hours for part in parts))

    def _cost(self, config: Config, side: int, passes: float) -> Cost:
        """Of forward passes of single images of `side` pixels."""
        encoder = config.encoder
        flops = self._measure(["flops", asdict(encoder), side], lambda: _flops(encoder, side))
        machine = [platform.node(), platform.machine(), config.engine.threads or 0]
        speed = self._measure(["speed", asdict(encoder), side, *machine], lambda: _speed(config, side))
        return Cost(passes * flops, passes / speed / 3600)

    def save(self) -> None:
        if self.measured:
            write_json(self.path, self.known)

    def _passes(self, config: Config, sizes: Sizes, first_task: bool = True) -> float:
        """Encoder forward passes of single views in training, a backward pass counted as two."""
        key = ["passes", osiris.__version__, to_dict(config.method), len(sizes.train_per_task)]
        first, later = (
            self._measure([*key, part], lambda part=part: _passes_per_image(config, part)) for part in (0, 1)
        )
        images = [count * config.learning.epochs for count in sizes.train_per_task]
        return first_task * images[0] * first + sum(images[1:]) * later

    def _stages(self, config: Config, sizes: Sizes) -> int:
        """Number of evaluations at task ends: one for a method that is not continual."""
        key = ["continual", osiris.__version__, to_dict(config.method)]
        return len(sizes.train_per_task) if self._measure(key, lambda: _continual(config)) else 1

    def _measure(self, key: list[Any], measure) -> float:
        name = digest(key)
        if name not in self.known:
            self.known[name], self.measured = float(measure()), True
        return self.known[name]


def sizes_of(config: Config) -> Sizes | None:
    from osiris.data.names import DATASETS, parse_name

    data, name = config.data, parse_name(config.data.benchmark)
    if name.kind != "known" or name.task_count is None:
        return None
    known, tasks = DATASETS[name.place], name.task_count
    classes, train, test, side = known.class_count, known.train_per_class, known.test_per_class, known.size
    used = min(train, data.train_per_class or train)
    per_task = [classes * used // tasks] * tasks
    bank = classes * min(train, data.bank_per_class or train)
    return Sizes(per_task, bank, classes * min(test, data.test_per_class or test), data.image_size or side)


def evaluation_passes(config: Config, sizes: Sizes, stages: int) -> float:
    """Forward passes of bank and test images, at task ends and wherever --evaluate-every asks."""
    every = config.evaluation.evaluate_every
    if every:
        steps = config.learning.epochs * max(1, sizes.train_per_task[0] // config.learning.batch_size)
        stages += len(sizes.train_per_task) * (steps // every)
    return float(stages * (sizes.bank + sizes.test))


def _continual(config: Config) -> bool:
    from osiris.framework.composition import resolve

    return resolve(config.method).stream == "continual"


def _passes_per_image(config: Config, task: int) -> float:
    """The first task is that of ft, whatever the method."""
    from osiris.framework.composition import resolve
    from osiris.framework.cost import FT, later_cost

    return later_cost(resolve(config.method)).work if task else FT.work


def _flops(encoder: EncoderConfig, side: int) -> float:
    from osiris.training.estimate import encoder_flops

    return encoder_flops(encoder, side)


def _speed(config: Config, side: int) -> float:
    """Views per second through a forward pass alone, as a third of the time of a training step, on the device that
    training would choose. On a CPU processor time counts, because other programs may be running now."""
    import torch

    from osiris.models import build_encoder
    from osiris.training.devices import choose_device

    device, threads = choose_device("auto"), config.engine.threads
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
    costs, first_tasks, trained = Costs(), first_task_files(directory, directory.runs), set[Path]()
    every = []
    for run in directory.runs:
        file = first_tasks.get(run)
        every.append(costs.of(run, first_task=file not in trained))
        trained |= set() if file is None else {file}
        command = ["osiris", "train", *run.arguments, "--out", str(directory.folder(run))]
        print(f"{shlex.join(command)}    # {describe(every[-1])}", flush=True)
    costs.save()
    print(f"# {describe_total(every, jobs)}")


def describe(cost: Cost | None) -> str:
    if cost is None:
        return "cost unknown: the size of this benchmark is known only after reading the data"
    return f"{cost.flops:.2e} FLOPs, {duration(cost.hours)}"


def describe_total(costs: Sequence[Cost | None], jobs: int) -> str:
    known = [cost for cost in costs if cost is not None]
    flops, hours = sum(cost.flops for cost in known), sum(cost.hours for cost in known)
    return (
        f"{len(costs)} runs: {flops:.2e} FLOPs in encoders, {duration(hours)} one after the other on this machine, "
        f"{duration(hours / jobs)} with {jobs} at a time"
    )


def duration(hours: float) -> str:
    if hours < 1 / 60:
        return f"{hours * 3600:.0f} s"
    return f"{hours * 60:.0f} min" if hours < 1 else f"{hours:.1f} h" if hours < 100 else f"{hours / 24:.0f} days"
