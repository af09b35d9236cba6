"""Numbers behind the figures, on hand-made arrays: forgotten neighbours and shares of the memory."""

import numpy as np

from osiris.reporting.figures.images import most_forgotten, task_shares


def test_the_most_forgotten_queries_are_chosen():
    before = np.array([[1, 1, 1], [1, 0, 0], [1, 1, 0], [1, 1, 1], [0, 0, 0], [1, 1, 1]], dtype=bool)
    after = np.array([[0, 0, 0], [1, 0, 0], [0, 0, 0], [1, 0, 0], [0, 0, 0], [0, 0, 0]], dtype=bool)
    task = np.array([0, 0, 0, 0, 1, 2])
    assert most_forgotten(before, after, task, last_task=2, count=9) == [0, 2], "two per task, none of the last"
    assert most_forgotten(before, after, task, last_task=3, count=9) == [0, 5, 2]
    assert most_forgotten(before, after, task, last_task=3, count=1) == [0]


def test_shares_of_each_task_leave_empty_slots_out():
    memories = [np.array([0, 0, 0, 0]), np.array([0, 1, 1, 0]), np.array([0, 1, 2, 2])]
    assert task_shares(memories, 3).tolist() == [[1, 0, 0], [0.5, 0.5, 0], [0.25, 0.25, 0.5]]
    assert task_shares([np.array([-1, 0, -1, 1])], 2).tolist() == [[0.5, 0.5]]
    assert task_shares([np.array([-1, -1])], 2).tolist() == [[0, 0]]
