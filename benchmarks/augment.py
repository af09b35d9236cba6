"""Two views of a batch: the batched augmentation against a loop over images with Pillow, in one run on one thread.

    python benchmarks/augment.py [--images 448] [--side 32] [--size SIDE] [--repeats 9]

Both make the paper's two views from the same drawn parameters, decoded uint8 images to normalised float32. Times are
CPU time of the process, and the two take turns, so that another load on the machine matters little and to both alike;
the ratio is the median of the ratios of each turn.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageEnhance, ImageFilter, ImageOps
from torch import Tensor

from osiris.augment.views import VIEW_1, VIEW_2, Parameters, TwoViews, draw
from osiris.randomness import generator

MEAN, STD = (0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)


def shift_hue(image: Image.Image, turns: float) -> Image.Image:
    hue, saturation, value = image.convert("HSV").split()
    shifted = np.asarray(hue) + np.uint8(round(turns * 255) % 256)
    return Image.merge("HSV", (Image.fromarray(shifted), saturation, value)).convert("RGB")


JITTER: tuple[Callable[[Image.Image, float], Image.Image], ...] = (
    lambda image, factor: ImageEnhance.Brightness(image).enhance(factor),
    lambda image, factor: ImageEnhance.Contrast(image).enhance(factor),
    lambda image, factor: ImageEnhance.Color(image).enhance(factor),
    shift_hue,
)


def pillow_views(images: np.ndarray, drawn: Parameters, size: tuple[int, int]) -> np.ndarray:
    """One view [B, H, W, 3] of each image, image by image, leaving out what was not drawn."""
    boxes, flips = drawn.box.int().tolist(), drawn.flip.tolist()
    assert drawn.factors is not None and drawn.turn is not None and drawn.grey is not None and drawn.sigma is not None
    factors, orders = drawn.factors.tolist(), drawn.turn.argsort(1).tolist()
    greys, sigmas = drawn.grey.tolist(), drawn.sigma.tolist()
    thresholds = [2.0] * len(images) if drawn.threshold is None else drawn.threshold.tolist()
    views = []
    for index, array in enumerate(images):
        top, left, tall, wide = boxes[index]
        image = Image.fromarray(array).crop((left, top, left + wide, top + tall))
        image = image.resize(size, Image.Resampling.BICUBIC)
        if flips[index]:
            image = ImageOps.mirror(image)
        if factors[index] != [1.0, 1.0, 1.0, 0.0]:
            for operation in orders[index]:
                image = JITTER[operation](image, factors[index][operation])
        if greys[index]:
            image = ImageOps.grayscale(image).convert("RGB")
        if sigmas[index]:
            image = image.filter(ImageFilter.GaussianBlur(sigmas[index]))
        if thresholds[index] <= 1:
            image = ImageOps.solarize(image, 128)
        views.append(np.asarray(image))
    return np.stack(views)


def pillow_two_views(images: np.ndarray, side: int, step: int) -> Tensor:
    source, (height, width) = generator(0, "augment.x", step), images.shape[1:3]
    made = [
        pillow_views(images, draw(len(images), height, width, view, source), (side, side)) for view in (VIEW_1, VIEW_2)
    ]
    views = torch.from_numpy(np.stack(made)).permute(0, 1, 4, 2, 3).contiguous().float().div_(255)
    return views.sub_(torch.tensor(MEAN).view(3, 1, 1)).div_(torch.tensor(STD).view(3, 1, 1))


def milliseconds(work: Callable[[], Tensor]) -> tuple[float, Tensor]:
    start = time.process_time()
    made = work()
    return (time.process_time() - start) * 1000, made


def processor() -> str:
    information = Path("/proc/cpuinfo")
    lines = information.read_text().splitlines() if information.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=448, help="images in the batch")
    parser.add_argument("--side", type=int, default=32, help="side of the images in pixels")
    parser.add_argument("--size", type=int, help="side of the views in pixels (default: the images')")
    parser.add_argument("--repeats", type=int, default=9, help="turns to take")
    options = parser.parse_args()
    torch.set_num_threads(1)
    size = options.size or options.side

    coarse = torch.rand(options.images, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    smooth = torch.nn.functional.interpolate(coarse, (options.side, options.side), mode="bicubic").clamp_(0, 1)
    images = (smooth * 255).to(torch.uint8)
    arrays = images.permute(0, 2, 3, 1).contiguous().numpy()
    views = TwoViews(MEAN, STD, size=size)

    batched, pillow, difference = [], [], 0.0
    for step in range(options.repeats + 1):
        ours, made = milliseconds(lambda step=step: views(images, generator(0, "augment.x", step)))
        theirs, wanted = milliseconds(lambda step=step: pillow_two_views(arrays, size, step))
        difference = max(difference, ((made - wanted) * torch.tensor(STD).view(3, 1, 1)).abs().mean().item())
        if step:  # the first turn warms up
            batched.append(ours)
            pillow.append(theirs)

    print(f"{options.images} images {options.side}x{options.side}, two views {size}x{size}; {options.repeats} repeats")
    print(f"{processor()}, 1 thread of {os.cpu_count()} cores, torch {torch.__version__}, Pillow {Image.__version__}")
    for name, times in (("batched", batched), ("Pillow", pillow)):
        print(f"{name:8s} median {statistics.median(times):8.1f} ms   min {min(times):8.1f}   max {max(times):8.1f}")
    ratio = statistics.median(theirs / ours for ours, theirs in zip(batched, pillow))
    print(f"batched is {ratio:.1f} times as fast; mean difference {255 * difference:.2f}/255")


if __name__ == "__main__":
    main()
