"""What all objectives share: moving averages, queues, and the spread that shows a collapse."""

import math

import pytest
import torch

import naive
from osiris.framework.objectives.base import WithQueue, enqueue
from osiris.framework.terms import TaskContext
from osiris.runs.state import digest
from tiny import OBJECTIVES, composed, situation, tiny_engine, train

AVERAGES = [("ft", "byol", 1), ("ft", "mocov2+(queue_size=5)", 0.999), ("ft", "mocov3", 1)]
"""With the share of the old average at the end of a task."""


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_the_first_task_is_ft_with_the_same_objective(objective: str) -> None:
    states = []
    for method in ("ft", "osiris-d", "pocon"):
        engine, stretch = tiny_engine(composed(method, objective), epochs=1)
        results = train(engine, stretch[:1])
        assert all(bool(result.finite) for result in results)
        f, g = engine.networks.encoder.state_dict(), engine.networks.heads["g"].state_dict()
        states.append(digest({"f": f, "g": g, "objective": engine.networks.objective.state_dict()}))
    assert len(set(states)) == 1


@pytest.mark.parametrize(("method", "objective", "final"), [*AVERAGES, ("cla-b", None, 0.999)])
def test_moving_averages_follow(method: str, objective: str | None, final: float) -> None:
    """BYOL: after the k-th step tau = 1 - 0.01 (1 + cos(pi (k - 1) / T)) / 2; it restarts in every task, weights carry
    on. MoCo v2+: up to 0.999 instead of 1. cla-b: tau = 0.999 from the first step on."""
    engine, stretch = tiny_engine(composed(method, objective), epochs=1)
    owner = engine.networks.objective if method == "ft" else engine.model.terms["past"]
    live = [*engine.networks.encoder.parameters(), *engine.networks.heads["g"].parameters()]
    parts = [owner.get_submodule(f"average_{name}.network") for name in ("encoder", "head")]
    averages = [parameter for part in parts for parameter in part.parameters()]
    assert len(averages) == len(live) and not any(average.requires_grad for average in averages)
    assert all(torch.equal(*pair) for pair in zip(averages, live))
    wanted = [parameter.detach().clone() for parameter in live]
    for phase in stretch[:2]:
        engine.begin(phase)
        for step in range(phase.steps):
            engine.step(phase, step)
            cosine = final - (final - 0.99) * (1 + math.cos(math.pi * step / phase.steps)) / 2
            tau = cosine if method == "ft" else 0.999
            wanted = [tau * before + (1 - tau) * now.detach() for before, now in zip(wanted, live)]
            torch.testing.assert_close(averages, wanted, rtol=1e-5, atol=1e-7)
        engine.end(phase)
    assert not torch.equal(averages[-1], live[-1]), "g moves"


def test_queues_take_the_newest_keys_in_global_order_and_wrap_around(monkeypatch: pytest.MonkeyPatch) -> None:
    """mocov2+: written after the step, carried over to the next task. swav: emptied in every task."""
    engine, stretch = tiny_engine(composed("ft", "mocov2+(queue_size=11)"), epochs=1)
    objective = engine.networks.objective
    assert isinstance(objective, WithQueue)
    queue, expected = objective.get_buffer("queue"), objective.get_buffer("queue").clone()
    torch.testing.assert_close(queue.norm(dim=-1), torch.ones(2, 11))
    after_step, waiting, written = objective.after_step, list[torch.Tensor](), 0

    def watched(context: TaskContext) -> None:
        assert torch.equal(queue, expected), "the loss sees the queue of the step before"
        waiting[:] = objective.waiting
        after_step(context)

    monkeypatch.setattr(objective, "after_step", watched)
    for phase in stretch[:2]:
        engine.begin(phase)
        for step in range(phase.steps):
            engine.step(phase, step)
            (keys,) = waiting
            for row in range(keys.shape[1]):
                expected[:, (written + row) % 11] = keys[:, row]
            written += keys.shape[1]
            assert torch.equal(queue, expected)
    engine, stretch = tiny_engine(composed("ft", "swav(clusters=7,queue_size=30)"), epochs=1)
    train(engine, stretch[:1])
    queue = engine.networks.objective.get_buffer("queue")
    assert (queue.norm(dim=-1) > 0).sum() == 2 * 20, "20 images, zeros until filled"
    engine.begin(stretch[1])
    assert queue.abs().sum() == 0


@pytest.mark.parametrize("batches", [(2, 1, 4), (3, 17), (11, 5, 6)])
def test_a_queue_holds_the_newest_rows_whatever_the_size_of_a_batch(batches: tuple[int, ...]) -> None:
    """Oldest first, from its position on: as if rows came one by one."""
    queue, position = torch.zeros(2, 5, 1), torch.tensor(0)
    expected, number = [0] * 5, 0
    for count in batches:
        rows = torch.arange(number + 1, number + count + 1)
        enqueue(queue, position, torch.stack([rows, -rows])[:, :, None].float())
        number += count
        for row in rows.tolist():
            expected = [*expected[1:], row]
        found = queue[:, :, 0].roll(-int(position), 1)
        assert found[0].tolist() == expected and torch.equal(found[0], -found[1])


def test_a_bad_step_leaves_the_queue() -> None:
    queue, position = torch.ones(2, 3, 4), torch.tensor(2)
    rows = torch.full((2, 2, 4), 5.0)
    rows[0, 0, 0] = float("nan")
    enqueue(queue, position, rows)
    assert queue[:, :, 1].tolist() == [[5, 1, 1], [5, 1, 5]] and int(position) == 1


def test_the_spread_shows_a_collapse() -> None:
    case = situation("ft")
    z = torch.nn.functional.normalize(torch.randn(2, 500, 64, generator=torch.Generator().manual_seed(0)), dim=-1)
    case.networks.objective.watch(z)
    assert case.networks.objective.spread is not None
    assert float(case.networks.objective.spread) == pytest.approx(1, abs=0.02)
    case.networks.objective.watch(z[:, :1].expand(2, 500, 64))  # one point for each view
    assert float(case.networks.objective.spread) == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("method", ["er", "osiris-r", "er+", "pnr"])
def test_the_spread_is_that_of_x_in_the_space_of_g(method: str) -> None:
    case = situation(method)
    z = case.represent()("X")
    case.values()
    deviations = []
    for view in z:
        for column in view.T:
            mean = sum(column) / len(column)
            deviations.append((sum((value - mean) ** 2 for value in column) / len(column)) ** 0.5)
    spread = naive.mean(deviations) * z.shape[2] ** 0.5
    assert case.networks.objective.spread is not None
    torch.testing.assert_close(case.networks.objective.spread, spread)
