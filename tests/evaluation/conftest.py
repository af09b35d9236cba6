"""Small benchmarks and clustered features."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from osiris.data.benchmark import Benchmark, Split
from osiris.data.images import ArrayImages
from osiris.evaluation.features import Features


def make_benchmark(
    bank_label: Tensor,
    test_label: Tensor | None,
    tasks: tuple[tuple[int, ...], ...],
    environments: tuple[tuple[str, tuple[int, ...]], ...] = (),
    size: int = 4,
) -> Benchmark:
    """A benchmark with arbitrary (but distinct) images and the given labels."""
    task_of = torch.full((max(label for task in tasks for label in task) + 1,), -1)
    for number, labels in enumerate(tasks):
        task_of[list(labels)] = number

    def split(label: Tensor, offset: int) -> Split:
        images = (np.arange(len(label) * 3 * size * size) * 7 + offset) % 251
        array = images.astype(np.uint8).reshape(len(label), 3, size, size)
        return Split(ArrayImages(array), task_of[label], label)

    bank = split(bank_label, 0)
    return Benchmark(
        name="made",
        train=bank,
        bank=bank,
        test=None if test_label is None else split(test_label, 100),
        class_names=tuple(f"class {label}" for label in range(len(task_of))),
        tasks=tasks,
        mean=(0.5, 0.4, 0.3),
        std=(0.2, 0.25, 0.3),
        environments=environments,
        checksum="abc",
    )


@pytest.fixture(name="make_benchmark")
def make_benchmark_fixture() -> Callable[..., Benchmark]:
    return make_benchmark


@pytest.fixture(scope="session")
def clustered() -> tuple[Features, Benchmark]:
    """500 queries on a bank of 5,000: 20 overlapping clusters in 5 tasks, images in random order."""
    random = np.random.default_rng(5)
    centres = random.normal(size=(20, 32))
    bank_label, test_label = random.integers(0, 20, 5000), random.integers(0, 20, 500)
    bank = centres[bank_label] + 2.5 * random.normal(size=(5000, 32))
    test = centres[test_label] + 2.5 * random.normal(size=(500, 32))
    order = random.permutation(20)
    tasks = tuple(tuple(int(label) for label in order[start : start + 4]) for start in range(0, 20, 4))
    environments = (("inside", (0, 1)), ("outside", (2, 3, 4)))
    benchmark = make_benchmark(torch.from_numpy(bank_label), torch.from_numpy(test_label), tasks, environments)
    features = Features(torch.from_numpy(bank).float(), torch.from_numpy(test).float())
    return features, benchmark
