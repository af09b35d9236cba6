"""The readout against its definition in float64, and what each part of the rule is for."""

import pytest
import torch

from osiris.exact import readout
from osiris.exact.moments import Moments
from osiris.exact.readout import Readout, effective_directions, fit, layer_scales, own_share, with_drawings

SIZES = (3, 2, 4)


def features(count: int, seed: int = 0, stretch: float = 1.0) -> torch.Tensor:
    """Joined features of three layers of different scale; one direction has most of the variance if stretched."""
    rows = torch.randn(count, 9, generator=torch.Generator().manual_seed(seed))
    mixed = rows @ torch.randn(9, 9, generator=torch.Generator().manual_seed(7))
    mixed[:, 4] += stretch * rows[:, 0]
    return mixed * torch.tensor([10.0] * 3 + [0.1] * 2 + [1.0] * 4) + 0.5


DRAWINGS = Moments.of(features(200, 1))


def naive_similarities(rows: torch.Tensor, drawn: torch.Tensor, queries: torch.Tensor, share: float) -> torch.Tensor:
    """(x - m)^T W (x' - m), as the docstring of the module has it, from weighted rows."""
    both = torch.cat([rows, drawn]).double()
    weight = torch.cat([torch.ones(len(rows)), torch.full((len(drawn),), readout.DRAWINGS / len(drawn))]).double()
    weight /= weight.sum()
    scales, at = [], 0
    for size in SIZES:
        mean_square = (weight * both[:, at : at + size].square().sum(1)).sum()
        scales += [1 / mean_square.sqrt()] * size
        at += size
    scale = torch.stack(scales)
    scaled = both * scale
    mean = (weight[:, None] * scaled).sum(0)
    covariance = (scaled - mean).T @ (weight[:, None] * (scaled - mean))
    values, vectors = torch.linalg.eigh(covariance)
    inverse = vectors @ torch.diag(1 / (values + readout.RIDGE * values.max())) @ vectors.T
    own = torch.zeros(9, 9, dtype=torch.float64)
    own[5:, 5:] = torch.eye(4)
    parts = (1 - share) * inverse / (inverse @ covariance).trace(), share * own / (own @ covariance).trace()
    centred = queries.double() * scale - mean
    return centred @ sum(parts) @ centred.T


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_similarities_are_those_of_the_definition(share: float) -> None:
    rows, drawn, queries = features(50), features(200, 1), features(20, 2)
    fitted = fit(Moments.of(rows), Moments.of(drawn), SIZES, 9, share)
    mapped = (queries.double() - fitted.centre) @ fitted.projection.double()
    expected = naive_similarities(rows, drawn, queries, share)
    assert torch.allclose(mapped @ mapped.T, expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))


def test_order_and_parts_do_not_matter_and_the_map_changes_smoothly() -> None:
    rows = features(60)
    whole = fit(Moments.of(rows), DRAWINGS, SIZES, 9)
    parts = Moments.of(rows[40:]) + Moments.of(rows[:10]) + Moments.of(rows[10:40])
    again = fit(parts, DRAWINGS, SIZES, 9)
    assert torch.allclose(whole.projection, again.projection, rtol=1e-5, atol=1e-6)
    one_more = fit(Moments.of(features(61)), DRAWINGS, SIZES, 9)
    assert float((whole.projection - one_more.projection).norm() / whole.projection.norm()) < 0.1


def test_fewer_numbers_keep_most_of_the_similarity() -> None:
    rows, queries = features(500), features(50, 2)
    full, small = (fit(Moments.of(rows), DRAWINGS, SIZES, count, 0.0) for count in (9, 7))
    assert small.projection.shape == (9, 7)
    exact, near = ((queries - one.centre) @ one.projection for one in (full, small))
    lost = (exact @ exact.T - near @ near.T).norm() / (exact @ exact.T).norm()
    assert 0 < lost < 0.6


def test_the_share_depends_on_how_many_directions_the_images_have() -> None:
    """Images with one large direction are whitened alone; images without one keep a share of the network's own."""
    narrow, broad = Moments.of(features(3000, 3)), Moments.of(features(3000, 3, stretch=500.0))
    for moments in (narrow, broad):
        scale = layer_scales(with_drawings(moments, DRAWINGS), SIZES)
        ratio = effective_directions(moments, scale) / effective_directions(DRAWINGS, scale)
        assert own_share(moments, DRAWINGS, scale) == pytest.approx(readout.SHARE * min(max(ratio - 1, 0), 1))
    assert own_share(Moments.of(features(1)), DRAWINGS, torch.ones(9)) == readout.SHARE  # nothing is known


def test_few_images_do_not_look_like_few_directions() -> None:
    rows = torch.randn(4000, 20, generator=torch.Generator().manual_seed(0))
    for count in (60, 400, 4000):
        assert effective_directions(Moments.of(rows[:count]), torch.ones(20)) == pytest.approx(20, rel=0.25)


@pytest.mark.parametrize("dimension", [9, 6, 3])
def test_before_it_is_set_it_gives_what_the_network_returns(dimension: int) -> None:
    given, untouched = features(5), Readout(SIZES, dimension)(features(5))
    assert untouched.shape == (5, dimension)
    kept = min(4, dimension)
    assert torch.equal(untouched[untouched != 0].view(5, -1), given[:, 5 : 5 + kept])


def test_layers_that_are_always_zero_do_no_harm() -> None:
    rows = features(30)
    rows[:, 3:5] = 0
    fitted = fit(Moments.of(rows), Moments.of(rows), SIZES, 9)
    assert bool(fitted.projection.isfinite().all())
