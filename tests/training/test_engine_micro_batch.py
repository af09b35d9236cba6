"""--micro-batch: the same gradients from smaller pieces."""

import pytest

import process_jobs
from process_jobs import CASES
from quick import quick

SIZES = [*((name, 5) for name in CASES if name != "predictor-bn"), ("osiris-d", 26), ("pocon", 1)]
DISTINCT = ("osiris-d", "ewc", "lump", "cla-r", "mixed-match", "er-byol", "cassle-barlow", "cassle-swav", "er-mocov2+")


@pytest.mark.whole
@pytest.mark.parametrize(
    ("name", "size"), quick({*((name, 5) for name in DISTINCT), ("osiris-d", 26), ("pocon", 1)}, SIZES)
)
def test_gradients_are_those_of_the_whole_batch(name: str, size: int) -> None:
    """In float64, at every step, of every parameter: pieces that do not divide the batch, and just one view's worth."""
    whole = process_jobs.gradients(CASES[name], "gn")
    pieces = process_jobs.gradients(CASES[name], "gn", micro_batch=size)
    for one, other in zip(whole, pieces, strict=True):
        process_jobs.assert_same_gradients(one, other)


def test_pieces_are_encoded_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """No encoder sees more than the given number of images, in the forward pass or when it is computed again."""
    engine, (phase, *_) = process_jobs.build(CASES["osiris-d"], micro_batch=5)
    seen: list[int] = []
    engine.networks.encoder.register_forward_pre_hook(lambda _, inputs: seen.append(len(inputs[0])))
    engine.step(phase, 0)
    assert max(seen) == 5 and sum(seen) == 2 * 2 * 13  # two views, forward and again for the backward pass
