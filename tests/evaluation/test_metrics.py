import numpy as np
import pytest

from osiris.evaluation.metrics import all_metrics, as_matrix, forgetting

MATRIX = [[60.0, 30.0, 20.0], [55.0, 50.0, 24.0], [50.0, 40.0, 60.0]]
RANDOM = [10.0, 12.0, 15.0]
NO_FORGETTING = {"F": None, "K": None, "T": None}


@pytest.mark.parametrize(
    ("rows", "random", "expected"),
    [
        # A = (50 + 40 + 60) / 3, F = ((60 - 50) + (50 - 40)) / 2, K = ((50 - 30) + (60 - 24)) / 2,
        # T = ((30 - 12) + (24 - 15)) / 2
        (MATRIX, RANDOM, {"A": 50.0, "F": 10.0, "K": 28.0, "T": 13.5}),
        ([[70.0, 20.0], [64.0, 50.0]], [1.0, 5.0], {"A": 57.0, "F": 6.0, "K": 30.0, "T": 15.0}),
        (MATRIX, None, {"A": 50.0, "F": 10.0, "K": 28.0, "T": None}),
        ([[63.0]], [10.0], {"A": 63.0, **NO_FORGETTING}),
        (MATRIX[:2], RANDOM, {"A": 43.0, "F": 5.0, "K": 20.0, "T": 18.0}),
        (MATRIX[:1], RANDOM, {"A": pytest.approx(110 / 3), **NO_FORGETTING}),
        (
            [[60.0, None, 20.0], [55.0, None, 24.0], [50.0, None, 60.0]],
            [10.0, np.nan, 15.0],
            {"A": 55.0, "F": 10.0, "K": 36.0, "T": 9.0},
        ),
    ],
    ids=["three tasks", "two tasks", "no baseline", "one task", "unfinished", "first task", "task without test images"],
)
def test_metrics_by_hand(rows, random, expected):
    baseline = None if random is None else np.array(random)
    assert all_metrics(as_matrix(rows), 77.0, baseline) == {"C": 77.0, **expected}


def test_offline_has_only_accuracy_and_consolidation():
    metrics = all_metrics(as_matrix([[40.0, 50.0, 60.0]]), 81.0, np.array(RANDOM))
    assert metrics == {"A": 50.0, "C": 81.0, **NO_FORGETTING}


def test_forgetting_takes_the_maximum_over_all_checkpoints_including_the_last():
    # task 1 is best at the end (its term is 0, not negative), task 2 was best before it was trained on
    matrix = as_matrix([[40.0, 45.0, 0.0], [41.0, 30.0, 0.0], [50.0, 38.0, 10.0]])
    assert forgetting(matrix) == pytest.approx((0 + 7) / 2)
