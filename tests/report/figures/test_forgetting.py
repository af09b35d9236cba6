import numpy as np

from osiris.report.figures import forgetting

HISTORY = [[10.0, 50.0, None], [40.0, 20.0, None], [30.0, 30.0, None]]


def test_forgetting_is_the_best_minus_the_last():
    found = forgetting.per_class(HISTORY)
    assert found[:2].tolist() == [10.0, 20.0] and np.isnan(found[2])


def test_a_class_that_only_improves_forgets_nothing():
    assert forgetting.per_class([[1.0], [5.0]]).tolist() == [0.0]


def test_since_learned_may_be_negative():
    found = forgetting.since_learned(HISTORY, [0, 1, 2])
    assert found[:2].tolist() == [-20.0, -10.0]
    assert forgetting.since_learned(HISTORY, [1, 0, 2])[:2].tolist() == [10.0, 20.0]


def test_the_most_forgotten_come_first_and_unknown_ones_never():
    assert forgetting.most(np.array([3.0, np.nan, 9.0, 3.0]), 3) == [2, 0, 3]
    assert forgetting.most(np.array([3.0, np.nan]), 5) == [0]
