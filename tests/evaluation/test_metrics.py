from __future__ import annotations

import numpy as np
import pytest

from osiris.evaluation.metrics import all_metrics, as_matrix, forgetting, knowledge_gain, overall_accuracy

MATRIX = as_matrix([[60.0, 30.0, 20.0], [55.0, 50.0, 24.0], [50.0, 40.0, 60.0]])
RANDOM = np.array([10.0, 12.0, 15.0])


def test_three_tasks_by_hand():
    found = all_metrics(MATRIX, 77.0, RANDOM)
    assert found["A"] == 50.0  # (50 + 40 + 60) / 3
    assert found["F"] == 10.0  # ((60 - 50) + (50 - 40)) / 2
    assert found["K"] == 28.0  # ((50 - 30) + (60 - 24)) / 2
    assert found["C"] == 77.0
    assert found["T"] == 13.5  # ((30 - 12) + (24 - 15)) / 2


def test_two_tasks_by_hand():
    matrix = as_matrix([[70.0, 20.0], [64.0, 50.0]])
    assert all_metrics(matrix, 88.0, np.array([1.0, 5.0])) == {"A": 57.0, "F": 6.0, "K": 30.0, "C": 88.0, "T": 15.0}


def test_one_task_has_only_accuracy_and_consolidation():
    found = all_metrics(as_matrix([[63.0]]), 100.0, np.array([10.0]))
    assert found == {"A": 63.0, "F": None, "K": None, "C": 100.0, "T": None}


def test_offline_has_only_accuracy_and_consolidation():
    found = all_metrics(as_matrix([[40.0, 50.0, 60.0]]), 81.0, RANDOM, continual=False)
    assert found == {"A": 50.0, "F": None, "K": None, "C": 81.0, "T": None}


def test_without_baseline_there_is_no_transfer():
    assert all_metrics(MATRIX, 77.0)["T"] is None


def test_forgetting_takes_the_maximum_over_all_checkpoints_the_last_included():
    # task 1 is best at the end (its term is 0, not negative), task 2 was best before it was trained on
    matrix = as_matrix([[40.0, 45.0, 0.0], [41.0, 30.0, 0.0], [50.0, 38.0, 10.0]])
    assert forgetting(matrix) == pytest.approx((0 + 7) / 2)


def test_unfinished_run_counts_the_tasks_trained_so_far():
    assert knowledge_gain(MATRIX[:2]) == 20.0
    assert forgetting(MATRIX[:2]) == 5.0
    assert overall_accuracy(MATRIX[:2]) == pytest.approx(43.0)
    assert all_metrics(MATRIX[:1], 50.0, RANDOM) == {
        "A": pytest.approx(110 / 3),
        "F": None,
        "K": None,
        "C": 50.0,
        "T": None,
    }


def test_a_task_without_test_images_is_left_out():
    matrix = as_matrix([[60.0, None, 20.0], [55.0, None, 24.0], [50.0, None, 60.0]])
    found = all_metrics(matrix, 77.0, np.array([10.0, np.nan, 15.0]))
    assert found == {"A": 55.0, "F": 10.0, "K": 36.0, "C": 77.0, "T": 9.0}
