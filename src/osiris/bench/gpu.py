"""The speed of training on a GPU, by precision, against its encoder passes alone and against matrix products."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from osiris.bench import bare_passes, second_task
from osiris.config import Config, with_options
from osiris.devices import open_device
from osiris.framework.cost import later_cost
from osiris.presets import paper
from osiris.training.estimate import encoder_flops


@dataclass(frozen=True)
class Speed:
    """Training on a GPU: osiris-d in its second task."""

    what: str
    images: float
    """Images of X per second."""
    of_passes: float
    """The rate of a step as a part of that of its bare encoder passes."""
    of_products: float
    """FLOP/s of a step as a part of those of a matrix product in the same precision."""


def on_gpu(repeats: int) -> list[Speed]:
    """The presets `paper` and `gpu`, and what lies between them."""
    base, rows = paper("tinyworld"), []
    for name, options in {
        "`paper`: float32": {},
        "TF32": {"tf32": True},
        "bf16": {"precision": "bf16"},
        "float16": {"precision": "16"},
        "TF32, compiled": {"tf32": True, "compile": True},
        "`gpu`: bf16, compiled": {"precision": "bf16", "compile": True},
    }.items():
        rows.append(training_speed(name, with_options(base, options), "cuda", repeats))
    return rows


def training_speed(name: str, config: Config, device: str, repeats: int) -> Speed:
    chosen = open_device(device, config.engine.tf32)
    engine, phase = second_task("osiris-d", config, chosen)
    images, kinds = engine.step(phase, 0).images, {"32": torch.float32, "bf16": torch.bfloat16, "16": torch.float16}
    matrix = torch.randn(4096, 4096, device=chosen, dtype=kinds[config.engine.precision])
    side = config.learning.view_size or engine.benchmark.train.images.shape[1]
    work = images * later_cost(engine.method).work * encoder_flops(config.encoder, side)
    passes = bare_passes(engine, images)
    step, bare, product = (
        wall_seconds(one, chosen, repeats) for one in (lambda: engine.step(phase, 1), passes, lambda: matrix @ matrix)
    )
    return Speed(name, images / step, bare / step, work / step / (2 * 4096**3 / product))


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
