import numpy as np
import pytest
from scipy.stats import norm

from osiris.report.figures import overlap


def histogram(mean: float, deviation: float, count: int, bins: int = 200) -> np.ndarray:
    edges = np.linspace(-1, 1, bins + 1)
    return np.round(count * np.diff(norm.cdf(edges, mean, deviation))).astype(np.int64)


def test_the_overlap_of_two_gaussians_is_known_in_closed_form():
    """Equal deviations s, means d apart: 2 Phi(-d / 2s), s widened by the kernel."""
    same, different = histogram(0.35, 0.12, 10**6), histogram(0.05, 0.12, 10**6)
    made = overlap.similarity_overlap(np.stack([same, different]))
    assert made is not None
    width = overlap.scott_bandwidth(overlap.bin_centres(200), same.astype(float))
    widened = np.hypot(0.12, width)
    assert made[3] == pytest.approx(2 * norm.cdf(-0.30 / (2 * widened)), abs=2e-3)
    assert made[3] == pytest.approx(2 * norm.cdf(-0.30 / 0.24), abs=0.01), "the kernel itself changes little"


def test_equal_distributions_overlap_entirely_and_distant_ones_not_at_all():
    one = histogram(0.2, 0.1, 5000)
    equal = overlap.similarity_overlap(np.stack([one, one]))
    apart = overlap.similarity_overlap(np.stack([histogram(0.8, 0.02, 5000), histogram(-0.8, 0.02, 5000)]))
    assert equal is not None and equal[3] == pytest.approx(1.0, abs=1e-3)
    assert apart is not None and apart[3] < 1e-6


def test_numbers_of_pairs_do_not_matter():
    few = overlap.similarity_overlap(np.stack([histogram(0.4, 0.1, 10**5), histogram(0.1, 0.1, 10**5)]))
    many = overlap.similarity_overlap(np.stack([histogram(0.4, 0.1, 10**5), histogram(0.1, 0.1, 10**7)]))
    assert few is not None and many is not None and few[3] == pytest.approx(many[3], abs=0.02)


def test_a_density_integrates_to_one_and_scotts_rule_is_scotts_rule():
    counts = histogram(0.0, 0.25, 10**5).astype(float)
    centres, grid = overlap.bin_centres(200), np.linspace(-2, 2, 4001)
    density = overlap.kernel_density(centres, counts, grid)
    assert overlap.overlap(density, density, grid) == pytest.approx(1.0, abs=1e-6)
    assert overlap.scott_bandwidth(centres, counts) == pytest.approx(0.25 * counts.sum() ** -0.2, rel=0.01)


def test_without_pairs_there_is_no_overlap():
    assert overlap.similarity_overlap(np.stack([np.zeros(200, int), histogram(0, 0.1, 100)])) is None
