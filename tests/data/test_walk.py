"""The film: the same frames whatever part is rendered, stations of the right classes, neighbours alike."""

import hashlib
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from osiris.data.config import BenchmarkConfig
from osiris.data.load import load_benchmark
from osiris.data.tinyworld import TASKS
from osiris.data.tinyworld.walk import nearest_stations, render_walk, stations, walk_labels


def test_a_part_and_a_longer_film_have_the_same_frames() -> None:
    whole = render_walk(260)
    assert (render_walk(260, start=100, end=200) == whole[100:200]).all()
    assert (render_walk(1500, start=0, end=150) == whole[:150]).all()


def test_the_frames_are_these() -> None:
    """Other pixels need another VERSION, because results are known by it."""
    digest = hashlib.sha256(render_walk(64).tobytes()).hexdigest()
    assert digest == "7360858925a7319579bad1e2f60f611033c461206d492c30fef95b9e1bce1212"


def test_stations_follow_each_other_without_gaps() -> None:
    for ordered in (False, True):
        made = stations(5000, ordered)
        assert made[0].start == 0 and made[-1].end == 5000
        assert all(one.end == other.start for one, other in pairwise(made))
        assert [one.number for one in made] == list(range(len(made)))
        assert all(one.stay <= 160 for one in made) and np.mean([one.stay for one in made]) > 35
        same = [one for one, other in pairwise(made) if one.block == other.block and one.label == other.label]
        assert not same or ordered
        assert any(one.look != one.number for one in made), "places are revisited"


def test_the_ordered_film_shows_task_after_task() -> None:
    label = walk_labels(2000, ordered=True)
    for task, labels in enumerate(TASKS):
        assert set(label[task * 200 : (task + 1) * 200]) <= set(labels)


def test_neighbours_are_alike_and_distant_frames_are_not() -> None:
    pixels = render_walk(600).reshape(600, -1).astype(float)
    pixels -= pixels.mean(0)
    pixels /= np.linalg.norm(pixels, axis=1, keepdims=True)
    near, far = (float((pixels[step:] * pixels[:-step]).sum(1).mean()) for step in (1, 256))
    assert near > 0.6 and far < 0.2
    label = walk_labels(600)
    assert (label[1:] == label[:-1]).mean() > 0.95
    assert (nearest_stations(600)[:-1] <= nearest_stations(600)[1:]).all()


def test_as_a_benchmark_bank_and_test_are_stills() -> None:
    stills = load_benchmark(BenchmarkConfig("tinyworld", train_per_class=6, bank_per_class=6, test_per_class=4))
    few: dict[str, Any] = {"train_per_class": 6, "bank_per_class": 6, "test_per_class": 4, "frames": 120}
    film = load_benchmark(BenchmarkConfig("walk", **few))
    assert len(film.train) == 120 and film.order is not None and film.order.rows.tolist() == list(range(120))
    assert film.test is not None and stills.test is not None
    every = torch.arange(len(stills.test))
    assert torch.equal(film.test.images.take(every), stills.test.images.take(every))
    assert film.train.label is not None and film.train.label.tolist() == walk_labels(120).tolist()
    mixed = load_benchmark(BenchmarkConfig("walk:shuffled", **few))
    assert mixed.order is not None and sorted(mixed.order.rows.tolist()) == list(range(120))
    assert len({film.checksum, mixed.checksum, stills.checksum}) == 3
