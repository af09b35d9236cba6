"""What terms store with the images of the memory: der, cla-r, minred; and when cromo fills it."""

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

import naive
from osiris.randomness import generator
from osiris.training.engine import Engine
from osiris.training.schedule import Episode, batch_positions
from tiny import composed, situation, tiny_engine, train


def views_of(engine: Engine, phase: Episode, indices: Tensor, purpose: str, step: int) -> Tensor:
    assert phase.images is not None
    images = phase.images.take(indices)
    key = generator(engine.config.seed, purpose, phase.task, step)
    return engine.two_views(images, key, slice(0, len(indices)), len(indices))


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
    engine.memory.admit = lambda count, random: (torch.arange(0), torch.arange(0))  # pyright: ignore[reportAttributeAccessIssue, reportArgumentType]
    engine.step(stretch[1], 0)
    assert int((stored != before).any(1).sum()) == 6, "the images of Y"


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
            assert phase.images is not None and torch.equal(image, phase.images.take(torch.tensor([source]))[0])
