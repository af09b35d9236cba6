"""The reservoir: the exact semantics against one offer at a time, and uniformity over presentations."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import naive
from osiris.memory import Equal, Fifo, Memory, MinRed, Quota
from osiris.randomness import generator


def offer(memory: Memory, sources: torch.Tensor, random: torch.Generator, task: int = 0, step: int = 0) -> None:
    rows, slots = memory.admit(len(sources), random)
    images = (sources[rows] % 256).to(torch.uint8).view(-1, 1, 1, 1).expand(-1, *memory.images.shape[1:])
    memory.write(slots, images, sources[rows], task, step)
    memory.advance(len(sources))


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 9), st.lists(st.integers(1, 12), min_size=1, max_size=8), st.integers(0, 2**31))
def test_equals_one_offer_at_a_time(size: int, batches: list[int], seed: int) -> None:
    """The same draws in a plain loop fill the same slots, also across the moment when the memory gets full."""
    memory, reference = Memory(size, (3, 2, 2)), naive.Reservoir(size)
    total = 0
    for step, count in enumerate(batches):
        sources = torch.arange(total, total + count)
        total += count
        offer(memory, sources, generator(seed, "memory.write", step))
        uniform = torch.rand(count, generator=generator(seed, "memory.write", step), dtype=torch.float64)
        for source, draw in zip(sources.tolist(), uniform.tolist()):
            reference.offer(source, draw)
        assert memory.source[: memory.filled].tolist() == reference.slots
        assert memory.offers == reference.offers and memory.filled == len(reference.slots)
        assert (memory.source[memory.filled :] == -1).all()


def test_images_and_facts_of_a_slot_belong_together() -> None:
    memory = Memory(5, (3, 2, 2), {"embedding": 4})
    for step in range(6):
        sources = torch.arange(step * 3, step * 3 + 3)
        rows, slots = memory.admit(3, generator(0, "memory.write", step))
        images = sources[rows].to(torch.uint8).view(-1, 1, 1, 1).expand(-1, 3, 2, 2)
        values = sources[rows].float().view(-1, 1).expand(-1, 4)
        memory.write(slots, images, sources[rows], task=step // 2, step=step, fields={"embedding": values})
        memory.advance(3)
    slots = torch.arange(5)
    assert torch.equal(memory.read(slots)[:, 0, 0, 0].long(), memory.source)
    assert torch.equal(memory.field("embedding", slots)[:, 0].long(), memory.source)
    assert torch.equal(memory.step, memory.source // 3)
    assert torch.equal(memory.task, memory.step // 2)
    assert memory.images.dtype == torch.uint8


def test_every_presentation_is_kept_equally_often() -> None:
    """Chi-square over 60 presentations, 2,000 repetitions; a bound that a fair reservoir exceeds once in 1e6."""
    presentations, size, repetitions = 60, 12, 2000
    counts = torch.zeros(presentations)
    memory = Memory(size, (3, 1, 1))
    for repetition in range(repetitions):
        memory.offers = 0
        held = torch.full((size,), -1)
        for step in range(4):
            rows, slots = memory.admit(15, generator(repetition, "memory.write", step))
            held[slots] = rows + 15 * step
            memory.advance(15)
        counts[held] += 1
    assert counts.sum() == repetitions * size
    assert chi_square(counts, repetitions * size / presentations) < stats.chi2.ppf(1 - 1e-6, presentations - 1)


def chi_square(counts: torch.Tensor, expected: float) -> float:
    # Sampling without replacement: the variance of a count is smaller by (1 - size / presentations), which only makes
    # the statistic smaller. The bound stays valid.
    return float(((counts - expected) ** 2 / expected).sum())


def test_reading_is_uniform_without_replacement() -> None:
    memory = Memory(10, (3, 1, 1))
    memory.advance(8)
    counts = torch.zeros(10)
    for step in range(1000):
        slots = memory.sample(6, generator(1, "memory.read", 0, step))
        assert len(slots) == 6 == len(set(slots.tolist()))
        counts[slots] += 1
    assert (counts[8:] == 0).all(), "empty slots are never read"
    assert chi_square(counts[:8], 1000 * 6 / 8) < stats.chi2.ppf(1 - 1e-6, 7)


def test_a_read_of_more_than_there_is_gives_all_there_is() -> None:
    memory = Memory(10, (3, 1, 1))
    memory.advance(4)
    assert sorted(memory.sample(7, generator(0, "memory.read")).tolist()) == [0, 1, 2, 3]


def test_a_plan_changes_nothing_until_it_is_carried_out() -> None:
    memory = Memory(3, (3, 1, 1))
    memory.admit(5, generator(0, "memory.write"))
    assert memory.offers == 0 and (memory.source == -1).all()


def test_fifo_holds_the_newest() -> None:
    memory, total = Fifo(5, (3, 1, 1)), 0
    for step, count in enumerate((3, 1, 4, 12, 2)):
        offer(memory, torch.arange(total, total + count), generator(0, "memory.write", step))
        total += count
        assert sorted(memory.source[: memory.filled].tolist()) == list(range(total))[-5:]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("size", "unvisited"), [(9, (1, 4)), (8, ())])
def test_minred_removes_the_older_of_the_most_similar_pair(size: int, unvisited: tuple[int, ...], seed: int) -> None:
    """Against one removal at a time in a list. Some images are not yet trained on. The memory of 8 images must once
    remove exactly half of those that it has."""
    random = generator(seed, "test")
    memory = MinRed(size, (3, 1, 1), {"feature": 3})
    values: dict[int, torch.Tensor] = {}
    stored: list[int] = []  # in order of arrival
    for step, count in enumerate((6, 5, 3, 2, 4)):
        sources = torch.arange(10 * step, 10 * step + count)
        excess = max(0, len(stored) + count - size)
        candidates = [source for source in stored if values[source].norm() > 0]
        leaving = stored[:excess]
        if len(candidates) >= 2 * excess:
            leaving = []
            for _ in range(excess):
                pairs = [(one, two) for i, one in enumerate(candidates) for two in candidates[i + 1 :]]
                older, _ = max(
                    pairs, key=lambda pair: float(torch.cosine_similarity(*(values[s] for s in pair), dim=0))
                )
                candidates.remove(older)
                leaving.append(older)
        rows, slots = memory.admit(count, random)
        images = torch.zeros(len(rows), 3, 1, 1, dtype=torch.uint8)
        memory.write(slots, images, sources[rows], 0, step, {"feature": torch.zeros(len(rows), 3)})
        memory.advance(count)
        stored = [source for source in stored if source not in leaving] + sources.tolist()
        assert sorted(memory.source[: memory.filled].tolist()) == sorted(stored)
        values |= {source: torch.zeros(3) for source in sources.tolist()}
        visited = [slot for slot in range(memory.filled) if slot not in unvisited]
        features = torch.randn(len(visited), 3, generator=random)
        memory.rewrite("feature", torch.tensor(visited), features)
        values |= {int(memory.source[slot]): feature for slot, feature in zip(visited, features)}


@pytest.mark.parametrize("count", [9, 10, 25])
def test_minred_keeps_the_newest_of_a_batch_that_is_larger_than_the_memory(count: int) -> None:
    """Also when it is full, and the next batch finds the oldest first."""
    memory, total = MinRed(9, (3, 1, 1), {"feature": 3}), 0
    for step, size in enumerate((count, count, 4)):
        sources = torch.arange(total, total + size)
        total += size
        rows, slots = memory.admit(size, generator(0, "memory.write", step))
        zeros = torch.zeros(len(rows), 3)
        memory.write(slots, zeros.to(torch.uint8).view(-1, 3, 1, 1), sources[rows], 0, step, {"feature": zeros})
        memory.advance(size)
        assert sorted(memory.source.tolist()) == list(range(total - 9, total))


def test_quota_takes_the_same_number_of_each_task() -> None:
    memory = Quota(10, (3, 1, 1), tasks=3)
    for task in range(3):
        rows, slots = memory.admit(50, generator(task, "memory.write"))
        assert slots.tolist() == [3 * task, 3 * task + 1, 3 * task + 2] and rows.max() < 50
        memory.write(slots, torch.zeros(3, 3, 1, 1, dtype=torch.uint8), 50 * task + rows, task, 0)
        memory.advance(len(rows))
    assert memory.task.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2, -1]
    read = memory.sample(200, generator(0, "memory.read"))
    assert len(read) == 200 and set(read.tolist()) == set(range(9)), "with replacement"


def test_values_that_are_not_finite_leave_a_field() -> None:
    memory = Memory(3, (3, 1, 1), {"target": 2})
    memory.rewrite("target", torch.tensor([2, 0]), torch.tensor([[1.0, 2.0], [float("nan"), 5.0]]))
    assert memory.get_buffer("field_target").tolist() == [[0, 0], [0, 0], [1, 2]]


def test_equal_keeps_the_same_number_of_each_task_however_many_follow() -> None:
    memory = Equal(20, (3, 2, 2))
    sizes = [50, 4, 30, 17, 200]
    expected = [[20], [16, 4], [8, 4, 8], [5, 4, 5, 6], [4, 4, 4, 4, 4]]
    for task, (count, counts) in enumerate(zip(sizes, expected)):
        before = memory.source[: memory.filled].clone()
        rows, slots = memory.admit(count, generator(0, "test", task))
        assert len(rows) == len(slots) == len(rows.unique()) == len(slots.unique())
        images = torch.full((len(rows), 3, 2, 2), task, dtype=torch.uint8)
        memory.write(slots, images, 1000 * task + rows, task, step=0)
        memory.advance(len(rows))
        assert memory.filled == 20 and memory.task.bincount(minlength=task + 1).tolist() == counts
        assert (memory.images[:, 0, 0, 0] == memory.task).all()
        kept = memory.source[memory.task < task]
        assert set(kept.tolist()) <= set(before.tolist()), "those that are left were there before"
        again = memory.admit(count, generator(1, "test", task))
        assert all((x == y).all() for x, y in zip(again, memory.admit(count, generator(1, "test", task))))


def test_equal_takes_everything_as_long_as_there_is_room() -> None:
    memory = Equal(20, (3, 2, 2))
    for task, count in enumerate((6, 8)):
        rows, slots = memory.admit(count, generator(0, "test", task))
        assert sorted(rows.tolist()) == [*range(count)] and slots.tolist() == [*range(6 * task, 6 * task + count)]
        memory.write(slots, torch.zeros(count, 3, 2, 2, dtype=torch.uint8), rows, task, step=0)
        memory.advance(len(rows))
    assert memory.filled == 14
