import dataclasses
import json

import pytest
import torch
import torch.nn.functional as functional

from osiris.config import Config, with_options
from osiris.errors import UserError
from osiris.evaluation.config import PROTOCOLS, ProtocolConfig
from osiris.evaluation.evaluate import evaluate_features
from osiris.evaluation.features import Features


@pytest.fixture(scope="module")
def evaluation(clustered):
    features, benchmark = clustered
    return evaluate_features(features, benchmark, ProtocolConfig(protocols=PROTOCOLS))


def test_numbers_are_json_and_follow_from_the_predictions(evaluation):
    numbers = evaluation.numbers
    assert numbers.labelled and numbers.bank_size == 5000 and numbers.test_size == 500
    arrays = evaluation.arrays
    label, task = arrays["label"], arrays["task"]
    for name in PROTOCOLS:
        hit = arrays[f"prediction.{name}"] == label
        scores = numbers.protocols[name]
        assert scores.accuracy == pytest.approx([100 * float(hit[task == i].float().mean()) for i in range(5)])
        assert scores.per_class == pytest.approx([100 * float(hit[label == i].float().mean()) for i in range(20)])
    predicted = arrays["prediction.task-level"]
    assert numbers.task_level.accuracy == pytest.approx(100 * float((predicted == task).float().mean()))
    confusion = torch.tensor(numbers.task_level.confusion)
    assert confusion.sum() == 500 and confusion.diagonal().sum() == (predicted == task).sum()
    for true in range(5):
        for answered in range(5):
            assert confusion[true, answered] == ((task == true) & (predicted == answered)).sum()
    within = arrays["prediction.within-environment"] == label
    assert numbers.environments is not None
    assert numbers.environments["inside"] == pytest.approx(100 * float(within[task < 2].float().mean()))
    assert numbers.environments["outside"] == pytest.approx(100 * float(within[task >= 2].float().mean()))


def test_top5(evaluation):
    agnostic = evaluation.numbers.protocols["class-agnostic"]
    assert all((five or 0) > (one or 0) for one, five in zip(agnostic.accuracy, agnostic.top5, strict=True))
    assert evaluation.numbers.protocols["task-aware"].top5 == [None] * 5  # four classes: five guesses say nothing


def test_without_labels_the_episodes_take_the_place_of_classes(make_benchmark):
    benchmark = make_benchmark(torch.arange(40) % 4, torch.arange(12) % 4, ((0, 1), (2, 3)))
    assert benchmark.test is not None
    test = dataclasses.replace(benchmark.test, label=None)
    bank = dataclasses.replace(benchmark.bank, label=None)
    unlabelled = dataclasses.replace(benchmark, bank=bank, test=test, class_names=(), tasks=((), ()))
    features = Features(torch.randn(40, 8), torch.randn(12, 8))
    evaluation = evaluate_features(features, unlabelled, ProtocolConfig())
    fields = {"labelled", "bank_size", "test_size", "health", "task_level", "missing"}
    assert evaluation.numbers.plain().keys() == fields
    assert "the images have no labels" in str(evaluation.numbers.missing)
    assert "projection.points" in evaluation.arrays and "label" not in evaluation.arrays
    assert evaluation.arrays["task"].tolist() == test.task.tolist()
    # Without test images a fifth of the bank is asked for its episode, and no image is its own neighbour.
    apart = 100 * functional.one_hot(bank.task, 2).float() + torch.rand(40, 2)
    alone = dataclasses.replace(unlabelled, test=None)
    evaluation = evaluate_features(Features(apart, None), alone, ProtocolConfig(k=3))
    assert "there are no test images" in str(evaluation.numbers.missing)
    assert evaluation.numbers.task_level.accuracy == 100
    assert sum(map(sum, evaluation.numbers.task_level.confusion)) == 8
    queries, nearest = evaluation.arrays["neighbours.indices"], evaluation.arrays["neighbours.bank"]
    assert not (nearest == queries[:, None]).any()
    assert (bank.task[nearest.long()] == bank.task[queries.long()][:, None]).all()


@pytest.mark.parametrize(
    "options",
    [
        {"k": 0},
        {"random_encoders": -1},
        {"temperature": 0.0},
        {"temperature": float("nan")},
        {"temperature": float("inf")},
    ],
    ids=str,
)
def test_a_protocol_that_means_nothing_is_refused(options):
    with pytest.raises(UserError, match=f"--{next(iter(options)).replace('_', '-')} .*: give a .*number"):
        with_options(Config(), options)


def test_a_task_without_test_images_has_no_accuracy(make_benchmark):
    benchmark = make_benchmark(torch.arange(40) % 4, torch.tensor([0, 1, 1, 0]), ((0, 1), (2, 3)))
    numbers = evaluate_features(Features(torch.randn(40, 8), torch.randn(4, 8)), benchmark, ProtocolConfig()).numbers
    for scores in numbers.protocols.values():
        assert scores.accuracy[0] is not None and scores.accuracy[1] is None
    json.dumps(numbers.plain(), allow_nan=False)


def test_diverged_features_are_refused_with_advice(make_benchmark):
    benchmark = make_benchmark(torch.arange(8) % 4, torch.arange(4), ((0, 1), (2, 3)))
    bad = Features(torch.randn(8, 3), torch.full((4, 3), torch.nan))
    with pytest.raises(UserError, match=r"diverged.*lower learning rate"):
        evaluate_features(bad, benchmark, ProtocolConfig())
