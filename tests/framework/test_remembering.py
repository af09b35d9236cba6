"""What ewc, der, cla-r, cromo and pocon carry from step to step and from task to task."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

import naive
from osiris.errors import UserError
from osiris.framework.terms import Elastic, Expert, Snapshot, TaskContext
from osiris.framework.terms.ewc import normaliser
from osiris.randomness import generator
from osiris.training.engine import Engine
from osiris.training.schedule import Episode, batch_positions
from tiny import composed, tiny_benchmark, tiny_engine, train


def elastic_of(engine: Engine) -> Elastic:
    (term,) = [term for _, term, _ in engine.model.later if isinstance(term, Elastic)]
    return term


def fisher(engine: Engine) -> list[Tensor]:
    count = len(list(engine.networks.encoder.parameters()))
    return [elastic_of(engine).get_buffer(f"fisher_{index}") for index in range(count)]


def views_of(engine: Engine, phase: Episode, indices: Tensor, purpose: str, step: int) -> Tensor:
    images = phase.take(indices)
    key = generator(engine.config.seed, purpose, phase.task, step)
    return engine.two_views(images, key, slice(0, len(indices)), len(indices))


@pytest.mark.parametrize("norm", ["gn", "bn"])
def test_the_fisher_is_the_mean_of_squared_batch_gradients(norm: str) -> None:
    """One pass in full batches with its own random stream, normalised to unit trace; nothing else moves."""
    engine, (phase, *_) = tiny_engine("ewc", norm=norm)
    engine.begin(phase)
    for step in range(phase.steps):
        engine.step(phase, step)
    state = {name: value.clone() for name, value in engine.networks.state_dict().items()}
    expected, batches = naive_fisher(engine, phase)
    engine.networks.load_state_dict(state)  # the naive pass moved the running statistics
    engine.end(phase)
    assert batches == 2, "20 images in batches of 8: two full ones"
    for ours, theirs in zip(fisher(engine), expected):
        torch.testing.assert_close(ours, theirs, rtol=2e-3, atol=1e-8)
    assert sum(float(value.sum()) for value in fisher(engine)) == pytest.approx(1, rel=1e-5)
    after = engine.networks.state_dict()
    assert all(torch.equal(value, after[name]) for name, value in state.items())
    assert all(parameter.grad is None for parameter in engine.networks.parameters())


def naive_fisher(engine: Engine, phase: Episode) -> tuple[list[Tensor], int]:
    parameters, squares, batches = list(engine.networks.encoder.parameters()), [], 0
    for step in range(phase.count // phase.batch_size):
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
    with pytest.raises(UserError, match=r"ewc would diverge in task 2.*--past-weight"):
        engine.begin(stretch[1])


def test_ewc_stays_finite_over_twenty_tasks_at_the_published_weight() -> None:
    benchmark = tiny_benchmark(tasks=20, per_task=12)
    engine, stretch = tiny_engine("ewc", benchmark=benchmark, learning_rate=0.03, epochs=2, batch_size=6)
    assert [weight for name, _, weight in engine.model.later if name == "past"] == [100]
    results = train(engine, stretch)
    assert len(results) == 20 * 2 * 2
    assert all(bool(result.finite) for result in results)
    worst = max(float(result.values["past"]) for result in results if "past" in result.values)
    assert worst < 1, f"the penalty stays small: {worst}"


@pytest.mark.parametrize(("method", "field"), [("der", "embedding"), ("cla-r", "target")])
def test_the_embedding_of_the_step_in_which_an_image_entered_is_stored(method: str, field: str) -> None:
    """der: normalised, of view 1. cla-r: the mean over the views, raw (alpha = 1: visits do not renew it)."""
    engine, stretch = tiny_engine("der" if method == "der" else composed("cla-r(alpha=1)"))
    reference: dict[int, Tensor] = {}
    for phase in stretch[:2]:
        engine.begin(phase)
        for step in range(phase.steps):
            indices = batch_positions(phase, engine.config.seed, step)
            views = views_of(engine, phase, indices, "augment.x", step)
            with torch.no_grad():
                first, second = (engine.networks.heads["g"](engine.networks.encoder(view)) for view in views)
            z = normalize(first, dim=1) if method == "der" else (first + second) / 2
            engine.step(phase, step)
            memory = engine.memory
            for slot in range(memory.filled):
                if (int(memory.task[slot]), int(memory.step[slot])) == (phase.task, step):
                    row = indices.tolist().index(int(memory.source[slot]))
                    reference[slot] = z[row]
            for slot, wanted in reference.items():
                torch.testing.assert_close(memory.field(field, torch.tensor([slot]))[0], wanted)
        engine.end(phase)
    assert len(reference) == engine.memory.size


def test_the_memory_of_cromo_is_filled_at_the_end_of_a_task() -> None:
    """So that f* knows its images, and Y holds old tasks only."""
    engine, stretch = tiny_engine("cromo")
    quota = engine.memory.size // len(stretch)
    for task, phase in enumerate(stretch):
        engine.begin(phase)
        for step in range(phase.steps):
            assert engine.memory.filled == quota * task
            engine.step(phase, step)
        engine.end(phase)
        new = slice(quota * task, quota * (task + 1))
        assert (engine.memory.task[new] == task).all() and (engine.memory.step[new] == phase.steps - 1).all()
        for source, image in zip(engine.memory.source[new].tolist(), engine.memory.images[new]):
            assert torch.equal(image, phase.take(torch.tensor([source]))[0])


def pocon_of(engine: Engine) -> tuple[Expert, Snapshot]:
    (expert,) = [term for _, term, _ in engine.model.later if isinstance(term, Expert)]
    (past,) = [term for _, term, _ in engine.model.later if isinstance(term, Snapshot)]
    return expert, past


def parameters_equal(one: torch.nn.Module, two: torch.nn.Module) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))


def test_pocon_starts_from_f_after_the_first_task() -> None:
    engine, stretch = tiny_engine("pocon")
    train(engine, stretch[:1])
    expert, past = pocon_of(engine)
    for copied in (expert.expert, expert.expert_past.network, past.encoder_past.network):
        assert parameters_equal(copied, engine.networks.encoder)
    assert parameters_equal(expert.projector, engine.networks.heads["g"])


def test_pocon_takes_snapshots_at_the_interval_and_once_at_the_end() -> None:
    """phi_bar <- phi, f_bar <- f, phi <- f, phi's momentum zeroed; nothing in between."""
    engine, stretch = tiny_engine(composed("pocon(interval=4)"))
    train(engine, stretch[:1])
    expert, past = pocon_of(engine)
    phase = stretch[1]
    assert phase.steps == 6
    engine.begin(phase)
    taken, learned, after_step = [], torch.empty(0), engine.model.after_step

    def observed(context: TaskContext) -> None:
        nonlocal learned
        learned = expert.expert.get_parameter("conv1.weight").clone()
        assert not parameters_equal(expert.expert, engine.networks.encoder)
        after_step(context)

    engine.model.after_step = observed
    for step in range(phase.steps):
        frozen = expert.expert_past.network.get_parameter("conv1.weight").clone()
        engine.step(phase, step)
        assert not torch.equal(learned, frozen)
        now = expert.expert_past.network.get_parameter("conv1.weight")
        if step + 1 == 4:
            assert torch.equal(now, learned) and snapshot_was_taken(engine)
            taken.append(step + 1)
        else:
            assert torch.equal(now, frozen)
    learned = expert.expert.get_parameter("conv1.weight").clone()
    engine.end(phase)
    assert torch.equal(expert.expert_past.network.get_parameter("conv1.weight"), learned)
    assert snapshot_was_taken(engine)
    assert taken == [4] and parameters_equal(past.encoder_past.network, engine.networks.encoder)


