"""Randomness is a function of its key: nothing global is consumed, nothing depends on what was drawn before."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import naive
from osiris.framework.representations import Representations
from osiris.framework.terms import StepContext
from osiris.randomness import derive_seed, generator, scoped
from osiris.training.engine import Engine
from osiris.training.schedule import batch_positions
from tiny import tiny_engine, train

keys = st.tuples(
    st.integers(0, 2**53),
    st.sampled_from(["init", "order", "augment.x", "memory.read"]),
    st.integers(0, 9),
    st.integers(0, 9),
)


@given(keys, keys)
def test_a_seed_depends_on_every_part_of_its_key(one: tuple, two: tuple) -> None:
    assert (derive_seed(*one) == derive_seed(*two)) == (one == two)
    assert 0 <= derive_seed(*one) < 2**63


def test_seeds_are_fixed_for_good() -> None:
    """A changed derivation would change every run that was ever made."""
    assert derive_seed(0, "init.encoder") == 6680165525811018843
    assert derive_seed(7, "augment.x", 3, 11) == 1810716975625904533


def test_a_generator_gives_the_same_numbers_whatever_happened_before() -> None:
    first = torch.rand(5, generator=generator(3, "order", 1, 2))
    torch.rand(100)
    generator(3, "order", 1, 1)
    assert torch.equal(first, torch.rand(5, generator=generator(3, "order", 1, 2)))


def test_scoped_puts_the_global_generator_back() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    with scoped(0, "init.encoder"):
        inside = torch.rand(3)
    assert torch.equal(torch.rand(3), expected)
    assert not torch.equal(inside, expected)


def test_building_and_training_consume_no_global_generator() -> None:
    torch.manual_seed(11)
    expected = torch.get_rng_state()
    engine, stretch = tiny_engine("lump")
    train(engine, stretch[:2])
    assert torch.equal(torch.get_rng_state(), expected)


def test_a_step_draws_from_the_keys_of_its_task_and_step() -> None:
    """The memory's slots, the batch Y and the views of both, drawn again from the outside."""
    engine, stretch = tiny_engine("osiris-r", seed=6)
    seen: list[tuple[Representations, StepContext]] = []
    engine.model.register_forward_hook(lambda module, arguments, output: seen.append(arguments))
    reservoir = naive.Reservoir(engine.memory.size)
    for phase in stretch[:2]:
        engine.begin(phase)
        for step in range(phase.steps):
            indices = batch_positions(phase, 6, step)
            held = engine.memory.images.clone()
            engine.step(phase, step)
            rep, context = seen[-1]
            assert phase.images is not None
            views = two_views(engine, phase.images.take(indices), "augment.x", phase.task, step)
            torch.testing.assert_close(rep.views["X"], views)
            if phase.task > 0:
                slots = torch.randperm(12, generator=generator(6, "memory.read", phase.task, step))
                slots = slots[: len(indices) * 3 // 4]
                assert context.slots is not None and torch.equal(context.slots, slots)
                views = two_views(engine, held[slots], "augment.y", phase.task, step)
                torch.testing.assert_close(rep.views["Y"], views)
            key = generator(6, "memory.write", phase.task, step)
            for source, uniform in zip(indices.tolist(), torch.rand(len(indices), generator=key, dtype=torch.float64)):
                reservoir.offer(source, float(uniform))
            assert engine.memory.source[: engine.memory.filled].tolist() == reservoir.slots
        engine.end(phase)


def two_views(engine: Engine, images: Tensor, purpose: str, task: int, step: int) -> Tensor:
    return engine.two_views(images, generator(6, purpose, task, step), slice(0, len(images)), len(images))
