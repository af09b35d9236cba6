import numpy as np
import pytest

from osiris.reporting import curves
from osiris.reporting.curves import Course

COURSE = Course(
    x=np.array([0.5, 1.0, 2.0 + 1e-12, 3.0]),
    accuracy=np.array([[10.0, 2.0, 4.0], [20.0, 4.0, 6.0], [16.0, 30.0, 8.0], [12.0, 24.0, 45.0]]),
    task_level=np.array([30.0, 40.0, 50.0, 60.0]),
)


def test_plasticity_consolidation_and_stability():
    """Rounding must not move the end of a task (2 + 1e-12) into the next."""
    assert COURSE.plasticity().tolist() == [10, 20, 30, 45]
    assert COURSE.consolidation().tolist() == [30, 40, 50, 60]
    assert COURSE.of_task(0).tolist() == [10, 20, 16, 12]
    assert COURSE.overall().tolist() == pytest.approx([16 / 3, 10, 18, 27])
    assert COURSE.after(1.0).plasticity().tolist() == [30, 45]
    untrained = Course(np.zeros(1), np.array([[10.0, np.nan, 20.0]]), np.zeros(1))
    assert untrained.plasticity().tolist() == [10] and untrained.overall().tolist() == [15], "NaN: no test images"


def test_over_seeds_takes_the_points_that_all_curves_have():
    first = (np.array([0.5, 1.0, 2.0]), np.array([1.0, 2.0, 4.0]))
    second = (np.array([1.0, 1.5, 2.0]), np.array([4.0, 9.0, 8.0]))
    line = curves.over_seeds([first, second])
    assert line.x.tolist() == [1.0, 2.0] and line.mean.tolist() == [3.0, 6.0]
    assert line.deviation is not None and line.deviation.tolist() == pytest.approx([2**0.5, 8**0.5])
    assert curves.over_seeds([first]).deviation is None
    unsorted = (np.array([2.0, 1.0, 1.0]), np.array([8.0, 1.0, 4.0]))
    assert curves.over_seeds([unsorted]).mean.tolist() == [4.0, 8.0], "in order, the last value of a place counts"


def test_thin_keeps_short_series_and_averages_long_ones():
    x = np.arange(1000.0)
    assert len(curves.thin(x[:10], x[:10])[0]) == 10
    thinned_x, thinned_y = curves.thin(x, 2 * x, limit=100)
    assert len(thinned_x) == 100
    assert thinned_y.mean() == pytest.approx(2 * x.mean()) and np.allclose(thinned_y, 2 * thinned_x)
