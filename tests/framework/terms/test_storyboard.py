"""Memory Storyboard against plain loops: the cuts, the loss, the labels of frames, and its short memory."""

import copy
import math
from itertools import pairwise
from typing import Any

import pytest
import torch

from osiris.data.stream import ordered
from osiris.framework import losses
from osiris.framework.terms import TaskContext
from osiris.framework.terms.storyboard import Storyboard, change_points
from osiris.randomness import generator
from osiris.runs.state import digest
from tiny import composed, situation, tiny_benchmark, tiny_engine


def unit(*shape: int, seed: int = 0) -> torch.Tensor:
    vectors = torch.randn(*shape, generator=generator(seed, "test"), dtype=torch.float64)
    return torch.nn.functional.normalize(vectors, dim=-1)


def naive_cuts(features: torch.Tensor, count: int) -> list[int]:
    """Every candidate, every block, one sum after the other."""
    size, chosen = len(features), list[int]()
    similarity = [[float(a @ b) for b in features] for a in features]
    for _ in range(count - 1):
        best, place = -math.inf, None
        for candidate in range(1, size - 1):
            if candidate in chosen:
                continue
            edges = [0, *sorted([*chosen, candidate]), size]
            score = 0.0
            for start, end in pairwise(edges):
                score += sum(similarity[i][j] for i in range(start, end) for j in range(start, end)) / (end - start)
            if score > best + 1e-9:
                best, place = score, candidate
        if place is None:
            break
        chosen.append(place)
    return chosen


@pytest.mark.parametrize(("size", "count"), [(3, 2), (4, 4), (12, 1), (24, 5), (30, 3), (5, 9)])
def test_cuts_are_those_of_every_candidate(size: int, count: int) -> None:
    for seed in range(5):
        features = unit(size, 4, seed=seed)
        assert change_points(features, count) == naive_cuts(features, count)


def test_scenes_are_found() -> None:
    centres = unit(4, 16)
    lengths = [20, 9, 30, 15]
    noisy = torch.cat([centre + 0.1 * unit(n, 16, seed=n) for centre, n in zip(centres, lengths)])
    assert sorted(change_points(torch.nn.functional.normalize(noisy, dim=1), 4)) == [20, 29, 59]


@pytest.mark.parametrize("frames", [1, 2])
def test_too_few_frames_have_no_cut(frames: int) -> None:
    assert change_points(unit(frames, 4), 3) == []


@pytest.mark.parametrize("label", [[0, 0, 1, 2, 1], [0, 0, 0, 0, 0], [4, 3, 2, 1, 0]])
def test_the_loss_is_that_of_a_plain_loop(label: list[int]) -> None:
    z = unit(2, 5, 6).requires_grad_()
    value = losses.temporal_class(z, torch.tensor(label), 0.2)
    anchors, labels = torch.cat([z[0], z[1]]), label + label
    terms = []
    for a in range(10):
        below = sum(math.e ** (anchors[a] @ anchors[j] / 0.2) for j in range(10) if j != a)
        positives = [p for p in range(10) if p != a and labels[p] == labels[a]]
        parts = [-torch.log(torch.exp(anchors[a] @ anchors[p] / 0.2) / below) for p in positives]
        terms.append(sum(parts) / len(parts))
    naive = torch.stack(terms).mean()
    torch.testing.assert_close(value, naive, rtol=1e-12, atol=1e-12)
    (given,), (wanted,) = torch.autograd.grad(value, z), torch.autograd.grad(naive, z)
    torch.testing.assert_close(given, wanted, rtol=1e-10, atol=1e-12)


def test_with_a_label_for_each_image_it_is_nt_xent() -> None:
    z = unit(2, 7, 6)
    torch.testing.assert_close(losses.temporal_class(z, torch.arange(7)), losses.contrast(z), rtol=1e-12, atol=1e-12)


def attached(**options: int) -> Storyboard:
    term = Storyboard(**options)
    term.attach(situation("ft").networks, 0)
    return term


def naive_fifo(frames: int, span: int, stride: int) -> list[int]:
    held: list[int] = []
    for frame in range(frames):
        if frame % stride == 0:
            held = [*held, frame][-(span // stride) :]
    return held


@pytest.mark.parametrize("head", [0, 3, 4, 19, 40, 41, 99])
def test_the_short_memory_is_a_fifo_of_every_fourth_frame(head: int) -> None:
    term = attached(span=40, stride=4)
    assert term.short(head).tolist() == naive_fifo(head + 1, 40, 4)


def test_labels_of_frames_after_segmentations() -> None:
    """Against a list with a label for each frame, which is rewritten as frames come."""
    term = attached(span=40, stride=4, length=10)
    features = {}
    for scene in range(40):
        for frame in range(scene * 7, scene * 7 + 7):
            features[frame] = unit(16, seed=scene) + 0.05 * unit(16, seed=1000 + frame)
    naive, done = [frame // 10 for frame in range(280)], 0
    following = 0
    context = TaskContext(None, None, 0, 0, 1, 1, stream=True)  # pyright: ignore
    context.frames = lambda frames: torch.stack([features[int(frame)] for frame in frames])
    for head in range(3, 280, 4):
        context.seen = head + 1
        term.after_step(context)
        held = naive_fifo(head + 1, 40, 4)
        if head >= 40 and held[0] // 10 >= following:
            count = held[-1] // 10 - held[0] // 10 + 1
            cuts = [held[c] for c in sorted(naive_cuts(torch.stack([features[f] for f in held]), count))]
            for frame in range(held[0], head + 1):
                naive[frame] = held[0] // 10 + sum(cut <= frame for cut in cuts)
            following, done = head // 10, done + 1
        assert term.labels(torch.arange(280)).tolist() == naive
    assert done >= 4


def test_a_later_first_segmentation() -> None:
    early, late = attached(span=40, stride=4, length=10), attached(span=40, stride=4, length=10, segment_after=9)
    context = TaskContext(None, None, 0, 0, 1, 1, stream=True)  # pyright: ignore
    context.frames = lambda frames: torch.stack([unit(16, seed=int(frame) // 7) for frame in frames])
    for seen in range(4, 121, 4):
        context.seen = seen
        early.after_step(context)
        late.after_step(context)
    assert early.marks and not late.marks
    for seen in range(124, 181, 4):
        context.seen = seen
        late.after_step(context)
    assert late.marks[0][0] >= 90


def test_in_a_stream_x_comes_from_the_short_memory_and_resuming_is_exact() -> None:
    method = composed("storyboard(span=24,stride=2,length=6)", replay=6)
    data = ordered(tiny_benchmark(3, 40), "tasks")
    options: dict[str, Any] = {"epochs": 1, "batch_size": 4, "memory_size": 12}
    engine, (episode,) = tiny_engine(method, benchmark=data, **options)
    engine.begin(episode)
    for step in range(episode.steps):
        positions = torch.arange(4 * step, 4 * step + 4)
        held = engine.model.short.short(4 * step + 3)  # pyright: ignore
        x = engine._learned(episode, positions, step)
        assert x.tolist() == positions.tolist() if len(held) < 4 else set(x.tolist()) <= set(held.tolist())
        other, _ = tiny_engine(method, benchmark=data, **options)
        other.restore(copy.deepcopy(engine.state()))
        engine.step(episode, step)
        other.step(episode, step)
        assert digest(engine.state()) == digest(other.state())
    budget = engine.budget(episode, episode.steps, 0)
    assert budget.cuts and engine.memory.offers == 120
    assert budget.memory_bytes == 12 * (3 * 64 + 24) + 12 * 3 * 64
