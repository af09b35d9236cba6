import numpy as np

from osiris.report.figures.images import most_forgotten


def test_the_most_forgotten_queries_are_chosen():
    before = np.array([[1, 1, 1], [1, 0, 0], [1, 1, 0], [1, 1, 1], [0, 0, 0], [1, 1, 1]], dtype=bool)
    after = np.array([[0, 0, 0], [1, 0, 0], [0, 0, 0], [1, 0, 0], [0, 0, 0], [0, 0, 0]], dtype=bool)
    task = np.array([0, 0, 0, 0, 1, 2])
    assert most_forgotten(before, after, task, last_task=2, count=9) == [0, 2], "two per task, none of the last"
    assert most_forgotten(before, after, task, last_task=3, count=9) == [0, 5, 2]
    assert most_forgotten(before, after, task, last_task=3, count=1) == [0]
