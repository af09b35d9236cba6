"""POCON: the expert and its snapshots."""

from dataclasses import replace

import pytest
import torch

from osiris.framework.terms import Expert, Snapshot, TaskContext
from osiris.training.engine import Engine
from tiny import composed, tiny_engine, train


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


@pytest.mark.parametrize("optimiser", ["sgd", "lars", "adamw", "muon"])
def test_after_a_snapshot_the_optimiser_treats_the_expert_as_new(optimiser: str) -> None:
    """Moments of zero with the count of earlier steps would make the next steps of AdamW several times too large."""
    engine, stretch = tiny_engine("pocon", optimiser=optimiser, learning_rate=0.01)  # pyright: ignore[reportArgumentType]
    train(engine, stretch[:2])
    expert, _ = pocon_of(engine)
    states = [value for parameter in expert.expert.parameters() for value in engine.optimiser.state[parameter].values()]
    assert states and all(value.abs().max() == 0 for value in states if isinstance(value, torch.Tensor))


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
