import math
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from osiris.data.benchmark import Benchmark
from osiris.evaluation import knn
from osiris.evaluation.config import PROBE, PROTOCOLS, WHITENED, Protocol, ProtocolConfig
from osiris.evaluation.evaluate import rank_test_images
from osiris.evaluation.features import Features
from osiris.evaluation.knn import Question, ask, nearest, neighbours_of, rank_classes, vote
from quick import quick

KNN: tuple[Protocol, ...] = tuple(name for name in PROTOCOLS if not name.endswith(PROBE))
ALL = ProtocolConfig(protocols=KNN)


def unit(features: torch.Tensor | None) -> np.ndarray:
    assert features is not None
    rows = features.numpy().astype(np.float64)
    return np.stack([row / math.sqrt(float((row * row).sum())) for row in rows])


def naive_winner(
    similarity: np.ndarray, nearest: list[int], classes: list[int], k: int, allowed: tuple[int, ...] = ()
) -> tuple[int, float]:
    """Weighted KNN in a plain loop: the winner and its lead over the second, as a share of all votes."""
    votes: dict[int, float] = {}
    for column in nearest[:k]:
        votes[classes[column]] = votes.get(classes[column], 0.0) + math.exp(similarity[column] / 0.1)
    total = sum(votes.values())
    votes = {label: votes.get(label, 0.0) for label in allowed} if allowed else votes
    ordered = sorted(votes.items(), key=lambda item: (-item[1], item[0]))
    second = ordered[1][1] if len(ordered) > 1 else 0.0
    return ordered[0][0], (ordered[0][1] - second) / total


def compare_with_naive(features: Features, benchmark: Benchmark, k: int) -> dict[str, int]:
    """Assert equal predictions wherever the two best votes differ by more than 1e-6 (of all votes, since the weights
    are only known up to float32: exp(1 / 0.1) is 22,026). Returns how many were compared."""
    rankings = rank_test_images(features, benchmark, ProtocolConfig(k=k, protocols=KNN))
    assert benchmark.test is not None and benchmark.bank.label is not None
    label, bank_task = benchmark.bank.label.tolist(), benchmark.bank.task.tolist()
    environment = [set(tasks) for task in range(5) for _, tasks in benchmark.environments if task in tasks]
    compared = dict.fromkeys(rankings, 0)
    raw, after = cosines(features.test, features.bank), cosines(*naively_whitened(features.test, features.bank))
    for query, task in enumerate(benchmark.test.task.tolist()):
        expected = {}
        for similarity, kind in ((raw[query], ""), (after[query], WHITENED)):
            order = sorted(range(len(similarity)), key=lambda column, row=similarity: -row[column])
            in_task = [column for column in order if label[column] in benchmark.tasks[task]]
            expected |= {
                f"class-agnostic{kind}": naive_winner(similarity, order, label, k),
                f"task-aware-masked{kind}": naive_winner(similarity, order, label, k, benchmark.tasks[task]),
                f"task-aware{kind}": naive_winner(similarity, in_task, label, k),
            }
        order = sorted(range(len(raw[query])), key=lambda column, row=raw[query]: -row[column])
        near = [column for column in order if bank_task[column] in environment[task]]
        expected["task-level"] = naive_winner(raw[query], order, bank_task, k)
        expected["within-environment"] = naive_winner(raw[query], near, label, k)
        assert expected.keys() == rankings.keys()
        for name, (winner, margin) in expected.items():
            if margin > 1e-6:
                compared[name] += 1
                assert int(rankings[name].prediction[query]) == winner, f"{name}, query {query}, margin {margin}"
    return compared


def cosines(queries, bank):
    return unit(queries) @ unit(bank).T


def naively_whitened(test, bank):
    """By the singular values of the centred bank, in float64; the same but for a rotation, which cosines do not see."""
    centre = bank.double().mean(0)
    _, values, directions = torch.linalg.svd(bank.double() - centre, full_matrices=False)
    variances = values**2 / len(bank)
    scaled = directions.T / (variances + 1e-3 * variances.max()).sqrt()
    return ((test.double() - centre) @ scaled).float(), ((bank.double() - centre) @ scaled).float()


