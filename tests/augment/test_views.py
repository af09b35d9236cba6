"""What is drawn, how it splits over processes, and what comes out. The operations themselves: test_operations.py."""

import itertools
import math
import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from osiris.augment.views import VIEW_1, VIEW_2, VIEWS, TwoViews, ViewConfig, apply, draw, normalise
from osiris.randomness import generator

MEAN, STD = (0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)
MANY = 20_000


def batch(count: int, height: int = 32, width: int = 32) -> Tensor:
    return torch.randint(
        0, 256, (count, 3, height, width), dtype=torch.uint8, generator=torch.Generator().manual_seed(count)
    )


def near_rate(happened: Tensor, probability: float) -> bool:
    """Within five standard deviations of a binomial."""
    error = 5 * math.sqrt(probability * (1 - probability) / len(happened))
    return abs(happened.float().mean().item() - probability) <= error


def test_defaults_are_the_papers() -> None:
    assert ViewConfig() == VIEW_1
    assert (VIEW_1.blur, VIEW_1.solarise, VIEW_2.blur, VIEW_2.solarise) == (1.0, 0.0, 0.1, 0.2)
    assert (VIEW_1.brightness, VIEW_1.contrast, VIEW_1.saturation, VIEW_1.hue) == (0.4, 0.4, 0.2, 0.1)
    assert (VIEW_1.crop_scale, VIEW_1.crop_ratio, VIEW_1.blur_sigma) == ((0.08, 1.0), (3 / 4, 4 / 3), (0.1, 2.0))
    assert (VIEW_1.flip, VIEW_1.jitter_probability, VIEW_1.grey) == (0.5, 0.8, 0.2)


def test_rates_and_ranges() -> None:
    drawn = draw(MANY, 32, 32, VIEW_2, generator(0, "augment.x"))
    assert drawn.factors is not None and drawn.turn is not None and drawn.grey is not None
    assert drawn.sigma is not None and drawn.threshold is not None
    assert near_rate(drawn.flip, 0.5) and near_rate(drawn.grey, 0.2)
    assert near_rate(drawn.sigma > 0, 0.1) and near_rate(drawn.threshold == 0.5, 0.2)
    assert set(drawn.threshold.tolist()) == {0.5, 2.0}
    jittered = (drawn.factors != torch.tensor([1.0, 1.0, 1.0, 0.0])).any(1)
    assert near_rate(jittered, 0.8)
    for column, low, high in ((0, 0.6, 1.4), (1, 0.6, 1.4), (2, 0.8, 1.2), (3, -0.1, 0.1)):
        values = drawn.factors[jittered, column].numpy()
        assert stats.kstest(values, stats.uniform(low, high - low).cdf).pvalue > 1e-4
    blurred = drawn.sigma[drawn.sigma > 0].numpy()
    assert stats.kstest(blurred, stats.uniform(0.1, 1.9).cdf).pvalue > 1e-4
    assert drawn.blur_radius >= 4 * 2.0, "the widest Gaussian is not cut where it still matters"


def test_every_order_is_equally_likely_and_all_choices_are_independent() -> None:
    drawn = draw(MANY, 32, 32, VIEW_2, generator(1, "augment.x"))
    assert drawn.turn is not None and drawn.factors is not None and drawn.grey is not None
    assert drawn.sigma is not None and drawn.threshold is not None
    assert torch.equal(drawn.turn.sort(1).values, torch.arange(4).expand(MANY, 4))
    counts = np.unique(drawn.turn.numpy(), axis=0, return_counts=True)[1]
    assert len(counts) == 24 and stats.chisquare(counts).pvalue > 1e-4

    jittered = (drawn.factors[:, 3] != 0).float()
    single = torch.stack([drawn.flip, jittered, drawn.grey, (drawn.sigma > 0).float(), drawn.threshold], 1)
    correlation = np.corrcoef(torch.cat([drawn.box, drawn.turn, drawn.factors, single], 1).numpy().T)
    # The sides of a crop do go together and leave its corner more or less room; one turn excludes another.
    correlation[:4, :4] = correlation[4:8, 4:8] = np.eye(4)
    assert np.abs(correlation - np.eye(len(correlation))).max() < 5 / math.sqrt(MANY)


