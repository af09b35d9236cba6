"""Sums against a naive double loop; order, parts and subtraction."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from osiris.errors import UserError
from osiris.exact.moments import Moments


def rows(count: int, dimension: int = 5, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, dimension, generator=torch.Generator().manual_seed(seed)) + 2


def close(one: Moments, other: Moments) -> bool:
    return (
        one.count == other.count
        and torch.allclose(one.total, other.total, rtol=1e-12, atol=1e-10)
        and torch.allclose(one.outer, other.outer, rtol=1e-12, atol=1e-10)
    )


def test_against_a_naive_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("osiris.exact.moments.ROWS", 3)
    given, moments = rows(7), Moments.of(rows(7))
    mean = [sum(float(row[i]) for row in given) / 7 for i in range(5)]
    covariance = [
        [sum((float(row[i]) - mean[i]) * (float(row[j]) - mean[j]) for row in given) / 7 for j in range(5)]
        for i in range(5)
    ]
    assert moments.count == 7
    assert torch.allclose(moments.mean, torch.tensor(mean, dtype=torch.float64), rtol=1e-12)
    assert torch.allclose(moments.covariance, torch.tensor(covariance, dtype=torch.float64), rtol=1e-10, atol=1e-12)
    squares = [sum(float(row[i]) ** 2 for row in given) / 7 for i in range(5)]
    assert torch.allclose(moments.second, torch.tensor(squares, dtype=torch.float64), rtol=1e-12)


@given(cuts=st.lists(st.integers(0, 40), max_size=4), seed=st.integers(0, 99))
def test_any_division_and_order_gives_the_same_sums(cuts: list[int], seed: int) -> None:
    given = rows(40)
    order = torch.randperm(40, generator=torch.Generator().manual_seed(seed))
    parts = given[order].tensor_split(sorted(cuts))
    assert close(sum((Moments.of(part) for part in parts), Moments.zero(5)), Moments.of(given))


def test_what_was_added_can_be_taken_out() -> None:
    given = rows(30)
    assert close(Moments.of(given) - Moments.of(given[10:14]), Moments.of(torch.cat([given[:10], given[14:]])))
    with pytest.raises(UserError, match="30 rows cannot be taken out of sums over 4"):
        _ = Moments.of(given[:4]) - Moments.of(given)


def test_to_tensors_and_back() -> None:
    moments = Moments.of(rows(9))
    back = Moments.from_tensors(moments.tensors())
    assert back.count == 9
    assert torch.equal(back.total, moments.total)
    assert torch.equal(back.outer.triu(), moments.outer.triu())
    assert torch.equal(back.outer, back.outer.T)


@pytest.mark.parametrize(
    "change",
    [
        {"outer": torch.zeros(14, dtype=torch.float64)},
        {"total": torch.zeros(5)},
        {"total": torch.full((5,), torch.nan, dtype=torch.float64)},
        {"count": torch.tensor(-1)},
        {"count": torch.tensor(0)},
        {"outer": torch.full((15,), -1.0, dtype=torch.float64)},
        {"count": torch.zeros(2)},
    ],
)
def test_damaged_sums_are_refused(change: dict[str, torch.Tensor]) -> None:
    with pytest.raises(ValueError, match=r"."):
        Moments.from_tensors(Moments.of(rows(9)).tensors() | change)
    with pytest.raises(ValueError, match="no sums"):
        Moments.from_tensors({})
