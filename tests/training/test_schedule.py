"""What is seen when: every image once per epoch, streams of equal length, no batch too small to learn from; and where
the training images lie."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from osiris.config import LearningConfig
from osiris.data.benchmark import Benchmark, Split, TaskContent
from osiris.data.images import ArrayImages, LazyImages, Subset
from osiris.errors import UserError
from osiris.framework.cost import later_cost
from osiris.framework.methods import FT, ZOO, Method, find_method
from osiris.training import schedule
from osiris.training.schedule import (
    SMALLEST,
    Episode,
    TrainingImages,
    batch_positions,
    check_sizes,
    learning_rate,
    plan_episodes,
    steps_per_epoch,
)
from tiny import composed, tiny_benchmark
from tiny_runs import benchmark as run_benchmark


def planned(task: int, images: int, batch: int) -> Episode:
    content = TaskContent(name="", train=images, test=0, order="")
    return Episode(task, content, images, steps=100, batch_size=batch, images=None)


def episodes(benchmark: Benchmark, method: Method, epochs: int, batch: int) -> list[Episode]:
    return plan_episodes(benchmark, method, LearningConfig(epochs=epochs, batch_size=batch))


def pixels(episode: Episode) -> torch.Tensor:
    assert episode.images is not None
    return episode.images.take(torch.arange(episode.count))


sizes = st.integers(4, 200)
batches = st.integers(4, 40)


@given(sizes, batches, st.integers(0, 5), st.integers(0, 3), st.integers(0, 1000))
def test_every_image_once_per_epoch(images: int, batch: int, task: int, epoch: int, seed: int) -> None:
    episode = planned(task, images, batch)
    per_epoch = episode.steps_per_epoch
    seen = [batch_positions(episode, seed, epoch * per_epoch + position) for position in range(per_epoch)]
    assert sorted(torch.cat(seen).tolist()) == list(range(images))
    assert all(len(part) == batch for part in seen[:-1])
    assert len(seen[-1]) >= SMALLEST and len(seen[-1]) < batch + SMALLEST


def test_epochs_tasks_purposes_and_seeds_have_their_own_order() -> None:
    episode, later = planned(0, 40, 40), planned(1, 40, 40)
    orders = [
        batch_positions(episode, 0, 0),
        batch_positions(episode, 0, 1),
        batch_positions(episode, 1, 0),
        batch_positions(later, 0, 0),
        batch_positions(episode, 0, 0, "fisher.order"),
    ]
    assert len({tuple(order.tolist()) for order in orders}) == len(orders)
    assert torch.equal(batch_positions(episode, 0, 0), orders[0])


@given(st.integers(1, 4), st.integers(9, 30), st.integers(1, 3), st.integers(4, 9))
def test_offline_and_d1_only_take_as_many_steps_as_a_continual_run(
    tasks: int, per_task: int, epochs: int, batch: int
) -> None:
    benchmark = tiny_benchmark(tasks, per_task)
    continual = episodes(benchmark, FT, epochs, batch)
    assert [episode.task for episode in continual] == list(range(tasks))
    assert all(episode.steps == epochs * steps_per_epoch(per_task, batch) for episode in continual)
    (joint,) = episodes(benchmark, ZOO["offline"], epochs, batch)
    (first,) = episodes(benchmark, ZOO["d1-only"], epochs, batch)
    assert joint.steps == first.steps == sum(episode.steps for episode in continual)
    assert torch.equal(pixels(joint), benchmark.train.images.take(torch.arange(tasks * per_task)))
    assert torch.equal(pixels(first), pixels(continual[0]))
    assert torch.equal(torch.cat([pixels(episode) for episode in continual]), pixels(joint))


@pytest.mark.parametrize("tasks", [1, 2, 20])
def test_offline_at_equal_work_does_the_encoder_passes_of_osiris_d(tasks: int) -> None:
    """The first task of osiris-d is ft; measured, not claimed."""
    offline, osiris_d = find_method("offline/equal-work"), find_method("osiris-d")
    assert later_cost(offline).work == pytest.approx(later_cost(osiris_d).work)
    (joint,) = episodes(tiny_benchmark(tasks, 240), offline, 2, 10)
    assert joint.steps == round(48 * (1 + (tasks - 1) * later_cost(osiris_d).work / later_cost(FT).work))
    with pytest.raises(UserError, match="changes nothing"):
        find_method("osiris-d/equal-work")


def test_a_continual_method_at_equal_work_has_more_steps_after_the_first_task() -> None:
    """er++ embeds X and Y; osiris-d also embeds X with f*, forward only: 10.5 and 12.5 passes."""
    er, osiris_d = find_method("er++/equal-work"), find_method("osiris-d")
    assert later_cost(er).work == pytest.approx(later_cost(osiris_d).work) == 12.5
    first, *later = episodes(tiny_benchmark(3, 240), er, 2, 10)
    assert first.steps == 48 and [episode.steps for episode in later] == [round(48 * 12.5 / 10.5)] * 2


def test_too_few_images_are_refused() -> None:
    with pytest.raises(UserError, match="learning needs at least 4"):
        episodes(tiny_benchmark(2, 3), FT, 1, 4)


def test_a_task_smaller_than_a_batch_is_one_batch() -> None:
    small = episodes(tiny_benchmark(2, 8), FT, 3, 16)
    assert [(episode.batch_size, episode.steps, episode.batch_sizes) for episode in small] == [(8, 3, (8, 8))] * 2
    assert len(batch_positions(small[1], 0, 2)) == 8
    (text,) = check_sizes(small, find_method("ft"), LearningConfig(batch_size=16))
    assert "2 tasks (the first: 1) have fewer images than a batch of 16" in text
    assert episodes(tiny_benchmark(2, 8), ZOO["offline"], 1, 16)[0].batch_size == 16


def test_learning_rate() -> None:
    assert {learning_rate(0.03, "constant", 0, step, 100) for step in range(100)} == {0.03}
    assert [learning_rate(1, "constant", 4, step, 100) for step in range(5)] == [0.25, 0.5, 0.75, 1, 1]
    cosine = [learning_rate(1, "cosine", 10, step, 110) for step in range(110)]
    assert cosine[10] == 1 and cosine[60] == pytest.approx(0.5)
    assert cosine[-1] == pytest.approx(0.5 * (1 + math.cos(math.pi * 0.99)))
    assert all(later < earlier for earlier, later in itertools.pairwise(cosine[10:]))


def test_a_first_task_too_short_for_the_memory_is_refused() -> None:
    """lump pairs every image of X with one of Y: 13 images in one step need 13 in the memory after 10 presentations."""
    whole = tiny_benchmark(tasks=2, per_task=13)
    train = Split(ArrayImages(np.zeros((23, 3, 8, 8), np.uint8)), torch.tensor([0] * 10 + [1] * 13))
    benchmark = replace(whole, train=train)
    learning = LearningConfig(epochs=1, batch_size=10, memory_size=50)
    plan = episodes(benchmark, FT, 1, 10)
    with pytest.raises(UserError, match="task 1 offers 10 images"):
        check_sizes(plan, find_method("lump"), learning)
    check_sizes(plan, find_method("lump"), replace(learning, epochs=2))
    check_sizes(plan, find_method("er"), learning)


def test_a_batch_that_would_replay_nothing_is_refused() -> None:
    plan = episodes(tiny_benchmark(2, 20), FT, 2, 8)
    method = replace(find_method("er"), replay=0.1)
    with pytest.raises(UserError, match=r"would replay none with it; use a --replay-fraction of 0\.25 or more"):
        check_sizes(plan, method, LearningConfig(epochs=2, batch_size=8, memory_size=50))


@pytest.mark.parametrize(
    ("name", "objective"), [("er", "dcl"), ("er", "vicreg"), ("cromo", "dcl"), ("minred", "dcl"), ("minred", "simsiam")]
)
def test_one_replayed_image_is_refused_where_the_loss_is_not_defined(name: str, objective: str) -> None:
    """The last batch has 7 images. The advice is rounded up: 7 * 0.285714 is less than 2."""
    plan, learning = episodes(tiny_benchmark(2, 23), FT, 2, 8), LearningConfig(epochs=2, batch_size=8, memory_size=50)
    with pytest.raises(UserError, match=rf"one with it, too few for {objective}; use a --replay-fraction of 0\.286 or"):
        check_sizes(plan, composed(name, objective, replay_fraction=0.2), learning)
    check_sizes(plan, composed(name, objective, replay_fraction=0.286), learning)
    for defined in (composed(name, replay_fraction=0.2), composed("der", objective, replay_fraction=0.2)):
        check_sizes(plan, defined, learning)


META = torch.device("meta")


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch) -> int:
    """A device with room for the images, to the byte. The meta device stands in for it."""
    train = run_benchmark().train
    size = 10 * len(train) * 3 * train.images.shape[1] * train.images.shape[2]
    monkeypatch.setattr(schedule, "total_memory", lambda device: size if device == META else None)
    return size


def test_images_are_kept_where_they_take_a_tenth_of_the_memory(room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    train = run_benchmark().train
    assert TrainingImages(train.images, META).kept is not None
    assert TrainingImages(train.images, META, keep=False).kept is None
    assert TrainingImages(train.images, torch.device("cpu"), keep=True).kept is None
    monkeypatch.setattr(schedule, "total_memory", lambda device: room - 10)
    assert TrainingImages(train.images, META).kept is None
    assert TrainingImages(train.images, META, keep=True).kept is not None


def test_images_that_must_be_decoded_are_kept_on_request_only(room: int) -> None:
    train = run_benchmark().train
    lazy = LazyImages(len(train), train.images.shape[1], lambda rows: [], str)
    assert TrainingImages(lazy, META).kept is None
    assert TrainingImages(Subset(lazy, torch.arange(len(train))), META).kept is None


def test_a_batch_has_the_images_of_its_positions(room: int) -> None:
    images = run_benchmark().train.images
    kept = TrainingImages(images, META)
    assert kept.take(torch.tensor([3, 1])).shape == (2, *images.shape)
    host = TrainingImages(images, torch.device("cpu"))
    assert torch.equal(host.take(torch.tensor([3, 1])), images.take(torch.tensor([3, 1])))
