"""The independent naive KNN."""

from __future__ import annotations

import math

import numpy as np

from osiris.data.benchmark import Benchmark
from osiris.evaluation.features import Features


class NaiveKnn:
    """Weighted KNN in plain loops and float64, written from the definition alone."""

    def __init__(self, features: Features, k: int = 200, temperature: float = 0.1) -> None:
        assert features.test is not None
        self.bank = [self._unit(row) for row in features.bank.numpy().astype(np.float64)]
        self.test = [self._unit(row) for row in features.test.numpy().astype(np.float64)]
        self.matrix = np.array(self.bank)
        self.k, self.temperature = k, temperature
        self.similarity = [self.matrix @ query for query in self.test]
        self.order = [sorted(range(len(row)), key=lambda column, row=row: -row[column]) for row in self.similarity]

    @staticmethod
    def _unit(row: np.ndarray) -> np.ndarray:
        return row / math.sqrt(float((row * row).sum()))

    def votes(self, query: int, classes, columns=None) -> dict[int, float]:
        """class -> summed weight, over the k nearest of `columns` (default: the whole bank)."""
        similarity = self.similarity[query]
        nearest = [column for column in self.order[query] if columns is None or column in columns][: self.k]
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
    """Assert equal predictions wherever the two best votes differ by more than 1e-6 (of all votes, since the weights
    are only known up to float32: exp(1 / 0.1) is 22,026). Returns how many were compared."""
    naive = NaiveKnn(features, k)
    test = benchmark.test
    assert test is not None and test.label is not None and benchmark.bank.label is not None
    label, bank_task = benchmark.bank.label.tolist(), benchmark.bank.task.tolist()
    columns_of = [{i for i, one in enumerate(label) if one in task} for task in benchmark.tasks]
    environment = {task: number for number, (_, tasks) in enumerate(benchmark.environments) for task in tasks}
    members = [{i for i, one in enumerate(bank_task) if one in tasks} for _, tasks in benchmark.environments]
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