@pytest.mark.parametrize("k", [200, 7])
def test_same_predictions_as_naive_loops(clustered, k):
    features, benchmark = clustered
    compared = compare_with_naive(features, benchmark, k)
    assert min(compared.values()) > 450  # nearly every query has a clear winner, so the test can fail


def test_result_does_not_depend_on_the_chunk(clustered, monkeypatch):
    features, benchmark = clustered
    whole = rank_test_images(features, benchmark, ALL)
    monkeypatch.setattr(knn, "CHUNK_ENTRIES", 37 * len(features.bank))
    for name, ranking in rank_test_images(features, benchmark, ALL).items():
        assert torch.equal(ranking.classes, whole[name].classes), name


def test_k_larger_than_the_bank_lets_everybody_vote(clustered):
    features, benchmark = clustered
    large = rank_test_images(features, benchmark, ProtocolConfig(k=10**6))
    exact = rank_test_images(features, benchmark, ProtocolConfig(k=5000))
    assert torch.equal(large["class-agnostic"].classes, exact["class-agnostic"].classes)
    assert large["class-agnostic"].k_effective == (5000,)
    assert benchmark.bank.label is not None
    sizes = [int(torch.isin(benchmark.bank.label, torch.tensor(task)).sum()) for task in benchmark.tasks]
    assert list(large["task-aware"].k_effective) == sizes
    assert rank_test_images(features, benchmark, ALL)["task-aware"].k_effective == (200,) * 5


def test_single_class_bank_and_single_class_task(make_benchmark):
    features = Features(torch.randn(30, 8), torch.randn(6, 8))
    benchmark = make_benchmark(torch.zeros(30, dtype=torch.int64), torch.zeros(6, dtype=torch.int64), ((0,),))
    for ranking in rank_test_images(features, benchmark, ALL).values():
        assert ranking.classes.tolist() == [[0, -1, -1, -1, -1]] * 6
    label = torch.tensor([2] * 10 + [0, 1] * 10)
    benchmark = make_benchmark(label, torch.tensor([2, 2, 2, 0, 1, 0]), ((2,), (0, 1)))
    rankings = rank_test_images(features, benchmark, ALL)
    assert rankings["task-aware"].prediction[:3].tolist() == [2, 2, 2]
    assert rankings["task-aware-masked"].prediction[:3].tolist() == [2, 2, 2]


def test_ties_prefer_the_lower_class_and_the_lower_index():
    """Two classes with the same similarities in another order: float sums would differ in the last bit."""
    similarity = torch.tensor([[0.1, 0.9, 0.3, 0.70001, 0.70001, 0.3, 0.9, 0.1]])
    classes = torch.tensor([[3, 3, 3, 3, 1, 1, 1, 1]])
    votes = vote(similarity, classes, 5, 0.1)
    assert votes[0, 1] == votes[0, 3] > 0
    assert rank_classes(votes).tolist() == [[1, 3, -1, -1, -1]]
    similarity = torch.tensor([[0.5, 0.9, 0.5, 0.5, 0.2, 0.5], [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]])
    values, indices = nearest(similarity, 3)
    assert sorted(indices[0].tolist()) == [0, 1, 2]
    assert sorted(indices[1].tolist()) == [3, 4, 5]
    assert torch.equal(values, similarity.gather(1, indices))
    label = torch.tensor([4, 3, 2, 1, 0] * 20)
    question = Question("class-agnostic", label, 5)
    answer = ask(torch.ones(100, 8), torch.ones(3, 8), [question], k=4, temperature=0.1)["class-agnostic"]
    assert answer.classes.tolist() == [[1, 2, 3, 4, -1]] * 3  # images 0 to 3 vote


def test_equal_neighbours_are_in_the_order_of_the_bank():
    bank = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 0.0], [0.6, 0.8]])
    values, indices = neighbours_of(bank, torch.tensor([[1.0, 0.0]]), 4)
    assert indices.tolist() == [[0, 2, 3, 4]] and values[0].tolist() == pytest.approx([1, 1, 1, 0.6])


