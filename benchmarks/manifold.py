"""The feature layer of `osiris.exact.manifold`: CPU time, memory and KNN accuracy on CIFAR-100.

    python benchmarks/manifold.py [SETTING=VALUE ...] [--layers PATCH ...] [--validation] [--images N] [--full-bank]
    python benchmarks/manifold.py codes=4096 --layers 6 8 6g --validation

SETTING is a field of ManifoldConfig; --layers joins several layers by the side of their patches (g: grey). Sums are
over the 20 tasks of split-cifar100-20, added one after the other; whitening and dictionary are from the first.
Accuracy is that of the class-agnostic KNN with the bank (100 images per class), the test images (50 per class) and
the k of the preset `fast`; --full-bank adds the bank of all images and all test images. --validation learns from four
fifths of the training images and tests on the others. --images learns from so many images of each task. Time is CPU
time on one thread; the product is that of all patches with the dictionary, the least that the sums need.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from osiris.data.benchmark import Benchmark
from osiris.data.load import load_benchmark
from osiris.evaluation.config import ProtocolConfig
from osiris.evaluation.evaluate import rank_test_images
from osiris.evaluation.features import embed_benchmark
from osiris.evaluation.metrics import percent
from osiris.evaluation.protocols import labels_of_test
from osiris.exact.manifold import ManifoldConfig, PatchCodes, fast_bfloat16
from osiris.exact.spectrum import CodeSums, episode_sums, solve
from osiris.models.manifold import JoinedManifold, Manifold
from osiris.presets import preset_config

BENCHMARK = "split-cifar100-20"
PROTOCOL = "class-agnostic"


def learn(benchmark: Benchmark, config: ManifoldConfig, images: int | None, seconds: Counter[str]) -> Manifold:
    """The encoder after all tasks. Adds the CPU seconds of each part."""
    started = time.process_time()
    codes, sums, count = None, CodeSums.zero(config), 0

    def lap(name: str) -> None:
        nonlocal started
        now = time.process_time()
        seconds[name] += now - started  # type: ignore[assignment]
        started = now

    for task in range(benchmark.task_count):
        episode = benchmark.train.images.take(benchmark.training_indices(task)[:images])
        codes = codes or PatchCodes.of(episode, config)
        lap("dictionary")
        sums, count = sums + episode_sums(codes, episode), count + len(episode)
        lap("sums")
    assert codes is not None
    encoder = Manifold.of(codes, solve(sums, config), benchmark.std)
    lap("solution")
    seconds["product"] += product(codes) * count  # type: ignore[assignment]
    return encoder


def product(codes: PatchCodes, repeats: int = 5) -> float:
    """CPU seconds of the bare product of the patches of one image with the dictionary."""
    precision = torch.bfloat16 if fast_bfloat16() else torch.float32
    dictionary = codes.dictionary.T.contiguous().to(precision)
    patches = torch.randn(5 * codes.config.places**2, len(dictionary)).to(precision)
    patches @ dictionary
    started = time.process_time()
    for _ in range(repeats):
        patches @ dictionary
    return (time.process_time() - started) / repeats / 5


def accuracy(encoder: JoinedManifold, benchmark: Benchmark, protocol: ProtocolConfig) -> float:
    features = embed_benchmark(encoder, benchmark)
    ranking = rank_test_images(features, benchmark, replace(protocol, protocols=(PROTOCOL,)))[PROTOCOL]
    return percent(ranking.prediction == labels_of_test(benchmark)[0]) or 0.0


def measure(configs: list[ManifoldConfig], options: argparse.Namespace) -> dict[str, Any]:
    preset = preset_config("fast", BENCHMARK)
    data = replace(preset.data, data_dir=options.data_dir, validation=options.validation)
    benchmark = load_benchmark(data)
    seconds: Counter[str] = Counter()
    encoder = JoinedManifold([learn(benchmark, config, options.images, seconds) for config in configs])
    learned = seconds["dictionary"] + seconds["sums"] + seconds["solution"]
    images = min(
        options.images * benchmark.task_count if options.images else len(benchmark.train), len(benchmark.train)
    )
    record: dict[str, Any] = {"layers": options.layers, **asdict(configs[0]), **seconds, "minutes": learned / 60}
    record |= {"images": images, "images per second": images / learned, "features": encoder.features}
    record |= {"share of the product": seconds["product"] / seconds["sums"], "bfloat16": fast_bfloat16()}
    record["gigabytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    started = time.process_time()
    record["A"] = accuracy(encoder, benchmark, preset.evaluation)
    record["seconds to embed and evaluate"] = time.process_time() - started
    if options.full_bank:
        whole = load_benchmark(replace(data, bank_per_class=None, test_per_class=None))
        record["A with the full bank"] = accuracy(encoder, whole, preset.evaluation)
    return record


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("settings", nargs="*", metavar="SETTING=VALUE")
    parser.add_argument("--layers", nargs="+", default=["4", "8", "4g", "10g"])
    parser.add_argument("--validation", action="store_true")
    parser.add_argument("--images", type=int)
    parser.add_argument("--full-bank", action="store_true")
    parser.add_argument("--data-dir", type=Path)
    options = parser.parse_args()
    types = {name: type(value) for name, value in asdict(ManifoldConfig()).items()}
    given = dict(setting.split("=", 1) for setting in options.settings)
    if set(given) - set(types):
        parser.error(f"settings are {', '.join(types)}")
    torch.set_num_threads(1)
    changes: dict[str, Any] = {name: types[name](value) for name, value in given.items()}
    layers = [{"patch": int(layer.rstrip("g")), "grey": layer.endswith("g")} for layer in options.layers]
    print(json.dumps(measure([ManifoldConfig(**{**changes, **layer}) for layer in layers], options)), flush=True)


if __name__ == "__main__":
    main()
