import numpy as np
import pytest
from scipy import stats

from osiris.evaluation.differences import Difference, Hits, Varying, difference
from osiris.evaluation.statistics import Sample


def sample(values, first_seed: int = 0) -> Sample:
    return Sample.of(dict(enumerate(values, first_seed)))


def made(
    seeds: int, *, gain: float = 0.0, of_seeds: float = 0.0, of_images: float = 0.0, seed: int = 0, images: int = 2000
) -> tuple[Hits, Hits]:
    """Hits of two methods: a gain in all, and effects of seeds and of images that only the first method has."""
    random = np.random.default_rng(seed)
    common = random.normal(size=images)
    own = of_seeds * random.normal(size=(seeds, 1)) + of_images * random.normal(size=images)
    noise = random.normal(size=(2, seeds, images))
    right = common + gain + own + 0.5 * noise[0] > 0, common + 0.5 * noise[1] > 0
    first, second = (Hits(tuple(range(seeds)), one, np.arange(images) % 4) for one in right)
    return first, second


def samples(hits: tuple[Hits, Hits]) -> list[Sample]:
    return [sample([100 * row.mean() for row in one.right]) for one in hits]


def both_of(hits: tuple[Hits, Hits], varying: Varying | None = None) -> Difference:
    one, other = samples(hits)
    found = difference(one, other, varying, hits)
    assert found is not None
    return found


def test_over_seeds_it_is_the_t_test_of_scipy():
    first, second = [50.1, 49.9, 50.4], [48.9, 49.3, 49.9]
    paired, apart = difference(sample(first), sample(second)), difference(sample(first), sample(second, 10))
    assert paired is not None and apart is not None and paired.paired and not apart.paired
    theirs = stats.ttest_rel(first, second)
    assert (paired.p, paired.low, paired.high) == pytest.approx((theirs.pvalue, *theirs.confidence_interval(0.95)))  # pyright: ignore
    theirs = stats.ttest_ind(first, second)
    assert (apart.p, apart.low, apart.high) == pytest.approx((theirs.pvalue, *theirs.confidence_interval(0.95)))  # pyright: ignore
    assert "the same seeds" in paired.words and "no two seeds are shared" in apart.words


@pytest.mark.parametrize("varying", ["seeds", "images", "both"])
@pytest.mark.parametrize("gain", [0.0, 0.02, 0.1])
def test_interval_and_p_never_contradict_each_other(varying, gain):
    for seed in range(10):
        found = both_of(made(3, gain=gain, of_seeds=0.1, of_images=0.3, seed=seed), varying)
        assert (found.p < 0.05) == (found.low > 0 or found.high < 0) and found.varying == varying


def test_over_images_the_interval_is_the_normal_one_and_pairing_narrows_it():
    first, second = made(1, gain=0.1)
    found = both_of((first, second))
    assert found.varying == "images", "one seed says nothing about seeds"
    gain = first.right[0].astype(float) - second.right[0]
    by_task = [gain[first.task == number] for number in range(4)]
    error = 100 * np.sqrt(sum(part.var(ddof=1) / len(part) for part in by_task)) / 4
    assert (found.low, found.high) == pytest.approx(
        (100 * gain.mean() - 1.96 * error, 100 * gain.mean() + 1.96 * error), abs=1e-3
    )
    apart = np.sqrt(first.right[0].var() / 2000 + second.right[0].var() / 2000)
    assert found.high - found.low < 0.8 * 2 * 1.96 * 100 * apart


def test_tasks_weigh_equally():
    task = np.array([0] * 90 + [1] * 10)
    first, second = np.zeros((1, 100), bool), np.zeros((1, 100), bool)
    first[:, 90:] = True  # right on the small task alone: half of A
    found = both_of((Hits((0,), first, task), Hits((0,), second, task)))
    assert found.value == found.low == found.high == pytest.approx(50.0)


@pytest.mark.parametrize("effects", [(0.05, 1.0, 3), (0.02, 0.0, 5), (0.2, 0.3, 3)])
def test_the_variance_over_both_is_that_of_the_experiments(effects: tuple[float, float, int]):
    """Where seeds and images weigh alike, where single pairs of both weigh most, and where seeds do."""
    of_seeds, of_images, seeds = effects
    found = [
        both_of(made(seeds, of_seeds=of_seeds, of_images=of_images, seed=seed, images=400), "both")
        for seed in range(400)
    ]
    true, stated = np.var([one.value for one in found]), np.mean([one.error**2 for one in found])
    assert 0.75 < stated / true < (1.6 if of_images == 0 else 1.35)  # never below one of the two parts


@pytest.mark.parametrize("shared", [True, False])
def test_the_interval_of_both_covers_the_truth(shared: bool):
    """300 experiments of three seeds: 95% of the intervals hold the expected difference, within what 300 can say."""
    covered = {"both": 0, "images": 0}
    for seed in range(300):
        first, second = made(3, of_seeds=0.15, of_images=0.5, seed=seed, images=400)
        if not shared:
            second = Hits((7, 8, 9), second.right, second.task)
        for varying in covered:
            found = difference(sample([0.0] * 3), sample([0.0] * 3), varying, (first, second))  # pyright: ignore
            assert found is not None and found.paired == shared
            covered[varying] += found.low <= 0 <= found.high  # half of both are right in expectation
    assert covered["both"] > 0.91 * 300 > covered["images"], covered


def test_what_the_runs_do_not_say():
    hits = made(1)
    one, other = samples(hits)
    assert difference(one, other) is None and difference(one, other, "seeds", hits) is None  # pyright: ignore
    assert difference(one, other, "both", hits) is None  # pyright: ignore
    of_others = Hits((0,), hits[1].right[:, :100], hits[1].task[:100])
    assert difference(one, other, "images", (hits[0], of_others)) is None
