"""What objectives and online methods carry from step to step: stored targets, averages, queues, prototypes."""

import copy
import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import naive
from osiris.framework.objectives.base import enqueue
from osiris.framework.terms import TaskContext
from osiris.runs.state import digest
from osiris.training.run import Training
from tiny import OBJECTIVES, composed, situation, tiny_engine, train


@pytest.mark.parametrize(("method", "field"), [("cla-r", "target"), ("minred", "feature")])
def test_a_visit_renews_what_is_stored_with_an_image(method: str, field: str) -> None:
    """cla-r: c <- c/2 + mean z / 2, raw; minred: c <- hat(c/2 + hat(z_1 + z_2)/2), and hat(z_1 + z_2) at first."""
    case = situation(method)
    assert case.context.memory is not None and case.context.slots is not None
    case.context.memory.get_buffer("field_feature" if method == "minred" else "field_target")[7] = 0
    z = case.represent()
    renewed = case.model.rewritten(z, case.context)[field]
    for row, slot in enumerate(case.context.slots.tolist()):
        first, second = z.raw("Y")[:, row]
        c = case.context.memory.get_buffer(f"field_{field}")[slot]
        new = naive.unit(first + second)
        if method == "cla-r":
            wanted = c / 2 + (first + second) / 4
        else:
            wanted = new if slot == 7 else naive.unit(c / 2 + new / 2)
        torch.testing.assert_close(renewed[row], wanted)
    engine, stretch = tiny_engine(method, epochs=1)
    train(engine, stretch[:1])
    stored = engine.memory.get_buffer(f"field_{field}")
    assert (stored.norm(dim=1) > 0).all() == (method == "cla-r"), "minred has no feature before the first visit"
    before = stored.clone()
    engine.begin(stretch[1])
    engine.memory.plan = lambda count, random: (torch.arange(0), torch.arange(0))  # pyright: ignore[reportAttributeAccessIssue]
    engine.step(stretch[1], 0)
    assert int((stored != before).any(1).sum()) == 6, "the images of Y"


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


@pytest.mark.parametrize("method", ["ft", "cla-b"])
def test_moving_averages_follow(method: str) -> None:
    """BYOL: after the k-th step tau = 1 - 0.01 (1 + cos(pi (k - 1) / T)) / 2; it restarts in every task, weights carry
    on. cla-b: tau = 0.999 from the first step on."""
    engine, stretch = tiny_engine(composed(method, "byol" if method == "ft" else None), epochs=1)
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
            cosine = 1 - 0.01 * (1 + math.cos(math.pi * step / phase.steps)) / 2
            tau = cosine if method == "ft" else 0.999
            wanted = [tau * before + (1 - tau) * now.detach() for before, now in zip(wanted, live)]
            torch.testing.assert_close(averages, wanted, rtol=1e-5, atol=1e-7)
        engine.end(phase)
    assert not torch.equal(averages[-1], live[-1]), "g moves"


def test_queues_take_the_newest_keys_in_global_order_and_wrap_around(monkeypatch: pytest.MonkeyPatch) -> None:
    """mocov2+: written after the step, carried over to the next task. swav: emptied in every task."""
    engine, stretch = tiny_engine(composed("ft", "mocov2+(queue_size=11)"), epochs=1)
    objective = engine.networks.objective
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


def test_prototypes_rest_in_the_first_epochs_of_each_task() -> None:
    engine, stretch = tiny_engine(composed("ft", "swav(clusters=7,frozen_epochs=1)"), epochs=2)
    for phase in stretch[:2]:
        engine.begin(phase)
        for step in range(phase.steps):
            before = engine.networks.objective.prototype_vectors().clone()  # pyright: ignore[reportCallIssue, reportAttributeAccessIssue]
            engine.step(phase, step)
            after = engine.networks.objective.prototype_vectors()  # pyright: ignore[reportCallIssue, reportAttributeAccessIssue]
            assert torch.equal(before, after) == (step < phase.steps_per_epoch)