def test_votes_are_sums_of_exponentials_to_ten_digits():
    random = torch.Generator().manual_seed(0)
    similarity, classes = torch.rand(20, 200, generator=random), torch.randint(5, (20, 200), generator=random)
    exact = torch.zeros(20, 5, dtype=torch.float64).scatter_add_(1, classes, (similarity.double() / 0.1).exp())
    votes = vote(similarity, classes, 5, 0.1).double()
    shares, expected = (part / part.sum(dim=1, keepdim=True) for part in (votes, exact))
    torch.testing.assert_close(shares, expected, rtol=1e-10, atol=0)


def test_masked_votes_without_any_for_the_task_fall_to_its_lowest_class():
    votes = torch.tensor([[0, 0, 0, 9], [0, 5, 0, 9]])
    allowed = torch.tensor([[False, True, True, False]])
    assert rank_classes(votes, allowed)[:, :2].tolist() == [[1, -1], [1, -1]]


def test_the_caller_s_matmul_precision_survives(clustered):
    features, benchmark = clustered
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        medium = rank_test_images(features, benchmark, ALL)["class-agnostic"].classes
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)
    assert torch.equal(medium, rank_test_images(features, benchmark, ALL)["class-agnostic"].classes)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 40), st.integers(1, 9), st.integers(1, 50), st.integers(1, 7), st.integers(0, 10**6))
def test_any_shape_agrees_with_a_sort(bank_size, queries, k, classes, seed):
    random = torch.Generator().manual_seed(seed)
    bank, test = torch.randn(bank_size, 5, generator=random), torch.randn(queries, 5, generator=random)
    label = torch.randint(0, classes, (bank_size,), generator=random)
    answer = ask(bank, test, [Question("q", label, classes)], k, 0.1)["q"]
    for row, similarity in enumerate(unit(test) @ unit(bank).T):
        chosen = np.argsort(-similarity).tolist()
        winner, margin = naive_winner(similarity, chosen, label.tolist(), k)
        assert margin < 1e-4 or answer.prediction[row] == winner
        voted = {int(label[column]) for column in chosen[:k]}
        listed = [int(one) for one in answer.classes[row] if one >= 0]
        assert set(listed) <= voted and len(listed) == min(len(voted), 5)


MEASURE = """
    import resource, sys, time, torch
    from osiris.evaluation.knn import Question, ask
    torch.set_num_threads(1)
    bank_size, queries, dimension, collapsed = (int(argument) for argument in sys.argv[1:])
    bank, test = torch.randn(bank_size, dimension), torch.randn(queries, dimension)
    if collapsed:
        bank.fill_(1), test.fill_(1)
    label, group = torch.arange(bank_size) % 100, torch.arange(queries) % 20
    columns = tuple((label // 5 == task).nonzero().squeeze(1) for task in range(20))
    halves = tuple((label // 50 == half).nonzero().squeeze(1) for half in range(2))
    questions = [
        Question("class-agnostic", label, 100),
        Question("task-aware", label, 100, columns=columns, group=group),
        Question("task-level", label // 5, 20),
        Question("within-environment", label, 100, columns=halves, group=group // 10),
    ]
    ask(bank[:300], test[:10], [Question("warm", label[:300], 100)], 200, 0.1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    ask(bank, test, questions, 200, 0.1)
    extra = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    print(extra, time.perf_counter() - start)
"""


def measure(*sizes: int) -> tuple[float, float]:
    """(extra MiB at the peak, seconds) of the KNN in a process of its own: torch's memory is invisible from inside."""
    command = [sys.executable, "-c", textwrap.dedent(MEASURE), *map(str, sizes)]
    extra, seconds = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return float(extra), float(seconds)


@pytest.mark.parametrize(
    ("queries", "dimension", "collapsed", "limit"),
    quick({(1_000, 16, 1, 450)}, [(1_000, 16, 0, 450), (1_000, 16, 1, 450), (10_000, 512, 0, 1024)]),
)
def test_memory_is_bounded(queries, dimension, collapsed, limit):
    """A thousand queries on a bank of 50,000 are 190 MiB of similarities; 128 MiB are in memory at a time. The last
    case is CIFAR-100 with the paper's encoder."""
    extra, _ = measure(50_000, queries, dimension, collapsed)
    assert extra < limit
