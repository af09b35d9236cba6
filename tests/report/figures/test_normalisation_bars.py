import pytest

from osiris.report.figures.normalisation import Bar, bars


def test_methods_with_both_norms_become_pairs_of_bars():
    runs = [("ft", "bn", 30.0), ("ft", "bn", 34.0), ("ft", "gn", 45.0), ("lump", "gn", 47.0)]
    found = bars(runs)
    assert [(bar.method, bar.norm, bar.mean, bar.seeds) for bar in found] == [("ft", "bn", 32, 2), ("ft", "gn", 45, 1)]
    assert found[0].deviation == pytest.approx(8**0.5) and found[1].deviation is None


def test_the_order_can_be_given():
    runs = [(name, norm, 1.0) for name in ("a", "b") for norm in ("gn", "bn")]
    assert [bar.method for bar in bars(runs, ["b", "a", "c"])] == ["b", "b", "a", "a"]
    assert bars([("ft", "bn", 1.0)]) == []
    assert isinstance(bars(runs)[0], Bar)