def snapshot_was_taken(engine: Engine) -> bool:
    expert, past = pocon_of(engine)
    momentum = [engine.optimiser.state[parameter]["momentum_buffer"] for parameter in expert.expert.parameters()]
    others = [engine.optimiser.state[parameter]["momentum_buffer"] for parameter in expert.projector.parameters()]
    return (
        parameters_equal(expert.expert, engine.networks.encoder)
        and parameters_equal(past.encoder_past.network, engine.networks.encoder)
        and all(value.abs().max() == 0 for value in momentum)
        and all(value.abs().max() > 0 for value in others)
    )


def test_a_snapshot_at_the_last_step_is_not_taken_again_at_the_end() -> None:
    """A second one would replace the expert's snapshot by f itself."""
    engine, stretch = tiny_engine(composed("pocon(interval=3)"))
    train(engine, stretch[:2])
    expert, _ = pocon_of(engine)
    assert not parameters_equal(expert.expert_past.network, engine.networks.encoder)


@pytest.mark.parametrize(
    ("steps", "expected"), [(24, [6, 12, 18, 24]), (25, [7, 13, 19, 25]), (27, [7, 14, 21, 27]), (2, [1, 2])]
)
def test_without_an_interval_a_quarter_of_a_task(steps: int, expected: list[int]) -> None:
    """The last snapshot is the one at the end of the task, also where the steps cannot be divided by four."""
    engine, stretch = tiny_engine("pocon")
    expert, _ = pocon_of(engine)

    def due(task: int) -> list[int]:
        contexts = [replace(engine.task_context(stretch[task], step), steps=steps) for step in range(1, steps + 1)]
        return [context.step for context in contexts if expert.due(context)]

    assert due(1) == expected
    assert due(0) == [], "the first task is ft"
