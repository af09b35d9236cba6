"""Small benchmarks, clustered features and the independent naive KNN."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from osiris.data.base import ArrayImages, Benchmark, Split
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


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of the real data. Without the variable the test is skipped; with it, missing data is a failure."""
    folder = os.environ.get("OSIRIS_DATA")
    if not folder:
        pytest.skip("OSIRIS_DATA is not set")
    return Path(folder)


class NaiveKnn:
    """Weighted KNN in plain loops and float64, written from the definition alone."""

    def __init__(self, features: Features, k: int = 200, temperature: float = 0.1) -> None:
        assert features.test is not None
        self.bank = [self._unit(row) for row in features.bank.numpy().astype(np.float64)]
        self.test = [self._unit(row) for row in features.test.numpy().astype(np.float64)]
        self.matrix = np.array(self.bank)
        self.k, self.temperature = k, temperature

    @staticmethod
    def _unit(row: np.ndarray) -> np.ndarray:
        return row / math.sqrt(float((row * row).sum()))

    def votes(self, query: int, classes, columns=None) -> dict[int, float]:
        """class -> summed weight, over the k nearest of `columns` (default: the whole bank)."""
        columns = range(len(self.bank)) if columns is None else list(columns)
        similarity = self.matrix @ self.test[query]
        nearest = sorted(columns, key=lambda column: -similarity[column])[: self.k]
        votes: dict[int, float] = {}
        for column in nearest:
            label = int(classes[column])
            votes[label] = votes.get(label, 0.0) + math.exp(similarity[column] / self.temperature)
        return votes


def best_and_margin(votes: dict[int, float], allowed=None) -> tuple[int, float]:
    """The winner and its lead over the second, as a share of all votes."""
    total = sum(votes.values())
    if allowed is not None:
        votes = {label: votes.get(label, 0.0) for label in allowed}
    ordered = sorted(votes.items(), key=lambda item: (-item[1], item[0]))
    second = ordered[1][1] if len(ordered) > 1 else 0.0
    return ordered[0][0], (ordered[0][1] - second) / total


def compare_with_naive(features: Features, benchmark: Benchmark, rankings: dict, k: int) -> dict[str, int]:
    """Assert equal predictions wherever the two best votes differ by more than 1e-6; returns how many were compared."""
    naive = NaiveKnn(features, k)
    test = benchmark.test
    assert test is not None and test.label is not None and benchmark.bank.label is not None
    label, bank_task = benchmark.bank.label.tolist(), benchmark.bank.task.tolist()
    columns_of = [[i for i, one in enumerate(label) if one in task] for task in benchmark.tasks]
    environment = {task: number for number, (_, tasks) in enumerate(benchmark.environments) for task in tasks}
    members = [[i for i, one in enumerate(bank_task) if one in tasks] for _, tasks in benchmark.environments]
    compared = dict.fromkeys(rankings, 0)
    for query, task in enumerate(test.task.tolist()):
        whole = naive.votes(query, label)
        expected = {
            "class-agnostic": best_and_margin(whole),
            "task-aware-masked": best_and_margin(whole, benchmark.tasks[task]),
            "task-aware": best_and_margin(naive.votes(query, label, columns_of[task])),
            "task-level": best_and_margin(naive.votes(query, bank_task)),
        }
        if benchmark.environments:
            within = naive.votes(query, label, members[environment[task]])
            expected["within-environment"] = best_and_margin(within)
        for name, (winner, margin) in expected.items():
            if margin > 1e-6:
                compared[name] += 1
                found = int(rankings[name].prediction[query])
                assert found == winner, f"{name}, query {query}: {found} instead of {winner} (margin {margin})"
    return compared