def naive_crop(height: int, width: int, view: ViewConfig, source: random.Random) -> tuple[int, int, int, int]:
    """One crop, try by try."""
    for _ in range(10):
        area = height * width * source.uniform(*view.crop_scale)
        ratio = math.exp(source.uniform(math.log(view.crop_ratio[0]), math.log(view.crop_ratio[1])))
        wide, tall = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < wide <= width and 0 < tall <= height:
            return source.randint(0, height - tall), source.randint(0, width - wide), tall, wide
    wide, tall = width, height
    if width / height < view.crop_ratio[0]:
        tall = round(wide / view.crop_ratio[0])
    elif width / height > view.crop_ratio[1]:
        wide = round(tall * view.crop_ratio[1])
    return (height - tall) // 2, (width - wide) // 2, tall, wide


@pytest.mark.parametrize(
    ("height", "width", "ratio"), [(32, 32, (3 / 4, 4 / 3)), (64, 20, (3 / 4, 4 / 3)), (30, 100, (0.5, 1.0))]
)
def test_crops_are_distributed_as_by_the_naive_loop(height: int, width: int, ratio: tuple[float, float]) -> None:
    view = ViewConfig(crop_ratio=ratio)
    boxes = draw(MANY, height, width, view, generator(2, "augment.x")).box.numpy()
    source = random.Random(3)
    naive = np.array([naive_crop(height, width, view, source) for _ in range(MANY)])
    assert (boxes[:, :2] >= 0).all() and (boxes[:, 2:] >= 1).all()
    assert (boxes[:, 0] + boxes[:, 2] <= height).all() and (boxes[:, 1] + boxes[:, 3] <= width).all()

    def features(box: np.ndarray) -> np.ndarray:
        top, left, tall, wide = box.T.astype(float)
        return np.stack([tall * wide, wide / tall, top, left, top + tall, left + wide])

    def likeness(one: np.ndarray, other: np.ndarray) -> float:
        """The p-value of the hypothesis that both come from one distribution."""
        return stats.kstest(one, other).pvalue

    assert all(likeness(ours, theirs) > 1e-4 for ours, theirs in zip(features(boxes), features(naive)))
    milder = draw(MANY, height, width, replace(view, crop_scale=(0.16, 1)), generator(2, "augment.x")).box.numpy()
    assert likeness(features(milder)[0], features(naive)[0]) < 1e-4


@pytest.mark.parametrize(("height", "width", "box"), [(100, 10, (43, 0, 13, 10)), (10, 100, (0, 43, 10, 13))])
def test_the_largest_central_crop_when_no_try_fits(height: int, width: int, box: tuple[int, ...]) -> None:
    drawn = draw(50, height, width, ViewConfig(crop_scale=(0.8, 1.0)), generator(0, "augment.x"))
    assert torch.equal(drawn.box, torch.tensor(box).float().expand(50, 4))


def test_an_image_gets_the_same_views_in_any_split_of_the_global_batch() -> None:
    images, views = batch(150), TwoViews(MEAN, STD)
    whole = views(images, generator(0, "augment.x", 1, 2))
    for bounds in ((0, 75, 150), (0, 1, 64, 150), (0, 149, 150)):
        parts = [
            views(images[start:stop], generator(0, "augment.x", 1, 2), rows=slice(start, stop), count=150)
            for start, stop in itertools.pairwise(bounds)
        ]
        assert torch.equal(torch.cat(parts, 1), whole)
    assert not torch.equal(views(images[75:], generator(0, "augment.x", 1, 2)), whole[:, 75:])


