"""`osiris bench`: how fast osiris-d trains on this machine, beside its encoder passes alone and a matrix product."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch

from osiris.config import Config, with_options
from osiris.data.load import load_benchmark
from osiris.devices import open_device
from osiris.framework.cost import later_cost
from osiris.framework.methods import find_method
from osiris.presets import preset_config
from osiris.training.engine import Engine
from osiris.training.estimate import encoder_flops
from osiris.training.schedule import Episode, plan_episodes

CPU = torch.device("cpu")
KINDS = {"32": torch.float32, "bf16": torch.bfloat16, "16": torch.float16}


@dataclass(frozen=True)
class Speed:
    """Of osiris-d in its second task."""

    what: str
    images: float
    """Images of X per second."""
    of_passes: float
    """The rate of a step as a part of that of its bare encoder passes."""
    of_products: float
    """FLOP/s of a step as a part of those of a matrix product in the same precision."""


def speeds(repeats: int, device: str) -> Iterator[Speed]:
    """On a CPU the preset `fast` and a small batch of `paper`; on a GPU `paper`, `gpu`, and what lies between them."""
    base, quick = preset_config("paper", "tinyworld"), preset_config("fast", "tinyworld")
    if device == "cpu":
        yield training_speed("`fast`", quick, device, repeats)
        learning = replace(base.learning, batch_size=16, memory_size=24)
        small = replace(quick, encoder=base.encoder, projector=base.projector, learning=learning)
        yield training_speed("`paper`, 16 images per batch", small, device, repeats)
        return
    for name, options in {
        "`paper`: float32": {},
        "TF32": {"tf32": True},
        "bf16": {"precision": "bf16"},
        "float16": {"precision": "16"},
        "TF32, compiled": {"tf32": True, "compile": True},
        "`gpu`: bf16, compiled": {"precision": "bf16", "compile": True},
    }.items():
        yield training_speed(name, with_options(base, options), device, repeats)


def training_speed(name: str, config: Config, device: str, repeats: int) -> Speed:
    chosen = open_device(device, config.engine.tf32)
    engine, episode = second_task("osiris-d", config, chosen)
    images = engine.step(episode, 0).images
    matrix = torch.randn(4096, 4096, device=chosen, dtype=KINDS[config.engine.precision])
    side = config.learning.view_size or engine.benchmark.train.images.shape[1]
    work = images * later_cost(engine.method).work * encoder_flops(config.encoder, side)
    passes = bare_passes(engine, images)
    step, bare, product = (
        wall_seconds(one, chosen, repeats) for one in (lambda: engine.step(episode, 1), passes, lambda: matrix @ matrix)
    )
    return Speed(name, images / step, bare / step, work / step / (2 * 4096**3 / product))


def second_task(method: str, config: Config, device: torch.device = CPU) -> tuple[Engine, Episode]:
    """An engine at the start of the second task, its memory filled."""
    chosen, benchmark = find_method(method), load_benchmark(config.data)
    first, second, *_ = plan_episodes(benchmark, chosen, config.learning)
    engine = Engine(config, chosen, benchmark, device)
    engine.model.begin_task(engine.task_context(first, 0))
    for step in range(2):
        engine.step(first, step)
    engine.end(first)
    engine.begin(second)
    return engine, second


def bare_passes(engine: Engine, images: int) -> Callable[[], None]:
    """The encoder passes of a step with so many images of X, and nothing else."""
    size = engine.config.learning.view_size or engine.benchmark.train.images.shape[1]
    cost, encoder = later_cost(engine.method), engine.networks.encoder
    live = torch.randn(round(images * cost.backward), 3, size, size, device=engine.device)
    frozen = torch.randn(round(images * cost.frozen), 3, size, size, device=engine.device)

    def bare() -> None:
        with engine.autocast():
            features = encoder(live)
        features.sum().backward()
        with torch.no_grad(), engine.autocast():
            encoder(frozen)

    return bare


def wall_seconds(work: Callable[[], object], device: torch.device, repeats: int) -> float:
    """Median over turns, after two that warm up, compile and choose kernels."""
    taken = []
    for _ in range(repeats + 2):
        began = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        taken.append(time.perf_counter() - began)
    return statistics.median(taken[2:])
