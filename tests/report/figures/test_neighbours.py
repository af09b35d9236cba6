import numpy as np

from osiris.report.figures import neighbours


def test_hits_compare_labels():
    found, bank, query = np.array([[0, 1], [2, 0]]), np.array([5, 6, 7]), np.array([5, 7])
    assert neighbours.hits(found, bank, query).tolist() == [[True, False], [True, False]]


def test_the_most_forgotten_queries_are_chosen():
    before = np.array([[1, 1, 1], [1, 0, 0], [1, 1, 0], [1, 1, 1], [0, 0, 0], [1, 1, 1]], dtype=bool)
    after = np.array([[0, 0, 0], [1, 0, 0], [0, 0, 0], [1, 0, 0], [0, 0, 0], [0, 0, 0]], dtype=bool)
    task = np.array([0, 0, 0, 0, 1, 2])
    assert neighbours.choose(before, after, task, last_task=2, count=9) == [0, 2], "two per task, none of the last"
    assert neighbours.choose(before, after, task, last_task=3, count=9) == [0, 5, 2]
    assert neighbours.choose(before, after, task, last_task=3, count=1) == [0]