def test_views_are_drawn_one_after_the_other_and_normalised() -> None:
    images, source = batch(9), generator(4, "augment.y")
    expected = torch.stack([apply(images, draw(9, 32, 32, view, source)) for view in (VIEW_1, VIEW_2)])
    mean, std = torch.tensor(MEAN).view(3, 1, 1), torch.tensor(STD).view(3, 1, 1)
    views = TwoViews(MEAN, STD)(images, generator(4, "augment.y"))
    torch.testing.assert_close(views, (expected - mean) / std)
    assert views.dtype == torch.float32 and views.is_contiguous()
    assert (views[0] - views[1]).abs().mean() > 0.1
    torch.testing.assert_close(normalise(images, MEAN, STD), (images / 255 - mean) / std)


@pytest.mark.parametrize("kind", VIEWS)
@pytest.mark.parametrize("size", [None, 24])
def test_batches_made_together_are_those_made_alone(kind: str, size: int | None) -> None:
    two_views, batches = TwoViews((0.5, 0.4, 0.3), (0.2, 0.3, 0.4), VIEWS[kind], size), [batch(9), batch(4)]

    def alone(images: Tensor, key: torch.Generator) -> Tensor:
        drawn = [draw(len(images), 32, 32, view, key) for view in VIEWS[kind]]
        return torch.stack([apply(images, one, size, two_views.mean, two_views.std) for one in drawn])

    keys = [generator(0, "x"), generator(0, "y")]
    together = two_views.apply(batches, [two_views.draw(images, key) for images, key in zip(batches, keys)])
    for images, views, name in zip(batches, together, "xy"):
        torch.testing.assert_close(views, alone(images, generator(0, name)))


def test_the_global_generator_and_the_images_are_left_alone() -> None:
    images = batch(5)
    state, before = torch.get_rng_state(), images.clone()
    one, other = (TwoViews(MEAN, STD)(images, generator(0, "augment.x")) for _ in range(2))
    assert torch.equal(one, other) and not torch.equal(one, TwoViews(MEAN, STD)(images, generator(1, "augment.x")))
    assert torch.equal(torch.get_rng_state(), state) and torch.equal(images, before)


def test_the_layout_in_memory_does_not_matter() -> None:
    images = batch(4, 20, 30)
    rows_of_pixels = images.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
    views = TwoViews(MEAN, STD)(rows_of_pixels, generator(0, "augment.x"))
    assert views.is_contiguous() and torch.equal(views, TwoViews(MEAN, STD)(images, generator(0, "augment.x")))


probabilities = st.sampled_from([0.0, 0.5, 1.0])


@settings(max_examples=60, deadline=None)
@given(
    count=st.integers(0, 5),
    height=st.integers(1, 40),
    width=st.integers(1, 40),
    size=st.none() | st.integers(1, 40),
    seed=st.integers(0, 1000),
    chances=st.tuples(probabilities, probabilities, probabilities, probabilities, probabilities),
    strength=st.floats(0, 2),
    hue=st.floats(0, 0.5),
)
def test_any_shape_gives_values_between_0_and_1(count, height, width, size, seed, chances, strength, hue) -> None:
    flip, jitter, grey, blur, solarise = chances
    strengths = {"brightness": strength, "contrast": strength, "saturation": strength, "hue": hue}
    view = ViewConfig(flip=flip, jitter_probability=jitter, grey=grey, blur=blur, solarise=solarise, **strengths)
    drawn = draw(count, height, width, view, generator(seed, "augment.x"))
    assert len(drawn) == count
    views = apply(batch(count, height, width), drawn, size)
    assert views.shape == (count, 3, size or height, size or width) and views.dtype == torch.float32
    assert bool(((views >= 0) & (views <= 1)).all())
    twice = TwoViews(MEAN, STD, (view, VIEW_2), size)(batch(count, height, width), generator(seed, "augment.x"))
    assert twice.shape == (2, *views.shape) and bool(twice.isfinite().all())
