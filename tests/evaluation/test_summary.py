from __future__ import annotations

import dataclasses
import json

import pytest
import torch
from torch import nn

from osiris.errors import UserError
from osiris.evaluation.baseline import random_baseline
from osiris.evaluation.config import ProtocolConfig
from osiris.evaluation.evaluate import evaluate_features
from osiris.evaluation.features import embed_benchmark
from osiris.evaluation.fingerprint import differences, fingerprint, require_same
from osiris.evaluation.summary import build_metrics, task_names

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


def numbers_of(benchmark, seed: int) -> dict:
    return evaluate_features(embed_benchmark(Linear(seed), benchmark), benchmark, PROTOCOL).numbers


def test_metrics_of_a_run(benchmark_):
    evaluations = [numbers_of(benchmark_, seed) for seed in (10, 11, 12)]
    baseline = random_baseline(Linear, benchmark_, PROTOCOL, None, "linear")
    mark = fingerprint(benchmark_, PROTOCOL, {"width": 6})
    metrics = json.loads(json.dumps(build_metrics("ft", benchmark_, 7, evaluations, baseline, mark), allow_nan=False))
    assert (metrics["method"], metrics["benchmark"], metrics["seed"], metrics["complete"]) == ("ft", "made", 7, True)
    assert metrics["task_level"] == [one["task_level"]["accuracy"] for one in evaluations]
    for name in PROTOCOL.protocols:
        found = metrics["protocols"][name]
        matrix = [one["protocols"][name]["accuracy"] for one in evaluations]
        assert found["accuracy_matrix"] == matrix and baseline is not None
        assert found["random_baseline"] == baseline["protocols"][name]
        assert found["A"] == pytest.approx(sum(matrix[2]) / 3)
        assert found["C"] == metrics["task_level"][-1]
        transfer = [matrix[i - 1][i] - found["random_baseline"][i] for i in (1, 2)]
        assert found["T"] == pytest.approx(sum(transfer) / 2)


def test_metrics_of_an_offline_and_of_an_unfinished_run(benchmark_):
    one = numbers_of(benchmark_, 1)
    offline = build_metrics("offline", benchmark_, 0, [one], None, {"hash": "x"}, continual=False)
    found = offline["protocols"]["task-aware"]
    assert offline["complete"] and found["continual"] is False and len(found["accuracy_matrix"]) == 1
    assert found["A"] is not None and found["C"] is not None and found["F"] is found["K"] is found["T"] is None
    unfinished = build_metrics("ft", benchmark_, 0, [one, one], None, {"hash": "x"})
    assert not unfinished["complete"] and unfinished["protocols"]["task-aware"]["F"] == 0


def test_metrics_without_labels(benchmark_):
    bank = dataclasses.replace(benchmark_.bank, label=None)
    unlabelled = dataclasses.replace(benchmark_, bank=bank, test=None, class_names=(), tasks=((), (), ()))
    metrics = build_metrics("ft", unlabelled, 0, [numbers_of(unlabelled, 0)], None, {"hash": "x"})
    assert metrics["protocols"] == {} and metrics["task_level"] == [] and "no test images" in metrics["missing"]


def test_task_names(benchmark_):
    assert task_names(benchmark_)[0] == "task 1 (class 0, class 1)"
    placed = dataclasses.replace(benchmark_, environments=(("city", (0, 2)),))
    assert task_names(placed)[2] == "task 3 (city)"
    assert task_names(dataclasses.replace(benchmark_, task_names=("a", "b", "c"))) == ["a", "b", "c"]


def test_baseline_is_the_mean_of_encoders_and_is_cached(benchmark_, tmp_path):
    Linear.built = 0
    first = random_baseline(Linear, benchmark_, PROTOCOL, tmp_path, "linear/made")
    assert first is not None and Linear.built == 2 and first["seeds"] == [0, 1]
    each = [numbers_of(benchmark_, seed)["protocols"]["class-agnostic"]["accuracy"] for seed in (0, 1)]
    assert first["protocols"]["class-agnostic"] == pytest.approx([(a + b) / 2 for a, b in zip(*each, strict=True)])
    Linear.built = 0
    assert random_baseline(Linear, benchmark_, PROTOCOL, tmp_path, "linear/made") == first and Linear.built == 0
    random_baseline(Linear, benchmark_, dataclasses.replace(PROTOCOL, random_encoders=3), tmp_path, "linear/made")
    assert Linear.built == 1  # only the third is new
    random_baseline(Linear, benchmark_, PROTOCOL, tmp_path, "linear/other data")
    random_baseline(Linear, benchmark_, dataclasses.replace(PROTOCOL, k=4), tmp_path, "linear/made")
    assert Linear.built == 5


def test_no_baseline_where_none_makes_sense(benchmark_, tmp_path):
    assert random_baseline(Linear, dataclasses.replace(benchmark_, test=None), PROTOCOL, tmp_path, "x") is None
    none = dataclasses.replace(PROTOCOL, random_encoders=0)
    assert random_baseline(Linear, benchmark_, none, tmp_path, "x") is None


@pytest.mark.parametrize(
    ("field", "changed"),
    [
        ("k", {"protocol": ProtocolConfig(k=4, random_encoders=2)}),
        ("temperature", {"protocol": ProtocolConfig(k=3, random_encoders=2, temperature=0.2)}),
        ("encoder", {"encoder": {"width": 64}}),
        ("split", {"benchmark": {"checksum": "other"}}),
        ("task_order", {"benchmark": {"tasks": ((2, 3), (0, 1), (4, 5))}}),
    ],
)
def test_fingerprint_changes_with_what_matters(benchmark_, field, changed):
    before = fingerprint(benchmark_, PROTOCOL, {"width": 6})
    benchmark = dataclasses.replace(benchmark_, **changed.get("benchmark", {}))
    after = fingerprint(benchmark, changed.get("protocol", PROTOCOL), changed.get("encoder", {"width": 6}))
    assert before["hash"] != after["hash"] and list(differences([before, after])) == [field]
    with pytest.raises(UserError, match=f"(?s)different protocols.*{field}: .*runs/a.*runs/b"):
        require_same({"runs/a": before, "runs/b": after})


def test_fingerprint_does_not_change_with_what_does_not_matter(benchmark_):
    before = fingerprint(benchmark_, PROTOCOL, {"width": 6, "norm": "gn"})
    other = dataclasses.replace(PROTOCOL, keep_features=True, evaluate_every=5, probe=True)
    assert before == fingerprint(benchmark_, other, {"norm": "gn", "width": 6})
    require_same({"a": before, "b": dict(before)})
