"""`osiris bench`: ratios of two times measured in one run, which another machine hardly changes; and speeds on a GPU.

The two sides of a ratio take turns, each measured in CPU time of one thread, and the ratio is the median over the
turns; so another load on the machine matters little, and to both alike.
"""

from __future__ import annotations

import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from PIL import Image, ImageEnhance, ImageFilter, ImageOps
from torch import Tensor

from osiris.augment.views import VIEW_1, VIEW_2, Parameters, TwoViews, draw
from osiris.config import Config, LearningConfig, with_options
from osiris.data.benchmarks import load_benchmark
from osiris.devices import open_device
from osiris.framework.cost import later_cost
from osiris.framework.methods import find_method
from osiris.models.config import EncoderConfig, ProjectorConfig
from osiris.models.encoder import build_encoder
from osiris.presets import fast, paper
from osiris.randomness import generator
from osiris.training.engine import Engine
from osiris.training.estimate import encoder_flops
from osiris.training.schedule import Episode, plan_episodes

CPU = torch.device("cpu")
MEAN, STD = (0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)


@dataclass(frozen=True)
class Ratio:
    """One line of the table."""

    what: str
    ratio: float
    at_least: float | None = None
    at_most: float | None = None

    @property
    def target(self) -> str:
        return f"at most {self.at_most:g}" if self.at_least is None else f"at least {self.at_least:g}"

    @property
    def met(self) -> bool:
        return (self.at_least or -math.inf) <= self.ratio <= (self.at_most or math.inf)


