"""From the features of one checkpoint to all numbers and arrays that are reported about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from msgspec.structs import replace
from torch import Tensor, nn

from osiris import processes
from osiris.console import Ticker
from osiris.data.benchmark import Benchmark
from osiris.errors import UserError
from osiris.evaluation import geometry, own_metrics, probe
from osiris.evaluation.config import PROBE, WHITENED, ProtocolConfig
from osiris.evaluation.features import Features, embed_benchmark
from osiris.evaluation.health import HEALTH_IMAGES, embed_two_views, fixed_subset, health
from osiris.evaluation.knn import DEPTH, Question, Ranking, ask
from osiris.evaluation.metrics import percent, percent_by
from osiris.evaluation.protocols import (
    TASK_LEVEL,
    WITHIN_ENVIRONMENT,
    environment_of_task,
    labels_of_test,
    other_questions,
    questions,
)
from osiris.evaluation.scores import (
    NO_TASK_LEVEL,
    Comparison,
    Measured,
    ProtocolScores,
    Scores,
    Setting,
    TaskLevelScores,
)
from osiris.evaluation.statistics import mcnemar, mean
from osiris.exact.whitening import whitened
from osiris.files import save_tensors


@dataclass(frozen=True)
class Evaluation:
    """The results of one checkpoint."""

    numbers: Scores
    arrays: dict[str, Tensor]
    """For figures and the bootstrap, ready for a safetensors file."""
    features: Features

    def save(self, path: Path, setting: Setting | None = None, keep_features: bool = False) -> None:
        """One file: the arrays, and the numbers in its metadata."""
        if keep_features:
            self.features.save(path.with_name(f"{path.stem}-features.safetensors"))
        save_tensors(path, self.arrays, Measured(numbers=self.numbers, setting=setting).plain())


def evaluate_encoder(
    encoder: nn.Module,
    benchmark: Benchmark,
    protocol: ProtocolConfig,
    device: torch.device | str = "cpu",
    ticker: Ticker | None = None,
) -> Evaluation | None:
    """Every number of an encoder. The processes share the embedding, which is the work; the first one does the rest,
    and the others get None."""
    features = embed_benchmark(encoder, benchmark, device, ticker, shared=True)

    def evaluate() -> Evaluation:
        return evaluate_features(features, benchmark, protocol, embed_two_views(encoder, benchmark, device))

    return processes.on_first(evaluate)


def evaluate_features(
    features: Features,
    benchmark: Benchmark,
    protocol: ProtocolConfig,
    views: tuple[Tensor, Tensor] | None = None,
) -> Evaluation:
    """Every number and array of a checkpoint from one pair of features. `views`: see `embed_two_views`."""
    check_features(features, benchmark)
    numbers = Scores(
        labelled=benchmark.labelled,
        bank_size=len(features.bank),
        test_size=0 if features.test is None else len(features.test),
        health=health(features.bank, views),
        own=own_metrics.measure(protocol.metrics, features, benchmark) if protocol.metrics else {},
    )
    arrays = _unlabelled_arrays(features, benchmark)
    if not benchmark.labelled:
        consolidation = score_episodes(features, benchmark, protocol)
        return Evaluation(replace(numbers, missing=missing(benchmark), task_level=consolidation), arrays, features)
    rankings = rank_test_images(features, benchmark, protocol)
    numbers = replace(
        numbers,
        k=protocol.k,
        temperature=protocol.temperature,
        protocols=score_protocols(rankings, benchmark, protocol),
        task_level=score_task_level(rankings[TASK_LEVEL], labels_of_test(benchmark)[1], benchmark.task_count),
        environments=_score_environments(rankings, benchmark),
    )
    return Evaluation(numbers, arrays | _labelled_arrays(features, benchmark, rankings), features)


def compare_hits(before: np.ndarray, after: np.ndarray) -> Comparison | None:
    """Hits (bool) of two encoders on the same images; None if there are none."""
    if not len(before):
        return None
    difference = 100 * float(after.mean() - before.mean())
    return Comparison(difference=difference, p=mcnemar(before, after), images=len(before))


def compare_arrays(
    before: Mapping[str, Tensor], after: Mapping[str, Tensor], protocol: str, tasks: int
) -> tuple[Comparison | None, list[Comparison | None]]:
    """(overall, by task) from the arrays of two evaluations on the same test images."""
    label, task = after["label"].numpy(), after["task"].numpy()
    hits = [arrays[f"prediction.{protocol}"].numpy() == label for arrays in (before, after)]
    by_task = [compare_hits(hits[0][task == one], hits[1][task == one]) for one in range(tasks)]
    return compare_hits(*hits), by_task


def headline(numbers: Scores, images: int | None = None) -> dict[str, float | None]:
    """The few numbers that the progress display shows, each with its protocol. The effective rank depends on how many
    `images` it is measured on."""
    if not numbers.labelled:
        over = "" if images is None else f" over {min(images, HEALTH_IMAGES)} images"
        return {f"effective rank{over}": numbers.health.effective_rank}
    values = {f"accuracy ({name})": mean(scores.accuracy) for name, scores in numbers.protocols.items()}
    return values | {"C": numbers.task_level.accuracy} | {name: one.value for name, one in numbers.own.items()}


def missing(benchmark: Benchmark) -> str:
    what = "there are no test images" if benchmark.test is None else "the images have no labels"
    return (
        f"accuracies, forgetting, knowledge gain and transfer cannot be computed because {what}; what remains is the"
        " health of the representation, and how well it tells the episodes apart"
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
    """The answers to all questions: one computation of the similarities, and one of those of whitened features."""
    assert features.test is not None
    after = [name for name in protocol.measured if name.endswith(WHITENED)]
    probed = [name for name in protocol.measured if name.endswith(PROBE)]
    asked = questions(benchmark, [name for name in protocol.measured if name not in (*after, *probed)])
    asked += other_questions(benchmark)
    answers = ask(features.bank, features.test, asked, protocol.k, protocol.temperature)
    if after:
        bank, test = whitened(features.bank, features.test)
        answers |= ask(bank, test, questions(benchmark, after), protocol.k, protocol.temperature)
    if probed:
        answers |= probe.ask(features.bank, features.test, questions(benchmark, probed))
    return answers


def score_protocols(
    rankings: dict[str, Ranking], benchmark: Benchmark, protocol: ProtocolConfig
) -> dict[str, ProtocolScores]:
    label, task = labels_of_test(benchmark)
    scores = {}
    for name in protocol.measured:
        hit = rankings[name].prediction == label
        scores[name] = ProtocolScores(
            accuracy=percent_by(hit, task, benchmark.task_count),
            top5=_top5(name, rankings[name], benchmark),
            per_class=percent_by(hit, label, benchmark.class_count),
            k_effective=list(rankings[name].k_effective),
            ridges=list(rankings[name].ridges),
        )
    return scores


def score_episodes(features: Features, benchmark: Benchmark, protocol: ProtocolConfig) -> TaskLevelScores:
    """Consolidation C needs no classes: the KNN predicts the episode of each test image; without test images, of a
    fifth of the bank. It is not defined if all images of the bank are of one episode, as in a learner."""
    if len(benchmark.bank.task.unique()) == 1:
        return NO_TASK_LEVEL
    if features.test is not None and benchmark.test is not None:
        bank, queries, bank_task, task = features.bank, features.test, benchmark.bank.task, benchmark.test.task
    else:
        is_query = torch.zeros(len(features.bank), dtype=torch.bool)
        is_query[fixed_subset(len(is_query), len(is_query) // 5)] = True
        bank, queries = features.bank[~is_query], features.bank[is_query]
        bank_task, task = benchmark.bank.task[~is_query], benchmark.bank.task[is_query]
    if len(bank) == 0 or len(queries) == 0:
        return NO_TASK_LEVEL
    question = Question(TASK_LEVEL, bank_task, benchmark.task_count)
    ranking = ask(bank, queries, [question], protocol.k, protocol.temperature)[TASK_LEVEL]
    return score_task_level(ranking, task, benchmark.task_count)


def score_task_level(ranking: Ranking, task: Tensor, count: int) -> TaskLevelScores:
    predicted = ranking.prediction
    confusion = torch.bincount(task * count + predicted, minlength=count**2).view(count, count)
    return TaskLevelScores(
        accuracy=percent(predicted == task),
        per_task=percent_by(predicted == task, task, count),
        confusion=confusion.tolist(),
    )


def _score_environments(rankings: dict[str, Ranking], benchmark: Benchmark) -> dict[str, float | None]:
    if not benchmark.environments:
        return {}
    label, task = labels_of_test(benchmark)
    hit = rankings[WITHIN_ENVIRONMENT].prediction == label
    accuracy = percent_by(hit, environment_of_task(benchmark)[task], len(benchmark.environments))
    return dict(zip((name for name, _ in benchmark.environments), accuracy, strict=True))


def _top5(name: str, ranking: Ranking, benchmark: Benchmark) -> list[float | None]:
    """Per task; None if five guesses cover all classes to choose from. A class without a vote is not a guess."""
    label, task = labels_of_test(benchmark)
    accuracy = percent_by((ranking.classes == label.unsqueeze(1)).any(dim=1), task, benchmark.task_count)
    choices = [len(classes) if name.startswith("task-aware") else benchmark.class_count for classes in benchmark.tasks]
    return [value if count > DEPTH else None for value, count in zip(accuracy, choices, strict=True)]


def _unlabelled_arrays(features: Features, benchmark: Benchmark) -> dict[str, Tensor]:
    """Of test images, or of bank images if there are none."""
    queries = features.bank if features.test is None else features.test
    split = benchmark.bank if benchmark.test is None else benchmark.test
    projected, points = geometry.projection(features.bank, queries)
    queried, neighbours = geometry.neighbours_of_some(features.bank, features.test)
    return {
        "task": split.task.int(),
        "projection.indices": projected,
        "projection.points": points,
        "neighbours.indices": queried,
        "neighbours.bank": neighbours,
    }


def _labelled_arrays(features: Features, benchmark: Benchmark, rankings: dict[str, Ranking]) -> dict[str, Tensor]:
    """`label`, `task`; `prediction.NAME` for each protocol, task-level and within-environment (-1: no answer);
    `class_similarity`; `histogram.overall` and `histogram.ENVIRONMENT`."""
    assert features.test is not None
    (label, task), test = labels_of_test(benchmark), features.test
    arrays = {"label": label.int(), "task": task.int()}
    arrays |= {f"prediction.{name}": ranking.prediction.int() for name, ranking in rankings.items()}
    arrays["class_similarity"] = geometry.class_similarity(test, label, benchmark.class_count)
    arrays["histogram.overall"] = geometry.similarity_histogram(test, label)
    environment = environment_of_task(benchmark)[task]
    for number, (name, _) in enumerate(benchmark.environments):
        members = (environment == number).nonzero().squeeze(1)
        if len(members):
            part = test[members.to(test.device)]
            arrays[f"histogram.{name}"] = geometry.similarity_histogram(part, label[members])
    return arrays
