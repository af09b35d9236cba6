import numpy as np
import pytest
from scipy import stats

from osiris.evaluation.statistics import Sample, deviation, mark, mean, t_test, t_test_against

FIRST, SECOND = [50.1, 49.9, 50.4], [48.9, 49.3, 49.9, 49.1]


def sample(values: list[float], first_seed: int = 0) -> Sample:
    return Sample.of(dict(enumerate(values, first_seed)))


def test_mean_and_sample_deviation():
    assert mean([1.0, None, 2.0, float("nan"), 6.0]) == 3.0 and mean([None]) is None and mean([]) is None
    assert deviation([1.0, 2.0, 6.0]) == pytest.approx(np.std([1, 2, 6], ddof=1)) and deviation([4.0]) is None
    assert str(sample([-0.04, 0.0])) == "0.0 ± 0.0" and str(sample([50.06])) == "50.1"


def test_t_tests_agree_with_scipy():
    """Unpaired without common seeds (also from published summaries), paired over the seeds that both have."""
    unpaired = t_test(sample(FIRST), sample(SECOND, first_seed=10))
    summaries = t_test(sample(FIRST).unpaired(), sample(SECOND).unpaired())
    assert unpaired is not None and unpaired == summaries and not unpaired.paired and unpaired.seeds == 3
    assert unpaired.p == pytest.approx(stats.ttest_ind(FIRST, SECOND, equal_var=True)[1])
    paired = t_test(sample(FIRST), sample(SECOND))
    assert paired is not None and paired.paired and paired.seeds == 3
    assert paired.p == pytest.approx(stats.ttest_rel(FIRST, SECOND[:3])[1])
    margin = t_test(sample(FIRST), sample(SECOND), margin=0.5)
    assert margin is not None and margin.p == pytest.approx(stats.ttest_rel(FIRST, np.array(SECOND[:3]) + 0.5)[1])
    constant = t_test_against(sample(FIRST), 49.0)
    assert constant is not None and constant.p == pytest.approx(stats.ttest_1samp(FIRST, 49.0)[1])


def test_one_common_seed_is_no_pair():
    one, other = sample(FIRST), sample(SECOND, first_seed=2)
    test, difference = t_test(one, other), one - other
    assert test is not None and not test.paired
    assert test.p == pytest.approx(stats.ttest_ind(FIRST, SECOND, equal_var=True)[1])
    assert difference.mean == pytest.approx(np.mean(FIRST) - np.mean(SECOND)) and difference.by_seed is None


def test_the_deviation_of_a_difference():
    """Variances of independent samples add up; pairs have the deviation of their differences."""
    apart, paired = sample(FIRST) - sample(SECOND, first_seed=10), sample(FIRST) - sample(SECOND)
    variances = [
        sum((value - sum(values) / len(values)) ** 2 for value in values) / (len(values) - 1)
        for values in (FIRST, SECOND)
    ]
    assert apart.deviation == pytest.approx(sum(variances) ** 0.5) and apart.count == 3
    assert paired.deviation == pytest.approx(np.std([a - b for a, b in zip(FIRST, SECOND)], ddof=1))
    assert (sample([1.0]) - sample(SECOND, first_seed=10)).deviation is None


def test_the_papers_p_value_needs_the_population_deviation():
    """Osiris-D 53.0 +- 0.2 against Offline 52.5 +- 0.4, p = 0.185: within rounding if the deviations have ddof 0."""

    def p(first: float, second: float) -> float:
        factor = (3 / 2) ** 0.5  # from ddof 0 to ddof 1
        test = t_test(Sample(53.0, first * factor, 3), Sample(52.5, second * factor, 3))
        assert test is not None
        return test.p

    assert p(0.15, 0.35) < 0.185 < p(0.25, 0.45)


def test_t_test_edges():
    assert t_test(sample([1.0]), sample(FIRST)) is None and t_test_against(sample([1.0]), 0.0) is None
    equal = t_test(sample([2.0, 2.0]), sample([2.0, 2.0]))
    apart = t_test(sample([3.0, 3.0]), sample([2.0, 2.0]))
    assert equal is not None and equal.p == 1.0 and apart is not None and apart.p == 0.0 and apart.difference == 1.0


def test_marks_follow_the_printed_value_and_ties_share():
    assert mark([50.0, 52.31, 52.34, 51.0, None]) == [None, "best", "best", "second", None]
    assert mark([2.9, 1.4, 0.7, 1.44], higher_is_better=False) == [None, "second", "best", "second"]
    assert mark([-0.04, 0.04, -1.0]) == ["best", "best", "second"]
    assert mark([None, None]) == [None, None] and mark([3.0, None]) == [None, None], "nothing to be better than"
    assert mark([3.0, 4.0]) == [None, "best"], "the second of two is the last"