def cpu_seconds(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def ratio(numerator: Callable[[], object], denominator: Callable[[], object], repeats: int) -> float:
    """Median over turns of the time of one over the time of the other; a first turn warms up."""
    turns = [cpu_seconds(numerator) / cpu_seconds(denominator) for _ in range(repeats + 1)]
    return statistics.median(turns[1:])


# ---- augmentation ---------------------------------------------------------------------------------------------------


def _shift_hue(image: Image.Image, turns: float) -> Image.Image:
    hue, saturation, value = image.convert("HSV").split()
    shifted = np.asarray(hue) + np.uint8(round(turns * 255) % 256)
    return Image.merge("HSV", (Image.fromarray(shifted), saturation, value)).convert("RGB")


JITTER: tuple[Callable[[Image.Image, float], Image.Image], ...] = (
    lambda image, factor: ImageEnhance.Brightness(image).enhance(factor),
    lambda image, factor: ImageEnhance.Contrast(image).enhance(factor),
    lambda image, factor: ImageEnhance.Color(image).enhance(factor),
    _shift_hue,
)


def pillow_view(array: np.ndarray, drawn: Parameters, index: int) -> np.ndarray:
    """One view of one image [H, W, 3] with the drawn parameters, as the usual pipeline makes it."""
    top, left, tall, wide = drawn.box[index].int().tolist()
    image = Image.fromarray(array).crop((left, top, left + wide, top + tall))
    image = image.resize((array.shape[1], array.shape[0]), Image.Resampling.BICUBIC)
    if drawn.flip[index]:
        image = ImageOps.mirror(image)
    assert drawn.factors is not None and drawn.turn is not None and drawn.grey is not None and drawn.sigma is not None
    factors = drawn.factors[index].tolist()
    if factors != [1.0, 1.0, 1.0, 0.0]:
        for operation in drawn.turn[index].argsort().tolist():
            image = JITTER[operation](image, factors[operation])
    if drawn.grey[index]:
        image = ImageOps.grayscale(image).convert("RGB")
    if drawn.sigma[index]:
        image = image.filter(ImageFilter.GaussianBlur(float(drawn.sigma[index])))
    if drawn.threshold is not None and drawn.threshold[index] <= 1:
        image = ImageOps.solarize(image, 128)
    return np.asarray(image)


def pillow_two_views(images: np.ndarray, source: torch.Generator) -> Tensor:
    count, height, width, _ = images.shape
    parameters = [draw(count, height, width, view, source) for view in (VIEW_1, VIEW_2)]
    both = [[pillow_view(array, view, index) for index, array in enumerate(images)] for view in parameters]
    views = torch.from_numpy(np.array(both)).permute(0, 1, 4, 2, 3).float().div_(255)
    return views.sub_(torch.tensor(MEAN).view(3, 1, 1)).div_(torch.tensor(STD).view(3, 1, 1))


def smooth_images(count: int, side: int = 32) -> Tensor:
    coarse = torch.rand(count, 3, 8, 8, generator=generator(0, "bench"))
    return (torch.nn.functional.interpolate(coarse, (side, side), mode="bicubic").clamp_(0, 1) * 255).to(torch.uint8)


def augmentation(repeats: int) -> list[Ratio]:
    images, views = smooth_images(448), TwoViews(MEAN, STD)
    arrays = images.permute(0, 2, 3, 1).contiguous().numpy()

    def ours() -> Tensor:
        return views(images, generator(0, "augment.x"))

    per_image = ratio(lambda: pillow_two_views(arrays, generator(0, "augment.x")), ours, repeats)
    return [Ratio("two views: Pillow, image by image / osiris", per_image, at_least=12)]


# ---- a step ---------------------------------------------------------------------------------------------------------


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


def step(repeats: int) -> list[Ratio]:
    """Of the paper's encoder, and of the `fast` one, which is so cheap that views, heads and optimiser weigh more."""
    small = fast("tinyworld")
    fast_config = replace(small, learning=replace(small.learning, batch_size=64))
    learning = LearningConfig(batch_size=16, memory_size=24)
    paper_config = replace(small, encoder=EncoderConfig(), projector=ProjectorConfig(), learning=learning)
    rows = []
    for name, config, turns in (("ResNet-18", paper_config, min(repeats, 5)), ("`fast`", fast_config, repeats)):
        what = f"a step of osiris-d, {name} / its encoder passes"
        rows.append(Ratio(what, _step_ratio(config, turns), at_most=1.05))
    return rows


def _step_ratio(config: Config, repeats: int) -> float:
    engine, phase = second_task("osiris-d", config)
    bare = bare_passes(engine, engine.step(phase, 0).images)
    return ratio(lambda: engine.step(phase, 1), bare, repeats)


def bare_passes(engine: Engine, images: int) -> Callable[[], None]:
    """The encoder passes of a step with so many images of X, and nothing else."""
    size, cost, encoder = engine.config.learning.view_size or 32, later_cost(engine.method), engine.networks.encoder
    live = torch.randn(round(images * cost.backward), 3, size, size, device=engine.device)
    frozen = torch.randn(round(images * cost.frozen), 3, size, size, device=engine.device)

    def bare() -> None:
        with engine.autocast():
            features = encoder(live)
        features.sum().backward()
        with torch.no_grad(), engine.autocast():
            encoder(frozen)

    return bare


def efficiency(repeats: int) -> list[Ratio]:
    """FLOP/s of training passes against those of a matrix product."""
    matrix, rows = torch.randn(2048, 2048), []
    shapes = (
        ("ResNet-18, GroupNorm, Mish", EncoderConfig(), 16, 32, 0.75),
        ("the encoder of `fast`", fast("split-cifar100-20").encoder, 128, 24, 0.5),
    )
    for name, config, count, side, target in shapes:
        encoder, images = build_encoder(config), torch.randn(count, 3, side, side)
        times = ratio(lambda m=matrix: m @ m, lambda e=encoder, i=images: e(i).sum().backward(), repeats)
        speed = times * 3 * count * encoder_flops(config, side) / (2 * 2048**3)
        rows.append(Ratio(f"FLOP/s of {name} / FLOP/s of a matrix product", speed, at_least=target))
    return rows


def start(repeats: int) -> list[Ratio]:
    """Wall-clock seconds: what a user waits for."""
    seconds = []
    for _ in range(min(repeats, 5)):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-m", "osiris", "list"], check=True, capture_output=True)
        seconds.append(time.perf_counter() - began)
    return [Ratio("seconds for `osiris list` (wall clock)", statistics.median(seconds), at_most=2)]


PARTS = (augmentation, step, efficiency, start)


# ---- on a GPU -----------------------------------------------------------------------------------------------------


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
