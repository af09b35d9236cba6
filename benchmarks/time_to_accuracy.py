"""CPU minutes until joint training on CIFAR-100 reaches a KNN accuracy: `fast`, the paper's recipe, and a library's.

    python benchmarks/time_to_accuracy.py [fast] [paper] [library] [--data-dir DIR] [--minutes 60] [--share 0.5]
        [--out DIR]

Each recipe runs in a process of its own, one after the other, on one thread; name one to run it alone. Results are
written to OUT/RECIPE.json, and the table shows all that are there.

- fast: offline with the preset `fast`, one epoch. Fitting its stem counts as training.
- paper: offline with the preset `paper`.
- library: SimCLR as lightly publishes it for CIFAR-10 (cifar10_benchmark.py in its documentation): ResNet-18 with
  BatchNorm and a small stem, projector 512-512-128 with BatchNorm, NT-Xent at 0.5; crops from 0.08, colour jitter (0.4,
  0.4, 0.4, 0.1), no blur; SGD at 0.06 for each 128 images, cosine over 200 epochs; here with batches of 256. lightly
  needs torchvision, so the same operations are written here in plain torch; network, projector and loss give the
  numbers of lightly 1.6.0. The views are those of osiris: bicubic instead of bilinear, and batched, which is several
  times as fast as one image at a time. (The recipe of solo-learn for this network warms up for ten epochs, so it learns
  less within the first.)

Time is the CPU time of training, views included, without loading the images and without evaluation, for all recipes
with the memory allocation of the commands of osiris, which saves ResNets a fifth of their time. Accuracy is that of
a class-agnostic KNN with the bank, the test images and the k of `fast`, for all recipes. It is measured before
training, at its end, and in between as often as the share of time for evaluation allows; the minutes are those of the
first measurement that reaches the target.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import platform
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from osiris.augment.views import TwoViews, ViewConfig
from osiris.cli import keep_freed_memory
from osiris.data.benchmark import Benchmark
from osiris.data.catalogue import IMAGENET_MEAN, IMAGENET_STD
from osiris.data.load import load_benchmark
from osiris.evaluation.config import ProtocolConfig
from osiris.evaluation.evaluate import rank_test_images
from osiris.evaluation.features import embed_benchmark
from osiris.evaluation.metrics import percent
from osiris.evaluation.protocols import labels_of_test
from osiris.framework import losses
from osiris.framework.methods import find_method
from osiris.models.config import EncoderConfig
from osiris.models.standalone import ResNet
from osiris.presets import configure, preset_config
from osiris.randomness import generator, scoped
from osiris.training.engine import Engine
from osiris.training.schedule import plan_episodes

BENCHMARK = "split-cifar100-20"
"""Joint training does not see its tasks; the stem of `fast` is fitted to images of the first."""
TARGETS = 20, 25
PROTOCOL = "class-agnostic"


@dataclass(frozen=True)
class Training:
    """A recipe at work."""

    encoder: nn.Module
    steps: Iterator[object]
    """Each `next` is a training step."""
    benchmark: Benchmark
    """For evaluation: the mean and deviation that images are normalised with are part of a recipe."""


def with_preset(name: str, benchmark: Benchmark, seed: int) -> Training:
    config, method = configure(BENCHMARK, name, options={"seed": seed}), find_method("offline")
    (episode,) = plan_episodes(benchmark, method, config.learning)
    engine = Engine(config, method, benchmark, torch.device("cpu"))
    engine.begin(episode)
    return Training(engine.networks.encoder, (engine.step(episode, step) for step in range(episode.steps)), benchmark)


def simclr(benchmark: Benchmark, seed: int, batch: int = 256, epochs: int = 200) -> Training:
    benchmark = replace(benchmark, mean=IMAGENET_MEAN, std=IMAGENET_STD)
    with scoped(seed, "init"):
        encoder = ResNet(vars(EncoderConfig(norm="bn")))
        first, last = nn.Linear(512, 512, bias=False), nn.Linear(512, 128, bias=False)
        projector = nn.Sequential(first, nn.BatchNorm1d(512), nn.ReLU(), last, nn.BatchNorm1d(128))
    colours = ViewConfig(brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1, blur=0.0)
    two_views = TwoViews(benchmark.mean, benchmark.std, (colours, colours))
    parameters = [*encoder.parameters(), *projector.parameters()]
    optimiser = torch.optim.SGD(parameters, lr=0.06 * batch / 128, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, epochs)

    def steps() -> Iterator[object]:
        images = benchmark.train.images
        for epoch in range(epochs):
            order = torch.randperm(len(images), generator=generator(seed, "order", epoch))
            for step, indices in enumerate(order[: len(order) // batch * batch].split(batch)):
                views = two_views(images.take(indices), generator(seed, "augment.x", epoch, step))
                z = torch.stack([projector(encoder(view)) for view in views])
                loss = losses.contrast(nn.functional.normalize(z, dim=2), tau=0.5)
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
                yield loss
            schedule.step()

    return Training(encoder, steps(), benchmark)


RECIPES: dict[str, Callable[[Benchmark, int], Training]] = {
    "fast": partial(with_preset, "fast"),
    "paper": partial(with_preset, "paper"),
    "library": simclr,
}


def accuracy(training: Training, protocol: ProtocolConfig) -> float:
    features = embed_benchmark(training.encoder, training.benchmark)
    ranking = rank_test_images(features, training.benchmark, protocol)[PROTOCOL]
    return percent(ranking.prediction == labels_of_test(training.benchmark)[0]) or 0.0


def measure(recipe: str, data_dir: Path | None, limit: float, share: float, seed: int, path: Path) -> None:
    """Train with a recipe for at most `limit` CPU seconds, and write what was measured."""
    torch.set_num_threads(1)
    keep_freed_memory()
    config = preset_config("fast", BENCHMARK)
    protocol = replace(config.evaluation, protocols=(PROTOCOL,))
    benchmark = load_benchmark(replace(config.data, data_dir=data_dir))
    points: list[dict[str, float]] = []
    record = {"recipe": recipe, "seed": seed, "limit": limit, "points": points}
    record |= {"machine": platform.machine(), "torch": torch.__version__}
    started = time.process_time()
    training = RECIPES[recipe](benchmark, seed)
    trained, steps, due, ended = time.process_time() - started, 0, 0.0, False
    while not points or (not ended and points[-1]["accuracy"] < max(TARGETS)):
        if points:
            started = time.process_time()
            ended = next(training.steps, None) is None
            trained, steps = trained + time.process_time() - started, steps + (not ended)
            ended = ended or trained >= limit
        if trained >= due or ended:
            started = time.process_time()
            points.append({"seconds": trained, "steps": steps, "accuracy": accuracy(training, protocol)})
            due = trained + (time.process_time() - started) * (1 / share - 1)
            path.write_text(json.dumps(record, indent=1))
            print(f"{recipe}: {trained / 60:.2f} min, {steps} steps, {points[-1]['accuracy']:.1f} percent", flush=True)


def minutes_until(record: dict[str, Any] | None, target: float) -> float | None:
    points = [] if record is None else record["points"]
    return next((point["seconds"] / 60 for point in points if point["accuracy"] >= target), None)


def table(records: dict[str, dict[str, Any]]) -> str:
    """CPU minutes, and in brackets how many times those of `fast`."""
    head = "".join(f"{f'minutes to {target}':>20}" for target in TARGETS)
    lines = [f"{'recipe':10}{'untrained':>11}{head}{'last':>8}"]
    for name, record in records.items():
        points, cells = record["points"], []
        for target in TARGETS:
            reached, of_fast = (minutes_until(one, target) for one in (record, records.get("fast")))
            sign, minutes = (">", points[-1]["seconds"] / 60) if reached is None else ("", reached)
            ratio = f" ({sign}{minutes / of_fast:.0f} x)" if of_fast and name != "fast" else ""
            cells.append(f"{f'{sign}{minutes:.2f}{ratio}':>20}")
        lines.append(f"{name:10}{points[0]['accuracy']:11.1f}" + "".join(cells) + f"{points[-1]['accuracy']:8.1f}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipes", nargs="*", metavar="RECIPE", help=f"default: {', '.join(RECIPES)}")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--share", type=float, default=0.5, help="of the CPU time, for evaluation")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("time-to-accuracy"))
    options = parser.parse_args()
    recipes = options.recipes or list(RECIPES)
    unknown = set(recipes) - set(RECIPES)
    if unknown:
        parser.error(f"unknown recipe {unknown.pop()}; use {', '.join(RECIPES)}")
    options.out.mkdir(parents=True, exist_ok=True)
    files = {name: options.out / f"{name}.json" for name in RECIPES}
    for name in recipes:
        settings = options.data_dir, 60 * options.minutes, options.share, options.seed, files[name]
        process = multiprocessing.get_context("spawn").Process(target=measure, args=(name, *settings))
        process.start()
        process.join()
        if process.exitcode:
            sys.exit(f"{name} failed")
    print(table({name: json.loads(file.read_text()) for name, file in files.items() if file.exists()}))


if __name__ == "__main__":
    main()
