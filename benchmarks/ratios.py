"""Times that should stay in proportion: augmentation, a step and the encoders, each against a yardstick.

    python benchmarks/ratios.py [--repeats 5]

The two sides of a ratio take turns, each measured in CPU time of one thread, and the ratio is the median over the
turns; so another machine changes the ratios little, and another load on the machine matters to both sides alike. The
targets are there to notice when something became slower: docs/performance.md has a profile that says what keeps them
from being stricter.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from osiris.augment.views import TwoViews
from osiris.bench import bare_passes, second_task
from osiris.config import Config, LearningConfig
from osiris.models.config import EncoderConfig, ProjectorConfig
from osiris.models.encoder import build_encoder
from osiris.presets import preset_config
from osiris.randomness import generator
from osiris.training.estimate import encoder_flops

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
from pillow_views import pillow_two_views

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


def smooth_images(count: int, side: int = 32) -> Tensor:
    coarse = torch.rand(count, 3, 8, 8, generator=generator(0, "bench"))
    return (torch.nn.functional.interpolate(coarse, (side, side), mode="bicubic").clamp_(0, 1) * 255).to(torch.uint8)


def augmentation(repeats: int) -> list[Ratio]:
    images, views = smooth_images(448), TwoViews(MEAN, STD)
    arrays = images.permute(0, 2, 3, 1).contiguous().numpy()

    def ours() -> Tensor:
        return views(images, generator(0, "augment.x"))

    per_image = ratio(lambda: pillow_two_views(arrays, generator(0, "augment.x"), MEAN, STD), ours, repeats)
    return [Ratio("two views: Pillow, image by image / osiris", per_image, at_least=5)]


def step(repeats: int) -> list[Ratio]:
    """Of the paper's encoder, and of the `fast` one, which is so cheap that views, heads and optimiser weigh more."""
    small = preset_config("fast", "tinyworld")
    fast_config = replace(small, learning=replace(small.learning, batch_size=64))
    learning = LearningConfig(batch_size=16, memory_size=24)
    paper_config = replace(small, encoder=EncoderConfig(), projector=ProjectorConfig(), learning=learning)
    rows = []
    for name, config, turns, target in (
        ("ResNet-18", paper_config, min(repeats, 5), 1.05),
        ("`fast`", fast_config, repeats, 1.45),
    ):
        what = f"a step of osiris-d, {name} / its encoder passes"
        rows.append(Ratio(what, _step_ratio(config, turns), at_most=target))
    return rows


def _step_ratio(config: Config, repeats: int) -> float:
    engine, phase = second_task("osiris-d", config)
    bare = bare_passes(engine, engine.step(phase, 0).images)
    return ratio(lambda: engine.step(phase, 1), bare, repeats)


def efficiency(repeats: int) -> list[Ratio]:
    """FLOP/s of training passes against those of a matrix product."""
    matrix, rows = torch.randn(2048, 2048), []
    shapes = (
        ("ResNet-18, GroupNorm, Mish", EncoderConfig(), 16, 32, 0.55),
        ("the encoder of `fast`", preset_config("fast", "split-cifar100-20").encoder, 128, 24, 0.5),
    )
    for name, config, count, side, target in shapes:
        encoder, images = build_encoder(config), torch.randn(count, 3, side, side)
        times = ratio(lambda m=matrix: m @ m, lambda e=encoder, i=images: e(i).sum().backward(), repeats)
        speed = times * 3 * count * encoder_flops(config, side) / (2 * 2048**3)
        rows.append(Ratio(f"FLOP/s of {name} / FLOP/s of a matrix product", speed, at_least=target))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for measure in (augmentation, step, efficiency):
        for one in measure(options.repeats):
            print(f"{one.what:70}{one.ratio:8.3g}   {one.target}: {'met' if one.met else 'missed'}", flush=True)


if __name__ == "__main__":
    main()
