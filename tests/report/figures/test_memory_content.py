import numpy as np
import pytest

from osiris.report.figures import memory_content


def test_shares_of_each_task():
    held = [np.array([0, 0, 0, 0]), np.array([0, 1, 1, 0]), np.array([0, 1, 2, 2])]
    share = memory_content.shares(held, 3)
    assert share.tolist() == [[1, 0, 0], [0.5, 0.5, 0], [0.25, 0.25, 0.5]]
    assert memory_content.largest_gap(share) == pytest.approx(0.5 - 1 / 3)


def test_empty_slots_do_not_count():
    assert memory_content.shares([np.array([-1, 0, -1, 1])], 2).tolist() == [[0.5, 0.5]]
    assert memory_content.shares([np.array([-1, -1])], 2).tolist() == [[0, 0]]
