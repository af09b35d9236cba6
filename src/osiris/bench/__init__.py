"""The speeds that matter, as ratios within one run: another machine changes the times but hardly the ratios.

The two sides of a ratio take turns, each measured in CPU time of one thread, and the ratio is the median over the
turns; so another load on the machine matters little, and to both alike.
"""

from __future__ import annotations

import importlib.util
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
from osiris.config import Config, LearningConfig
from osiris.data.load import load_benchmark
from osiris.evaluation.evaluate import rank_test_images
from osiris.evaluation.features import embed_benchmark
from osiris.framework import losses
from osiris.framework.cost import later_cost
from osiris.framework.methods import find_method
from osiris.models.config import EncoderConfig, ProjectorConfig
from osiris.models.encoder import build_encoder
from osiris.presets import fast
from osiris.randomness import generator
from osiris.training.engine import Engine
from osiris.training.estimate import encoder_flops
from osiris.training.schedule import Episode, plan_episodes

CPU = torch.device("cpu")
MEAN, STD = (0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)


@dataclass(frozen=True)
class Row:
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


def augmentation(repeats: int) -> list[Row]:
    images, views = smooth_images(448), TwoViews(MEAN, STD)
    arrays = images.permute(0, 2, 3, 1).contiguous().numpy()

    def ours() -> Tensor:
        return views(images, generator(0, "augment.x"))

    per_image = ratio(lambda: pillow_two_views(arrays, generator(0, "augment.x")), ours, repeats)
    rows = [Row("two views: Pillow, image by image / osiris", per_image, at_least=12)]
    if importlib.util.find_spec("kornia") is not None:
        rows.append(Row("two views: kornia / osiris", ratio(_kornia(images), ours, repeats), at_least=2.5))
    return rows


def _kornia(images: Tensor) -> Callable[[], object]:
    import kornia.augmentation as augmentation  # pyright: ignore[reportMissingImports]

    pipelines = [
        augmentation.AugmentationSequential(
            augmentation.RandomResizedCrop((32, 32), view.crop_scale, view.crop_ratio, resample="bicubic"),
            augmentation.RandomHorizontalFlip(view.flip),
            augmentation.ColorJitter(view.brightness, view.contrast, view.saturation, view.hue, p=0.8),
            augmentation.RandomGrayscale(p=view.grey),
            augmentation.RandomGaussianBlur((17, 17), view.blur_sigma, p=view.blur),
            augmentation.RandomSolarize(p=view.solarise),
            augmentation.Normalize(torch.tensor(MEAN), torch.tensor(STD)),
        )
        for view in (VIEW_1, VIEW_2)
    ]
    return lambda: [pipeline(images.float() / 255) for pipeline in pipelines]


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


def step(repeats: int) -> list[Row]:
    """Of the paper's encoder, and of the `fast` one, which is so cheap that views, heads and optimiser weigh more."""
    small = fast("tinyworld")
    fast_config = replace(small, learning=replace(small.learning, batch_size=64))
    learning = LearningConfig(batch_size=16, memory_size=24)
    paper_config = replace(small, encoder=EncoderConfig(), projector=ProjectorConfig(), learning=learning)
    rows = []
    for name, config, turns in (("ResNet-18", paper_config, min(repeats, 5)), ("`fast`", fast_config, repeats)):
        what = f"a step of osiris-d, {name} / its encoder passes"
        rows.append(Row(what, _step_ratio(config, turns), at_most=1.05))
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


def loss_share(repeats: int) -> list[Row]:
    """All losses of osiris-d at 256 + 192 images, against the passes of the paper's encoder (16 images, scaled up)."""
    x, y, past = (torch.nn.functional.normalize(torch.randn(2, count, 128), dim=-1) for count in (256, 192, 256))
    x.requires_grad_()
    y.requires_grad_()

    def all_losses() -> None:
        cross = losses.cross(x, y) + losses.cross(y, x)
        (losses.contrast(x) + cross + losses.distil(x, past) + losses.distil(past, x)).backward()

    encoder, images = build_encoder(EncoderConfig()), torch.randn(16, 3, 32, 32)
    passes = (2 * (256 + 192) + 2 * 256 / 3) / len(images)
    share = ratio(all_losses, lambda: encoder(images).sum().backward(), repeats) / passes
    return [Row("all losses of osiris-d / the step", share, at_most=0.02)]


def efficiency(repeats: int) -> list[Row]:
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
        rows.append(Row(f"FLOP/s of {name} / FLOP/s of a matrix product", speed, at_least=target))
    return rows


# ---- the rest -------------------------------------------------------------------------------------------------------


def evaluation(repeats: int) -> list[Row]:
    """All numbers of a checkpoint from one pass over the images, against a pass for each of them."""
    config = fast("tinyworld")
    benchmark, encoder = load_benchmark(config.data), build_encoder(config.encoder)
    metrics = [*config.evaluation.protocols, "task level"]

    def once() -> None:
        rank_test_images(embed_benchmark(encoder, benchmark), benchmark, config.evaluation)

    def for_each_metric() -> None:
        for _ in (*metrics, "health"):
            embed_benchmark(encoder, benchmark)
        rank_test_images(embed_benchmark(encoder, benchmark), benchmark, config.evaluation)

    gain = ratio(for_each_metric, once, min(repeats, 5))
    return [Row("evaluation: features computed for each metric / osiris", gain, at_least=3)]


def start(repeats: int) -> list[Row]:
    """Wall-clock seconds: what a user waits for."""
    seconds = []
    for _ in range(min(repeats, 5)):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-m", "osiris", "list"], check=True, capture_output=True)
        seconds.append(time.perf_counter() - began)
    return [Row("seconds for `osiris list` (wall clock)", statistics.median(seconds), at_most=2)]


PARTS = (augmentation, step, loss_share, efficiency, evaluation, start)
