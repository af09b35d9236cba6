import numpy as np
import pytest

from osiris.report import curves
from osiris.report.curves import Point

POINTS = [
    Point(0.5, np.array([10.0, 2.0, 4.0]), 30.0),
    Point(1.0, np.array([20.0, 4.0, 6.0]), 40.0),
    Point(2.0, np.array([16.0, 30.0, 8.0]), 50.0),
    Point(3.0, np.array([12.0, 24.0, 45.0]), 60.0),
]


def test_the_task_of_a_point_is_the_one_being_learned():
    assert [point.task for point in POINTS] == [0, 0, 1, 2]
    assert Point(0.0, np.zeros(3)).task == 0
    assert Point(1.0 + 1e-12, np.zeros(3)).task == 0, "rounding must not move the end of a task into the next"


def test_plasticity_consolidation_and_stability():
    assert curves.plasticity(POINTS)[1].tolist() == [10, 20, 30, 45]
    assert curves.consolidation(POINTS)[1].tolist() == [30, 40, 50, 60]
    assert curves.of_task(POINTS, 0)[1].tolist() == [10, 20, 16, 12]
    assert curves.overall(POINTS)[1].tolist() == pytest.approx([16 / 3, 10, 18, 27])
    assert curves.plasticity(POINTS)[0].tolist() == [0.5, 1, 2, 3]


def test_over_seeds_takes_the_points_that_all_curves_have():
    first = (np.array([0.5, 1.0, 2.0]), np.array([1.0, 2.0, 4.0]))
    second = (np.array([1.0, 1.5, 2.0]), np.array([4.0, 9.0, 8.0]))
    line = curves.over_seeds([first, second])
    assert line.x.tolist() == [1.0, 2.0] and line.mean.tolist() == [3.0, 6.0] and line.seeds == 2
    assert line.deviation is not None and line.deviation.tolist() == pytest.approx([2**0.5, 8**0.5])
    assert curves.over_seeds([first]).deviation is None
    unsorted = (np.array([2.0, 1.0, 1.0]), np.array([8.0, 1.0, 4.0]))
    assert curves.over_seeds([unsorted]).mean.tolist() == [4.0, 8.0], "in order, the last value of a place counts"


def test_a_task_without_test_images_is_left_out_of_means():
    point = Point(1.0, np.array([10.0, np.nan, 20.0]))
    assert curves.overall([point])[1].tolist() == [15.0]


def test_thin_keeps_short_series_and_averages_long_ones():
    x = np.arange(1000.0)
    assert curves.thin(x[:10], x[:10])[0] is not None and len(curves.thin(x[:10], x[:10])[0]) == 10
    thinned_x, thinned_y = curves.thin(x, 2 * x, limit=100)
    assert len(thinned_x) == 100
    assert thinned_y.mean() == pytest.approx(2 * x.mean()) and np.allclose(thinned_y, 2 * thinned_x)
