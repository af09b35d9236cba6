"""What a chain of runs will cost on this machine, before any of it starts."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

from osiris.framework.cost import Estimate, encoder_work, estimate
from osiris.models.config import EncoderConfig
from osiris.reproduce.recipes import PlannedRun
from osiris.training.config import Config
from osiris.training.presets import preset

PROBE_SECONDS = 1.0
"""How long the speed of an encoder is measured."""


@dataclass(frozen=True)
class Sizes:
    """Of a benchmark under a config, from published facts: nothing is loaded."""

    train_per_task: list[int]
    bank: int
    test: int
    side: int


def config_of(run: PlannedRun) -> Config:
    base = preset(run.preset, run.benchmark)
    return replace(
        base,
        seed=run.seed,
        encoder=replace(base.encoder, norm=run.norm),
        method=replace(base.method, method=run.method),
        evaluation=replace(base.evaluation, evaluate_every=run.evaluate_every),
    )


def sizes_of(config: Config) -> Sizes | None:
    """None for a benchmark whose size is known only after looking (own folders and data sets)."""
    from osiris.data.names import DATASETS, parse_name

    data, name = config.data, parse_name(config.data.benchmark)
    if name.kind != "known" or name.task_count is None:
        return None
    known, tasks = DATASETS[name.place], name.task_count
    classes, train, test, side = known.class_count, known.train_per_class, known.test_per_class, known.size
    shown = min(train, data.train_per_class or train)
    per_task = [classes * shown // tasks] * tasks
    bank = classes * min(train, data.bank_per_class or train)
    return Sizes(per_task, bank, classes * min(test, data.test_per_class or test), data.image_size or side)


def estimate_run(run: PlannedRun) -> Estimate | None:
    """Training, the evaluations, and hours at the speed measured here; None where sizes are not known."""
    from osiris.framework.composition import resolve
    from osiris.training.estimate import encoder_flops

    config = config_of(run)
    sizes = sizes_of(config)
    if sizes is None:
        return None
    method = resolve(config.method)
    continual = method.stream == "continual"
    work = encoder_work(method, sizes.train_per_task, config.learning.epochs)
    work += evaluation_work(config, sizes, continual)
    speed = forwards_per_second(config.encoder, sizes.side, config.engine.threads or 0)
    return estimate(work, encoder_flops(config.encoder, sizes.side), speed)


def evaluation_work(config: Config, sizes: Sizes, continual: bool) -> float:
    """Forward passes of bank and test images, at task ends and wherever --evaluate-every asks."""
    tasks = len(sizes.train_per_task)
    count = tasks if continual else 1
    every = config.evaluation.evaluate_every
    if every:
        steps = config.learning.epochs * max(1, sizes.train_per_task[0] // config.learning.batch_size)
        count += tasks * (steps // every)
    return float(count * (sizes.bank + sizes.test))


@cache
def forwards_per_second(encoder: EncoderConfig, side: int, threads: int) -> float:
    """Views per second through a forward pass alone, as a third of the time of a training step, on the device that
    training would choose. On a CPU the time of the processor counts, not of the clock: others may be using it now."""
    import torch

    from osiris.models import build_encoder
    from osiris.training.devices import choose_device

    device = choose_device("auto")
    before = torch.get_num_threads()
    if threads:
        torch.set_num_threads(threads)
    try:
        model = build_encoder(encoder).to(device)
        batch = torch.zeros(32, 3, side, side, device=device)

        def now() -> float:
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            return time.process_time() / torch.get_num_threads() if device.type == "cpu" else time.perf_counter()

        model(batch).square().mean().backward()  # warms up
        seen, started = 0, now()
        while seen == 0 or now() - started < PROBE_SECONDS:
            model(batch).square().mean().backward()
            seen += 1
        return 3 * seen * len(batch) / (now() - started)
    finally:
        torch.set_num_threads(before)


def totals(estimates: Sequence[Estimate | None]) -> tuple[float, float]:
    """(FLOPs, hours) of all that is known."""
    known = [one for one in estimates if one is not None]
    return sum(one.flops for one in known), sum(one.hours or 0.0 for one in known)
