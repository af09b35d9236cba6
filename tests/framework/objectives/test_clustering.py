"""SwAV: prototypes, their epochs, and what cassle keeps of them."""

import copy

import pytest
import torch
from torch import Tensor

from osiris.framework import losses
from osiris.runs.state import digest
from tiny import composed, tiny_engine, train


def test_prototypes_rest_in_the_first_epochs_of_each_task() -> None:
    engine, stretch = tiny_engine(composed("ft", "swav(clusters=7,frozen_epochs=1)"), epochs=2)
    for phase in stretch[:2]:
        engine.begin(phase)
        for step in range(phase.steps):
            before = engine.networks.objective.prototype_vectors().clone()  # pyright: ignore[reportCallIssue, reportAttributeAccessIssue]
            engine.step(phase, step)
            after = engine.networks.objective.prototype_vectors()  # pyright: ignore[reportCallIssue, reportAttributeAccessIssue]
            assert torch.equal(before, after) == (step < phase.steps_per_epoch)


def test_the_queue_joins_the_assignment_from_its_epoch_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """In every task anew."""
    engine, stretch = tiny_engine(composed("ft", "swav(clusters=7,queue_size=4,queue_epoch=1)"), epochs=2)
    rows, sinkhorn = list[int](), losses.sinkhorn

    def counted(scores: Tensor) -> Tensor:
        rows.append(scores.shape[1])
        return sinkhorn(scores)

    monkeypatch.setattr(losses, "sinkhorn", counted)
    train(engine, stretch[:2])
    assert rows == 2 * [8, 8, 4, 8 + 4, 8 + 4, 4 + 4]


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
