"""Numbers behind the figures, on hand-made arrays: similarity of classes and its overlap."""

import numpy as np
import pytest
from scipy.stats import norm

from osiris.reporting.figures import representation
from osiris.reporting.figures.representation import kernel_density, scott_bandwidth, similarity_overlap

CENTRES = np.linspace(-0.995, 0.995, 200)
SIMILARITY = np.array([[0.9, 0.1, 0.2, 0.3], [0.1, 0.8, 0.4, 0.5], [0.2, 0.4, 0.7, 0.6], [0.3, 0.5, 0.6, 0.6]])
TASKS = [[2, 0], [3], [1]]


def histogram(mean: float, deviation: float, count: int, bins: int = 200) -> np.ndarray:
    edges = np.linspace(-1, 1, bins + 1)
    return np.round(count * np.diff(norm.cdf(edges, mean, deviation))).astype(np.int64)


def overlap(same: np.ndarray, different: np.ndarray) -> float:
    densities = similarity_overlap(np.stack([same, different]))
    assert densities is not None
    return densities.overlap


def test_the_overlap_of_two_gaussians_is_known_in_closed_form():
    """Equal deviations s, means d apart: 2 Phi(-d / 2s), s widened by the kernel."""
    same, different = histogram(0.35, 0.12, 10**6), histogram(0.05, 0.12, 10**6)
    widened = np.hypot(0.12, scott_bandwidth(CENTRES, same.astype(float)))
    assert overlap(same, different) == pytest.approx(2 * norm.cdf(-0.30 / (2 * widened)), abs=2e-3)


def test_equal_distributions_overlap_entirely_and_distant_ones_not_at_all():
    one = histogram(0.2, 0.1, 5000)
    assert overlap(one, one) == pytest.approx(1.0, abs=1e-3)
    assert overlap(histogram(0.8, 0.02, 5000), histogram(-0.8, 0.02, 5000)) < 1e-6
    assert similarity_overlap(np.stack([np.zeros(200, int), one])) is None, "no pairs, no overlap"


def test_numbers_of_pairs_do_not_matter():
    few = overlap(histogram(0.4, 0.1, 10**5), histogram(0.1, 0.1, 10**5))
    assert few == pytest.approx(overlap(histogram(0.4, 0.1, 10**5), histogram(0.1, 0.1, 10**7)), abs=0.02)


def test_a_density_integrates_to_one_and_scotts_rule_is_scotts_rule():
    counts, grid = histogram(0.0, 0.25, 10**5).astype(float), np.linspace(-2, 2, 4001)
    assert np.trapezoid(kernel_density(CENTRES, counts, grid), grid) == pytest.approx(1.0, abs=1e-6)
    assert scott_bandwidth(CENTRES, counts) == pytest.approx(0.25 * counts.sum() ** -0.2, rel=0.01)


def test_classes_come_in_the_order_of_the_tasks():
    assert representation.class_order(TASKS) == [2, 0, 3, 1]
    assert representation.class_order([[0, 1], [1, 2]]) == [0, 1, 2], "a class that comes back counts once"
    label, task = np.array([3, 0, 0, 2, 1]), np.array([1, 0, 0, 0, 2])
    assert representation.tasks_of(label, task) == [[0, 2], [3], [1]]


def test_similarity_between_classes_leaves_the_diagonal_out():
    assert representation.between_classes(SIMILARITY, [0, 1, 2]) == pytest.approx((0.1 + 0.2 + 0.4) / 3)
    assert np.isnan(representation.between_classes(SIMILARITY, [0]))
    means = representation.by_environment(SIMILARITY, TASKS, [("one", [0, 1]), ("two", [2])])
    assert means["one"] == pytest.approx((0.2 + 0.6 + 0.3) / 3) and np.isnan(means["two"])


def test_similarity_between_tasks_leaves_out_classes_with_themselves() -> None:
    similarity = np.array([[1.0, 0.2, 0.4], [0.2, 1.0, 0.6], [0.4, 0.6, np.nan]])
    blocks = representation.between_tasks(similarity, [[0, 1], [2]])
    assert blocks[0, 0] == 0.2 and blocks[0, 1] == blocks[1, 0] == 0.5 and np.isnan(blocks[1, 1])
