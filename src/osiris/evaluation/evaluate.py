"""From the features of one checkpoint to everything that is reported about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from osiris.data.base import Benchmark
from osiris.errors import UserError
from osiris.evaluation import geometry
from osiris.evaluation.config import ProtocolConfig
from osiris.evaluation.features import Features
from osiris.evaluation.health import health
from osiris.evaluation.knn import DEPTH, Ranking, ask
from osiris.evaluation.probe import probe
from osiris.evaluation.questions import (
    TASK_LEVEL,
    WITHIN_ENVIRONMENT,
    class_question,
    environment_of_task,
    environment_question,
    task_question,
)
from osiris.evaluation.scores import percent, percent_by


@dataclass(frozen=True)
class Evaluation:
    """One checkpoint, evaluated."""

    numbers: dict[str, Any]
    """JSON-ready; accuracies in percent."""
    arrays: dict[str, Tensor]
    """What figures and bootstrap need, ready for a safetensors file."""


def evaluate_features(
    features: Features,
    benchmark: Benchmark,
    protocol: ProtocolConfig,
    views: tuple[Tensor, Tensor] | None = None,
) -> Evaluation:
    """Every number and array of a checkpoint from one pair of features; deterministic. `views`: see `embed_two_views`.

    numbers: `labelled`, `protocols` (by name: `accuracy` and `top5` per task, `per_class`, `k_effective`), `task_level`
    (`accuracy`, `per_task`, `confusion` counts [true task][predicted task]), `environments` (accuracy by name),
    `health` and with `protocol.probe` also `probe`. Without labels: `labelled`, `health` and `missing`.
    """
    check_features(features, benchmark)
    numbers: dict[str, Any] = {
        "labelled": benchmark.labelled,
        "bank_size": len(features.bank),
        "test_size": 0 if features.test is None else len(features.test),
        "health": health(features.bank, views),
    }
    arrays = _unlabelled_arrays(features)
    if not benchmark.labelled:
        numbers["missing"] = missing(benchmark)
        return Evaluation(numbers, arrays)
    rankings = rank_test_images(features, benchmark, protocol)
    numbers |= score(rankings, benchmark, protocol)
    arrays |= _labelled_arrays(features, benchmark, rankings)
    if protocol.probe:
        numbers["probe"] = probe(features, benchmark, protocol.protocols)
    return Evaluation(numbers, arrays)


def missing(benchmark: Benchmark) -> str:
    what = "there are no test images" if benchmark.test is None else "the images have no labels"
    return (
        f"accuracies, forgetting, knowledge gain, consolidation and transfer cannot be computed because {what};"
        " what remains is the health of the representation"
    )


def check_features(features: Features, benchmark: Benchmark) -> None:
    assert len(features.bank) == len(benchmark.bank), (len(features.bank), len(benchmark.bank))
    for name, part in (("bank", features.bank), ("test", features.test)):
        if part is not None and not bool(torch.isfinite(part).all()):
            raise UserError(
                f"the encoder gives infinite or undefined numbers for {name} images: its weights have diverged."
                " Go back to an earlier checkpoint and train with a lower learning rate."
            )


def rank_test_images(features: Features, benchmark: Benchmark, protocol: ProtocolConfig) -> dict[str, Ranking]:
    """All KNN questions, answered from one computation of the similarities."""
    assert features.test is not None
    questions = [class_question(name, benchmark) for name in protocol.protocols]
    questions.append(task_question(benchmark))
    if benchmark.environments:
        questions.append(environment_question(benchmark))
    return ask(features.bank, features.test, questions, protocol.k, protocol.temperature)


def score(rankings: dict[str, Ranking], benchmark: Benchmark, protocol: ProtocolConfig) -> dict[str, Any]:
    """The accuracies in percent; None for a task, class or environment without test images."""
    assert benchmark.test is not None and benchmark.test.label is not None
    label, task, task_count = benchmark.test.label, benchmark.test.task, benchmark.task_count
    numbers: dict[str, Any] = {"k": protocol.k, "temperature": protocol.temperature, "protocols": {}}
    for name in protocol.protocols:
        ranking = rankings[name]
        hit = ranking.prediction == label
        numbers["protocols"][name] = {
            "accuracy": percent_by(hit, task, task_count),
            "top5": _top5(name, ranking, benchmark),
            "per_class": percent_by(hit, label, benchmark.class_count),
            "k_effective": list(ranking.k_effective),
        }
    predicted = rankings[TASK_LEVEL].prediction
    numbers["task_level"] = {
        "accuracy": percent(predicted == task),
        "per_task": percent_by(predicted == task, task, task_count),
        "confusion": torch.bincount(task * task_count + predicted, minlength=task_count**2)
        .view(task_count, task_count)
        .tolist(),
    }
    numbers["environments"] = {}
    if benchmark.environments:
        hit = rankings[WITHIN_ENVIRONMENT].prediction == label
        accuracy = percent_by(hit, environment_of_task(benchmark)[task], len(benchmark.environments))
        numbers["environments"] = dict(zip((name for name, _ in benchmark.environments), accuracy, strict=True))
    return numbers


def _top5(name: str, ranking: Ranking, benchmark: Benchmark) -> list[float | None]:
    """Per task; None where five guesses cover all the classes to choose from. A class without a vote is no guess."""
    assert benchmark.test is not None and benchmark.test.label is not None
    hit = (ranking.classes == benchmark.test.label.unsqueeze(1)).any(dim=1)
    choices = [len(task) if name.startswith("task-aware") else benchmark.class_count for task in benchmark.tasks]
    accuracy = percent_by(hit, benchmark.test.task, benchmark.task_count)
    return [value if count > DEPTH else None for value, count in zip(accuracy, choices, strict=True)]


def _unlabelled_arrays(features: Features) -> dict[str, Tensor]:
    if features.test is None:
        return {}
    projected, points = geometry.projection(features.bank, features.test)
    queried, found = geometry.neighbours(features.bank, features.test)
    return {
        "projection.indices": projected,
        "projection.points": points,
        "neighbours.indices": queried,
        "neighbours.bank": found,
    }


def _labelled_arrays(features: Features, benchmark: Benchmark, rankings: dict[str, Ranking]) -> dict[str, Tensor]:
    """`label`, `task`; `prediction.NAME` for each protocol, task-level and within-environment (-1: not asked);
    `class_similarity`; `histogram.overall` and `histogram.ENVIRONMENT`."""
    assert features.test is not None and benchmark.test is not None and benchmark.test.label is not None
    label, test = benchmark.test.label, features.test
    arrays = {"label": label.int(), "task": benchmark.test.task.int()}
    arrays |= {f"prediction.{name}": ranking.prediction.int() for name, ranking in rankings.items()}
    arrays["class_similarity"] = geometry.class_similarity(test, label, benchmark.class_count)
    arrays["histogram.overall"] = geometry.similarity_histogram(test, label)
    environment = environment_of_task(benchmark)[benchmark.test.task]
    for number, (name, _) in enumerate(benchmark.environments):
        members = (environment == number).nonzero().squeeze(1)
        if len(members):
            part = test[members.to(test.device)]
            arrays[f"histogram.{name}"] = geometry.similarity_histogram(part, label[members])
    return arrays