def test_the_epoch_of_swav_is_part_of_the_state() -> None:
    """In the middle of a task: with another epoch the prototypes would rest again, and the queue would not join."""
    method = composed("ft", "swav(clusters=7,frozen_epochs=1,queue_size=4,queue_epoch=1)")
    engine, (phase, *_) = tiny_engine(method, epochs=2)
    engine.begin(phase)
    for step in range(phase.steps_per_epoch):
        engine.step(phase, step)
    resumed, _ = tiny_engine(method, epochs=2)
    resumed.restore(copy.deepcopy(engine.state()))
    states = []
    for one in (engine, resumed):
        before = one.networks.objective.prototype_vectors().clone()  # pyright: ignore[reportCallIssue, reportAttributeAccessIssue]
        one.step(phase, phase.steps_per_epoch)
        states.append(digest(one.networks.state_dict()))
        assert not torch.equal(before, one.networks.objective.prototype_vectors())  # pyright: ignore[reportCallIssue, reportAttributeAccessIssue]
    assert states[0] == states[1]


def test_cassle_of_swav_keeps_the_prototypes_of_the_task_before() -> None:
    engine, stretch = tiny_engine(composed("cassle", "swav(clusters=7)"), epochs=1)
    train(engine, stretch[:1])
    past = engine.model.terms["past"].get_submodule("distiller").get_buffer("past")
    assert torch.equal(past, engine.networks.objective.prototype_vectors())  # pyright: ignore[reportCallIssue, reportAttributeAccessIssue]


@pytest.mark.parametrize("optimiser", ["sgd", "muon"])
def test_the_predictor_of_simsiam_has_a_constant_learning_rate(optimiser: str) -> None:
    learning = {"optimiser": optimiser, "schedule": "cosine", "learning_rate": 0.01}
    engine, stretch = tiny_engine(composed("ft", "simsiam"), epochs=1, **learning)  # pyright: ignore[reportArgumentType]
    train(engine, stretch[:1])
    predictor = set(engine.networks.objective.get_submodule("predictor").parameters())
    rates = {(p in predictor, g["lr"] / g.get("scale", 1)) for g in engine.optimiser.param_groups for p in g["params"]}
    assert len(rates) == 2 and (True, 0.01) in rates, "the others have fallen"


def test_the_moving_average_follows_the_expert_of_pocon() -> None:
    engine, stretch = tiny_engine(composed("pocon(interval=100)", "byol(rate=0)"), epochs=1)
    train(engine, stretch[:1])
    engine.begin(stretch[1])
    engine.step(stretch[1], 0)
    expert = engine.model.terms["current"].get_submodule("expert").get_parameter("conv1.weight")
    average = engine.networks.objective.get_submodule("average_encoder.network").get_parameter("conv1.weight")
    assert torch.equal(average, expert) and not torch.equal(
        expert, engine.networks.encoder.get_parameter("conv1.weight")
    )


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


@pytest.mark.parametrize("preset", ["fast", "smoke"])
def test_a_collapse_is_named_once_and_counted_at_the_end(preset: str, capsys: pytest.CaptureFixture[str]) -> None:
    spreads = [0.5, 0.001, 0.001, None, 0.001, 0.001]
    run: Any = SimpleNamespace(
        meter=SimpleNamespace(read=lambda phase, step: {"spread": spreads.pop(0)}, bad_steps=0),
        position=SimpleNamespace(step=30),
        directory=SimpleNamespace(owner=True),
        engine=SimpleNamespace(optimiser=SimpleNamespace(param_groups=[{"lr": 1}]), memory=SimpleNamespace(filled=0)),
        collapses={},
        _collapsed=lambda *given: Training._collapsed(run, *given),
        coming=lambda: ["another task"],
        config=SimpleNamespace(preset=preset),
        _emit=lambda record: None,
    )
    for task, said in ((1, False), (1, True), (1, False), (1, False), (2, False), (4, False)):
        Training._log_steps(run, SimpleNamespace(task=task))  # pyright: ignore[reportArgumentType]
        assert ("have collapsed" in capsys.readouterr().err) == (said and preset != "smoke")
    Training.finish(run)
    counted = "the embeddings have collapsed in 3 tasks, the first of them task 2" in capsys.readouterr().err
    assert counted == (preset != "smoke")
