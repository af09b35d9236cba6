import numpy as np
import pytest

from osiris.report.figures import similarity

SIMILARITY = np.array(
    [
        [0.9, 0.1, 0.2, 0.3],
        [0.1, 0.8, 0.4, 0.5],
        [0.2, 0.4, 0.7, 0.6],
        [0.3, 0.5, 0.6, 0.6],
    ]
)
TASKS = [[2, 0], [3], [1]]


def test_classes_come_in_the_order_of_the_tasks():
    ordered = similarity.in_task_order(SIMILARITY, TASKS)
    assert similarity.class_order(TASKS) == [2, 0, 3, 1]
    assert ordered[0].tolist() == [0.7, 0.2, 0.6, 0.4]
    assert np.array_equal(ordered, ordered.T)
    assert similarity.class_order([[0, 1], [1, 2]]) == [0, 1, 2], "a class that comes back counts once"


def test_tasks_from_labels_and_tasks_of_images():
    label, task = np.array([3, 0, 0, 2, 1]), np.array([1, 0, 0, 0, 2])
    assert similarity.tasks_of(label, task) == [[0, 2], [3], [1]]


def test_switches_lie_between_environments():
    assert similarity.switches(TASKS, [("indoor", [0]), ("city", [1]), ("wild", [2])]) == [2, 3]
    assert similarity.switches(TASKS, []) == []


def test_similarity_between_classes_leaves_the_diagonal_out():
    assert similarity.between_classes(SIMILARITY, [0, 1, 2]) == pytest.approx((0.1 + 0.2 + 0.4) / 3)
    assert np.isnan(similarity.between_classes(SIMILARITY, [0]))
    found = similarity.by_environment(SIMILARITY, TASKS, [("one", [0, 1]), ("two", [2])])
    assert found["one"] == pytest.approx((0.2 + 0.6 + 0.3) / 3) and np.isnan(found["two"])
