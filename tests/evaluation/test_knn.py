from __future__ import annotations

import io
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from naive_knn import compare_with_naive
from osiris.data.benchmark import Benchmark
from osiris.evaluation import knn
from osiris.evaluation.config import PROTOCOLS, ProtocolConfig
from osiris.evaluation.evaluate import rank_test_images
from osiris.evaluation.features import Features
from osiris.evaluation.knn import Question, ask, nearest, rank, vote
from quick import quick

ALL = ProtocolConfig(protocols=PROTOCOLS)


@pytest.mark.parametrize("k", [200, 7])
def test_same_predictions_as_naive_loops(clustered, k):
    features, benchmark = clustered
    protocol = ProtocolConfig(k=k, protocols=PROTOCOLS)
    compared = compare_with_naive(features, benchmark, rank_test_images(features, benchmark, protocol), k)
    assert set(compared) == {*PROTOCOLS, "task-level", "within-environment"}
    assert min(compared.values()) > 450  # nearly every query has a clear winner, so the test can fail


@pytest.mark.slow
@pytest.mark.real_data
def test_same_predictions_as_naive_loops_on_cifar(real_data, make_benchmark):
    features, benchmark = cifar_features(real_data, make_benchmark)
    compared = compare_with_naive(features, benchmark, rank_test_images(features, benchmark, ALL), 200)
    assert min(compared.values()) > 480


def cifar_features(folder, make_benchmark) -> tuple[Features, Benchmark]:
    """Features of 5,000 training and 500 test images of CIFAR-100: random projections of the raw pixels, with ReLU."""
    import pyarrow.parquet as parquet
    from PIL import Image

    def read(split: str, count: int) -> tuple[np.ndarray, torch.Tensor]:
        (path,) = sorted((folder / "cifar100").glob(f"{split}-*.parquet"))
        rows = parquet.read_table(path, columns=["img", "fine_label"]).slice(0, count).to_pylist()
        pixels = [np.asarray(Image.open(io.BytesIO(row["img"]["bytes"])), dtype=np.float32) for row in rows]
        return np.stack(pixels).reshape(count, -1) / 255, torch.tensor([row["fine_label"] for row in rows])

    bank, bank_label = read("train", 5000)
    test, test_label = read("test", 500)
    matrix = np.random.default_rng(0).normal(size=(bank.shape[1], 512)).astype(np.float32)
    tasks = tuple(tuple(range(start, start + 5)) for start in range(0, 100, 5))
    benchmark = make_benchmark(
        bank_label, test_label, tasks, (("first", tuple(range(8))), ("rest", tuple(range(8, 20))))
    )
    shift = bank.mean(axis=0)
    raw = [torch.from_numpy(np.maximum((part - shift) @ matrix, 0)) for part in (bank, test)]
    return Features(raw[0], raw[1]), benchmark


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
    assert rank(votes).tolist() == [[1, 3, -1, -1, -1]]
    similarity = torch.tensor([[0.5, 0.9, 0.5, 0.5, 0.2, 0.5], [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]])
    values, indices = nearest(similarity, 3)
    assert sorted(indices[0].tolist()) == [0, 1, 2]
    assert sorted(indices[1].tolist()) == [3, 4, 5]
    assert torch.equal(values, similarity.gather(1, indices))
    label = torch.tensor([4, 3, 2, 1, 0] * 20)
    question = Question("class-agnostic", label, 5)
    answer = ask(torch.ones(100, 8), torch.ones(3, 8), [question], k=4, temperature=0.1)["class-agnostic"]
    assert answer.classes.tolist() == [[1, 2, 3, 4, -1]] * 3  # images 0 to 3 vote


def test_masked_votes_without_any_for_the_task_fall_to_its_lowest_class():
    votes = torch.tensor([[0, 0, 0, 9], [0, 5, 0, 9]])
    allowed = torch.tensor([[False, True, True, False]])
    assert rank(votes, allowed)[:, :2].tolist() == [[1, -1], [1, -1]]


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
    cosine = torch.nn.functional.normalize(test, dim=1).double() @ torch.nn.functional.normalize(bank, dim=1).double().T
    for row, similarity in enumerate(cosine):
        chosen = similarity.argsort(descending=True)[:k]
        votes = torch.zeros(classes, dtype=torch.float64).index_add_(0, label[chosen], (similarity[chosen] * 10).exp())
        top = votes.sort(descending=True)
        clear = classes == 1 or (top.values[0] - top.values[1]) / votes.sum() > 1e-4
        assert not clear or answer.prediction[row] == top.indices[0]
        voted = {int(one) for one in label[chosen]}
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
