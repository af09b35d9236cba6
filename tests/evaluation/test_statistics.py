from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from osiris.evaluation.statistics import deviation, mark, mean, paired_bootstrap, t_test, t_test_from_summaries

FIRST, SECOND = [50.1, 49.9, 50.4], [48.9, 49.3, 49.9, 49.1]


def test_mean_and_sample_deviation():
    assert mean([1.0, 2.0, 6.0]) == 3.0
    assert deviation([1.0, 2.0, 6.0]) == pytest.approx(np.std([1, 2, 6], ddof=1))
    assert deviation([4.0]) is None


def test_t_test_agrees_with_scipy_from_samples_and_from_summaries():
    statistic, p = stats.ttest_ind(FIRST, SECOND, equal_var=True)
    found = t_test(FIRST, SECOND)
    assert found is not None
    assert (found.t, found.p, found.degrees) == (pytest.approx(statistic), pytest.approx(p), 5)
    summaries = [(mean(one), deviation(one) or 0.0, len(one)) for one in (FIRST, SECOND)]
    assert t_test_from_summaries(summaries[0], summaries[1]).p == pytest.approx(p)


def test_the_papers_p_value_needs_the_population_deviation():
    """Osiris-D 53.0 +- 0.2 against Offline 52.5 +- 0.4, p = 0.185: within rounding if the deviations have ddof 0."""

    def p(first: float, second: float) -> float:
        factor = (3 / 2) ** 0.5  # from ddof 0 to ddof 1
        return t_test_from_summaries((53.0, first * factor, 3), (52.5, second * factor, 3)).p

    assert p(0.15, 0.35) < 0.185 < p(0.25, 0.45)


def test_t_test_edges():
    assert t_test([1.0], FIRST) is None
    equal = t_test([2.0, 2.0], [2.0, 2.0])
    apart = t_test([3.0, 3.0], [2.0, 2.0])
    assert equal is not None and equal.p == 1.0 and apart is not None and apart.p == 0.0 and apart.t == np.inf


def made_hits(gain: float, seeds: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    difficulty = random.random(2000)
    noise = 0.1 * random.normal(size=(2 * seeds, 2000))
    first = difficulty + noise[:seeds] < 0.5 + gain
    return first, difficulty + noise[seeds:] < 0.5, np.arange(2000) % 4


def test_bootstrap_finds_a_difference_and_no_difference():
    clear = paired_bootstrap(*made_hits(0.05, 3, 0))
    assert clear.excludes_zero and clear.low < clear.difference < clear.high
    first, second, _ = made_hits(0.05, 3, 0)
    assert clear.difference == pytest.approx(100 * (first.mean() - second.mean()))
    assert not paired_bootstrap(*made_hits(0.0, 3, 1)).excludes_zero


def test_bootstrap_interval_is_the_normal_one_and_pairing_narrows_it():
    first, second, task = made_hits(0.05, 1, 2)
    found = paired_bootstrap(first, second, task)
    width = found.high - found.low
    paired = 2 * 1.96 * 100 * (first[0].astype(float) - second[0]).std() / 2000**0.5
    unpaired = 2 * 1.96 * 100 * (first[0].var() / 2000 + second[0].var() / 2000) ** 0.5
    assert width == pytest.approx(paired, rel=0.08) and width < 0.7 * unpaired


def test_bootstrap_is_a_function_of_its_seed():
    hits = made_hits(0.02, 2, 3)
    assert paired_bootstrap(*hits, seed=1) == paired_bootstrap(*hits, seed=1) != paired_bootstrap(*hits, seed=2)


def test_bootstrap_weighs_tasks_equally_and_allows_different_numbers_of_seeds():
    task = np.array([0] * 90 + [1] * 10)
    first, second = np.zeros((1, 100), bool), np.zeros((3, 100), bool)
    first[:, 90:] = True  # right on the small task alone: half of A
    found = paired_bootstrap(first, second, task)
    assert found.difference == found.low == found.high == pytest.approx(50.0)


def test_marks_follow_the_printed_value_and_ties_share():
    assert mark([50.0, 52.31, 52.34, 51.0, None]) == [None, "best", "best", "second", None]
    assert mark([2.9, 1.4, 0.7, 1.44], higher_is_better=False) == [None, "second", "best", "second"]
    assert mark([-0.04, 0.04, -1.0]) == ["best", "best", "second"]
    assert mark([None, None]) == [None, None] and mark([3.0]) == ["best"]
