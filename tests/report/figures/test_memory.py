import numpy as np

from osiris.report.figures.images import task_shares


def test_shares_of_each_task_leave_empty_slots_out():
    memories = [np.array([0, 0, 0, 0]), np.array([0, 1, 1, 0]), np.array([0, 1, 2, 2])]
    assert task_shares(memories, 3).tolist() == [[1, 0, 0], [0.5, 0.5, 0], [0.25, 0.25, 0.5]]
    assert task_shares([np.array([-1, 0, -1, 1])], 2).tolist() == [[0.5, 0.5]]
    assert task_shares([np.array([-1, -1])], 2).tolist() == [[0, 0]]
