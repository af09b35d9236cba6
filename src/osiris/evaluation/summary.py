"""metrics.json of a run: the accuracy matrices under every protocol and A F K C T from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from osiris.data.base import Benchmark
from osiris.evaluation.metrics import all_metrics, as_matrix


def build_metrics(
    method: str,
    benchmark: Benchmark,
    seed: int,
    evaluations: Sequence[dict[str, Any]],
    baseline: dict[str, Any] | None,
    fingerprint: dict[str, Any],
    continual: bool = True,
) -> dict[str, Any]:
    """`evaluations` are the `numbers` after tasks 1, 2, ... (a run that is not continual: the final one alone);
    `baseline` comes from `random_baseline`."""
    assert evaluations and (continual or len(evaluations) == 1)
    metrics: dict[str, Any] = {
        "method": method,
        "benchmark": benchmark.name,
        "seed": seed,
        "task_names": task_names(benchmark),
        "environments": [[name, list(tasks)] for name, tasks in benchmark.environments],
        "continual": continual,
        "complete": not continual or len(evaluations) == benchmark.task_count,
        "fingerprint": fingerprint,
        "labelled": benchmark.labelled,
        "protocols": {},
        "task_level": [],
        "evaluations": list(evaluations),
    }
    if not benchmark.labelled:
        metrics["missing"] = evaluations[-1]["missing"]
        return metrics
    metrics["task_level"] = [numbers["task_level"]["accuracy"] for numbers in evaluations]
    for name in evaluations[-1]["protocols"]:
        rows = [numbers["protocols"][name]["accuracy"] for numbers in evaluations]
        random_accuracy = None if baseline is None else baseline["protocols"][name]
        metrics["protocols"][name] = {
            "continual": continual,
            "accuracy_matrix": rows,
            "random_baseline": random_accuracy,
            **all_metrics(
                as_matrix(rows),
                metrics["task_level"][-1],
                None if random_accuracy is None else np.array(random_accuracy, dtype=np.float64),
                continual,
            ),
        }
    return metrics


def task_names(benchmark: Benchmark) -> list[str]:
    """The benchmark's own, or `task 1` with its environment or, where they are few, its classes: `task 3 (city)`."""
    if benchmark.task_names:
        return list(benchmark.task_names)
    environment = {task: name for name, tasks in benchmark.environments for task in tasks}
    names = []
    for number, labels in enumerate(benchmark.tasks):
        detail = environment.get(number, "")
        if not detail and benchmark.class_names and 0 < len(labels) <= 3:
            detail = ", ".join(benchmark.class_names[label] for label in labels)
        names.append(f"task {number + 1} ({detail})" if detail else f"task {number + 1}")
    return names
