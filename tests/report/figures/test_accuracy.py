import numpy as np

from osiris.report.figures.accuracy import class_forgetting, largest


def test_forgetting_of_a_class_is_the_best_minus_the_last():
    history = np.array([[10.0, 50.0, np.nan, 1.0], [40.0, 20.0, np.nan, 2.0], [30.0, 30.0, np.nan, 5.0]])
    lost = class_forgetting(history)
    assert lost[:2].tolist() == [10.0, 20.0] and np.isnan(lost[2]) and lost[3] == 0


def test_the_largest_come_first_and_unknown_ones_never():
    assert largest(np.array([3.0, np.nan, 9.0, 3.0]), 3) == [2, 0, 3]
    assert largest(np.array([3.0, np.nan]), 5) == [0]
