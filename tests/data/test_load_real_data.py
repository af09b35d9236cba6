"""The benchmarks on real images: classes of every task, counts, pixels. They skip only where OSIRIS_DATA is unset."""

import json
import os
from collections import Counter
from pathlib import Path

import pytest
import torch

from osiris.data.benchmark import Benchmark, Split
from osiris.data.config import BenchmarkConfig
from osiris.data.load import load_benchmark

pytestmark = [
    pytest.mark.real_data,
    pytest.mark.skipif(not os.environ.get("OSIRIS_DATA"), reason="OSIRIS_DATA is not set"),
]
EXPECTED = json.loads(Path(__file__).with_name("expected_tasks.json").read_text(encoding="utf-8"))

# (row, class, red-green-blue at row 0 column 0, at the last row's column 5, at row 10 column 20, sum of all)
CIFAR_TRAIN = [
    (0, "cattle", (255, 255, 255), (114, 148, 62), (16, 15, 27), 424846),
    (1, "dinosaur", (255, 255, 255), (253, 253, 253), (90, 75, 60), 607127),
    (25000, "bear", (136, 144, 78), (174, 168, 115), (143, 162, 68), 376553),
    (49999, "shark", (31, 67, 122), (39, 42, 77), (27, 81, 140), 268402),
]
CIFAR_TEST = [
    (0, "mountain", (199, 215, 249), (81, 90, 123), (160, 140, 150), 559205),
    (9999, "rose", (246, 246, 242), (105, 86, 69), (138, 2, 16), 328923),
]
# JPEG: decoders may differ by a level or two. Row 190 is a grey file.
TINY_TRAIN = [
    (0, "goldfish", (73, 20, 16), (14, 14, 16), (76, 23, 17), 1045336),
    (190, "tailed frog", (4, 4, 4), (0, 0, 0), (101, 101, 101), 821556),
    (9999, "acorn", (0, 0, 0), (0, 0, 0), (5, 1, 0), 598315),
]
TINY_TEST = [(0, "goldfish", (229, 233, 236), (254, 255, 251), (228, 229, 223), 2486814)]


def class_names(benchmark: Benchmark) -> list[list[str]]:
    return [[benchmark.class_names[label] for label in task] for task in benchmark.tasks]


def check_pixels(benchmark: Benchmark, split: Split, pinned: list, tolerance: int) -> None:
    assert split.label is not None
    for row, name, *points, total in pinned:
        image = split.images.take(torch.tensor([row]))[0].long()
        assert benchmark.class_names[split.label[row]] == name
        for (y, x), colour in zip(((0, 0), (-1, 5), (10, 20)), points):
            assert (image[:, y, x] - torch.tensor(colour)).abs().max() <= tolerance
        assert abs(int(image.sum()) - total) <= tolerance * image.numel()


@pytest.mark.parametrize("name", ["split-cifar100-5", "split-cifar100-20", "structured-cifar100"])
def test_cifar100(name: str) -> None:
    benchmark = load_benchmark(BenchmarkConfig(name))
    assert class_names(benchmark) == EXPECTED[name]
    assert benchmark.notices == () and benchmark.environments == ()
    assert benchmark.mean == (0.5071, 0.4867, 0.4408) and benchmark.std == (0.2675, 0.2565, 0.2761)
    assert benchmark.test is not None and benchmark.train.label is not None and benchmark.test.label is not None
    assert Counter(benchmark.train.label.tolist()) == dict.fromkeys(range(100), 500)
    assert Counter(benchmark.test.label.tolist()) == dict.fromkeys(range(100), 100)
    assert benchmark.train.images.shape == (3, 32, 32) and len(benchmark.bank) == 50_000
    per_task = 50_000 // benchmark.task_count
    assert Counter(benchmark.train.task.tolist()) == dict.fromkeys(range(benchmark.task_count), per_task)
    for task, labels in enumerate(benchmark.tasks):
        assert set(benchmark.train.label[benchmark.training_indices(task)].tolist()) == set(labels)
    check_pixels(benchmark, benchmark.train, CIFAR_TRAIN, 0)
    check_pixels(benchmark, benchmark.test, CIFAR_TEST, 0)


@pytest.mark.parametrize("name", ["structured-tiny-imagenet", "split-tiny-imagenet-10"])
def test_tiny_imagenet(name: str) -> None:
    benchmark = load_benchmark(BenchmarkConfig(name))
    assert class_names(benchmark) == EXPECTED[name]
    assert benchmark.train.images.shape == (3, 64, 64)
    assert benchmark.mean == (0.485, 0.456, 0.406) and benchmark.std == (0.229, 0.224, 0.225)
    assert benchmark.test is not None and benchmark.train.label is not None and benchmark.test.label is not None
    train, test = Counter(benchmark.train.label.tolist()), Counter(benchmark.test.label.tolist())
    assert len(train) == len(test) == 200 and len(set(train.values())) == len(set(test.values())) == 1
    if (train[0], test[0]) != (500, 50):
        expected = f"partial: {train[0]} of 500 train images per class and {test[0]} of 50 test images per class"
        assert expected in benchmark.notices[0]
    if (train[0], test[0]) == (50, 10):  # the part that the rows below were read from
        check_pixels(benchmark, benchmark.train, TINY_TRAIN, 2)
        check_pixels(benchmark, benchmark.test, TINY_TEST, 2)
    environments = (("indoor", (0, 1, 2, 3)), ("city", (4, 5, 6)), ("wild", (7, 8, 9)))
    assert benchmark.environments == (environments if name.startswith("structured") else ())
