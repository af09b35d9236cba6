"""EWC: the Fisher, its normalisers, and the bound beyond which a task is refused."""

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import naive
from osiris.errors import UserError
from osiris.framework.representations import Representations
from osiris.framework.terms import Elastic
from osiris.framework.terms.ewc import normaliser
from osiris.randomness import generator
from osiris.training.engine import Engine
from osiris.training.schedule import Episode, batch_positions
from tiny import tiny_benchmark, tiny_engine, train


def elastic_of(engine: Engine) -> Elastic:
    (term,) = [term for _, term, _ in engine.model.later if isinstance(term, Elastic)]
    return term


def fisher(engine: Engine) -> list[Tensor]:
    count = len(list(engine.networks.encoder.parameters()))
    return [elastic_of(engine).get_buffer(f"fisher_{index}") for index in range(count)]


def views_of(engine: Engine, phase: Episode, indices: Tensor, purpose: str, step: int) -> Tensor:
    assert phase.images is not None
    images = phase.images.take(indices)
    key = generator(engine.config.seed, purpose, phase.task, step)
    return engine.two_views(images, key, slice(0, len(indices)), len(indices))


@pytest.mark.parametrize(("norm", "images"), [("gn", 20), ("bn", 20), ("gn", 18)])
def test_the_fisher_is_the_mean_of_squared_batch_gradients(norm: str, images: int) -> None:
    """One pass in full batches with its own random stream, normalised to unit trace; nothing else moves."""
    engine, (phase, *_) = tiny_engine("ewc", benchmark=tiny_benchmark(per_task=images), norm=norm)
    engine.begin(phase)
    for step in range(phase.steps):
        engine.step(phase, step)
    state = {name: value.clone() for name, value in engine.networks.state_dict().items()}
    expected, batches = naive_fisher(engine, phase)
    engine.networks.load_state_dict(state)  # the naive pass moved the running statistics
    engine.end(phase)
    assert batches == 2, "20 images in batches of 8, or 18, of which the last batch of an epoch has 10: two full ones"
    for ours, theirs in zip(fisher(engine), expected):
        torch.testing.assert_close(ours, theirs, rtol=2e-3, atol=1e-8)
    assert sum(float(value.sum()) for value in fisher(engine)) == pytest.approx(1, rel=1e-5)
    after = engine.networks.state_dict()
    assert all(torch.equal(value, after[name]) for name, value in state.items())
    assert all(parameter.grad is None for parameter in engine.networks.parameters())


def naive_fisher(engine: Engine, phase: Episode, most: int = 100) -> tuple[list[Tensor], int]:
    """Of the first `most` batches."""
    parameters, squares, batches = list(engine.networks.encoder.parameters()), [], 0
    for step in range(min(most, phase.count // phase.batch_size)):
        indices = batch_positions(phase, engine.config.seed, step, "fisher.order")[: phase.batch_size]
        views = views_of(engine, phase, indices, "fisher.augment", step)
        g = engine.networks.heads["g"]
        z = [[naive.unit(g(row)) for row in engine.networks.encoder(views[view])] for view in range(2)]
        gradients = torch.autograd.grad(naive.contrast(z), parameters)
        squares.append([gradient.square() for gradient in gradients])
        batches += 1
    mean = [torch.stack(parts).mean(0) for parts in zip(*squares)]
    trace = torch.stack([value.sum() for value in mean]).sum()
    return [value / trace for value in mean], batches


def test_fishers_add_up_and_anchors_follow() -> None:
    engine, stretch = tiny_engine("ewc")
    traces = []
    for count, _ in enumerate(stretch, start=1):
        train(engine, stretch[count - 1 : count])
        traces.append(sum(float(value.sum()) for value in fisher(engine)))
        for index, parameter in enumerate(engine.networks.encoder.parameters()):
            assert torch.equal(elastic_of(engine).get_buffer(f"anchor_{index}"), parameter)
    assert traces == pytest.approx([1, 2, 3], rel=1e-4), "gamma = 1: unit trace for each task"


@pytest.mark.parametrize("bad", [{1}, {0, 1}])
def test_a_batch_without_a_finite_gradient_is_left_out(bad: set[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two batches: F is that of the other one; without any, F stays as it was."""
    engine, (phase, *_) = tiny_engine("ewc")
    expected, _ = naive_fisher(engine, phase, most=1)
    one_pass = engine._one_pass

    def spoiled(*arguments: Any) -> Iterator[Representations]:
        for number, rep in enumerate(one_pass(*arguments)):
            rep.raw("X").mul_(math.inf if number in bad else 1)
            yield rep

    monkeypatch.setattr(engine, "_one_pass", spoiled)
    engine.end(phase)
    for ours, theirs in zip(fisher(engine), expected):
        torch.testing.assert_close(ours, theirs * (len(bad) == 1), rtol=2e-3, atol=1e-8)


@pytest.mark.parametrize(("kind", "expected"), [("sum", 10.0), ("max", 4.0), ("l2", 30**0.5), ("mean", 2.5)])
def test_normalisers(kind: str, expected: float) -> None:
    values = [torch.tensor([1.0, 2.0]), torch.tensor([[3.0], [4.0]])]
    assert normaliser(values, kind).item() == pytest.approx(expected)
    assert normaliser([torch.zeros(3)], kind) > 0, "a task without gradient divides by no zero"


@pytest.mark.parametrize(("excess", "refused"), [(0.99, False), (1.01, True)])
def test_the_stability_bound_of_ewc(excess: float, refused: bool) -> None:
    """lr * 2 * weight * max F > 2 (1 + momentum) is refused, before the task."""
    engine, stretch = tiny_engine("ewc", learning_rate=0.03)
    largest = 2 * 1.9 / (0.03 * 2 * 100)
    elastic_of(engine).get_buffer("fisher_0")[0, 0, 0, 0] = largest * excess
    engine.begin(stretch[0])  # the first task is ft: nothing to refuse
    if not refused:
        engine.begin(stretch[1])
        return
    with pytest.raises(UserError, match=r"ewc would diverge in task 2.*--past-weight") as told:
        engine.begin(stretch[1])
    weight = float(str(told.value).split("--past-weight ")[1].split()[0])
    at_last = largest * excess * 2  # in task 3, if the second Fisher is like the first
    assert 0.03 * 2 * weight * at_last == pytest.approx(0.5 * 2 * 1.9, rel=0.01), "half of the bound"


@pytest.mark.whole
def test_ewc_stays_finite_over_twenty_tasks_at_the_published_weight() -> None:
    benchmark = tiny_benchmark(tasks=20, per_task=12)
    engine, stretch = tiny_engine("ewc", benchmark=benchmark, learning_rate=0.03, epochs=2, batch_size=6)
    assert [weight for name, _, weight in engine.model.later if name == "past"] == [100]
    results = train(engine, stretch)
    assert len(results) == 20 * 2 * 2
    assert all(bool(result.finite) for result in results)
    worst = max(float(result.values["past"]) for result in results if "past" in result.values)
    assert worst < 1, f"the penalty stays small: {worst}"
