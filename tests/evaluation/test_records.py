import dataclasses
import json

import numpy as np
import pytest
import torch
from torch import nn

from osiris.errors import UserError
from osiris.evaluation.baselines import untrained_baseline
from osiris.evaluation.config import ProtocolConfig
from osiris.evaluation.evaluate import compare_hits, evaluate_features
from osiris.evaluation.features import embed_benchmark
from osiris.evaluation.fingerprint import protocol_fingerprint
from osiris.evaluation.scores import Scores, write_record
from osiris.runs.records import ProtocolMetrics, build_metrics, read_metrics, setting_of, task_names

PROTOCOL = ProtocolConfig(k=3, random_encoders=2)


class Linear(nn.Module):
    """A random linear map of the pixels, by seed."""

    built = 0

    def __init__(self, seed: int) -> None:
        super().__init__()
        Linear.built += 1
        self.register_buffer("matrix", torch.randn(48, 6, generator=torch.Generator().manual_seed(seed)))

    def forward(self, images):
        return images.flatten(1) @ self.matrix


@pytest.fixture
def benchmark_(make_benchmark):
    return make_benchmark(torch.arange(60) % 6, torch.arange(24) % 6, ((0, 1), (2, 3), (4, 5)))


def numbers_of(benchmark, seed: int) -> Scores:
    return evaluate_features(embed_benchmark(Linear(seed), benchmark), benchmark, PROTOCOL).numbers


def test_metrics_of_a_run_go_to_the_file_and_back(benchmark_, tmp_path):
    evaluations = [numbers_of(benchmark_, seed) for seed in (10, 11, 12)]
    baseline = untrained_baseline(Linear, benchmark_, PROTOCOL, None, "linear")
    mark = protocol_fingerprint(benchmark_, PROTOCOL, {"width": 6})
    assert baseline is not None
    built = build_metrics("ft", setting_of(benchmark_, mark, baseline.protocols), 7, evaluations)
    write_record(tmp_path / "metrics.json", built)
    metrics = read_metrics(tmp_path / "metrics.json")
    assert metrics == built and {"curve", "preset", "missing"}.isdisjoint(
        json.loads((tmp_path / "metrics.json").read_text())
    )
    assert (metrics.method, metrics.benchmark, metrics.seed, metrics.complete) == ("ft", "made", 7, True)
    assert metrics.task_level == [one.task_level.accuracy for one in evaluations]
    for name in PROTOCOL.protocols:
        matrix = np.array([one.protocols[name].accuracy for one in evaluations])
        assert metrics[name].accuracy_matrix == matrix.tolist()
        assert metrics[name].random_baseline == baseline.protocols[name]
        assert pytest.approx(matrix[2].mean()) == metrics[name].A and metrics.task_level[-1] == metrics[name].C
        transfer = [matrix[i - 1][i] - baseline.protocols[name][i] for i in (1, 2)]
        assert pytest.approx(np.mean(transfer)) == metrics[name].T
    with pytest.raises(UserError, match=r"no numbers under the protocol .x.; it has class-agnostic, class-agn"):
        metrics["x"]


def test_metrics_of_an_offline_and_of_an_unfinished_run(benchmark_):
    one = numbers_of(benchmark_, 1)
    mark = protocol_fingerprint(benchmark_, PROTOCOL, {})
    offline = build_metrics("offline", setting_of(benchmark_, mark), 0, [one], continual=False)
    aware = offline["task-aware"]
    assert offline.complete and aware.continual is False and len(aware.accuracy_matrix) == 1
    assert aware.A is not None and aware.C is not None and aware.F is aware.K is aware.T is None
    unfinished = build_metrics("ft", setting_of(benchmark_, mark), 0, [one, one])
    assert not unfinished.complete and unfinished["task-aware"].F == 0


def test_task_names(benchmark_):
    assert task_names(benchmark_)[0] == "task 1 (class 0, class 1)"
    placed = dataclasses.replace(benchmark_, environments=(("city", (0, 2)),))
    assert task_names(placed)[2] == "task 3 (city)"
    assert task_names(dataclasses.replace(benchmark_, task_names=("a", "b", "c"))) == ["a", "b", "c"]


def test_baseline_is_the_mean_of_encoders_and_is_cached(benchmark_, tmp_path):
    Linear.built = 0
    first = untrained_baseline(Linear, benchmark_, PROTOCOL, tmp_path, "linear/made")
    assert first is not None and Linear.built == 2
    each = [numbers_of(benchmark_, seed).protocols["class-agnostic"].accuracy for seed in (0, 1)]
    assert first.protocols["class-agnostic"] == pytest.approx(np.mean(np.array(each), axis=0).tolist())
    Linear.built = 0
    assert untrained_baseline(Linear, benchmark_, PROTOCOL, tmp_path, "linear/made") == first and Linear.built == 0
    untrained_baseline(Linear, benchmark_, dataclasses.replace(PROTOCOL, random_encoders=3), tmp_path, "linear/made")
    assert Linear.built == 1  # only the third is new
    untrained_baseline(Linear, benchmark_, PROTOCOL, tmp_path, "linear/other data")
    untrained_baseline(Linear, benchmark_, dataclasses.replace(PROTOCOL, k=4), tmp_path, "linear/made")
    assert Linear.built == 5


def test_the_p_of_the_gain_is_shown_with_the_difference_that_it_tests():
    """G is a mean over tasks, and the test counts images: 100 images lose 10 hits, 10 others gain 4."""
    hits = np.arange(100) < 50, np.arange(10) < 2, np.arange(100) < 40, np.arange(10) < 6
    unequal = compare_hits(np.concatenate(hits[:2]), np.concatenate(hits[2:]))
    equal = compare_hits(hits[0], hits[2])
    fields = {"continual": True, "accuracy_matrix": [], "random_baseline": None, **dict.fromkeys("AFKCT")}
    assert ProtocolMetrics(**fields, G=15.0, overall=unequal).gain == "+15.0 (over all images -5.5, p = 0.180)"
    assert ProtocolMetrics(**fields, G=-10.0, overall=equal).gain == "-10.0, p = 0.002"
    assert ProtocolMetrics(**fields, G=15.0).gain == "+15.0" and ProtocolMetrics(**fields).gain is None
