"""Orders of streams: what each promises, against plain loops; and refusals."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from osiris.data.benchmark import Benchmark
from osiris.data.config import BenchmarkConfig
from osiris.data.load import load_benchmark
from osiris.data.stream import KINDS, ordered, parse
from osiris.errors import UserError
from tiny import tiny_benchmark

EACH = {
    "tasks": "tasks",
    "blurred": "blurred:0.5",
    "zones": "zones:10",
    "irregular": "irregular",
    "recurring": "recurring:3",
    "i-blurry": "i-blurry:50:20",
    "si-blurry": "si-blurry:50:20",
    "runs": "runs:8",
    "repetition": "repetition:20:30:0.2:0.3",
    "slots": "slots:10:4",
    "shuffled": "shuffled",
    "time": "time",
    "name": "name",
}


def benchmark(tasks: int = 5, per_task: int = 200, classes: int = 4) -> Benchmark:
    """Tasks of some classes each."""
    plain = tiny_benchmark(tasks, per_task)
    label = plain.train.task * classes + torch.arange(tasks * per_task) % classes
    return replace(
        plain,
        train=replace(plain.train, label=label),
        class_names=tuple(map(str, range(tasks * classes))),
        tasks=tuple(tuple(range(task * classes, (task + 1) * classes)) for task in range(tasks)),
    )


def rows_of(data: Benchmark) -> list[int]:
    assert data.order is not None
    return data.order.rows.tolist()


def tasks_of(data: Benchmark) -> list[int]:
    assert data.order is not None
    return data.train.task[data.order.rows].tolist()


def test_every_order_has_a_case() -> None:
    assert EACH.keys() == KINDS.keys()


@pytest.mark.parametrize("text", EACH.values())
def test_an_order_depends_on_its_seed_alone_and_changes_the_checksum(text: str) -> None:
    data = benchmark()
    one, same, other = ordered(data, text), ordered(data, text), ordered(data, text, seed=1)
    assert rows_of(one) == rows_of(same) and one.checksum == same.checksum != data.checksum
    keyed = text not in ("time", "name")
    assert (rows_of(one) != rows_of(other)) == keyed == (one.checksum != other.checksum)
    if not text.startswith("repetition"):
        assert len(set(rows_of(one))) == len(rows_of(one)), "every image at most once"


@pytest.mark.parametrize("text", ["tasks", "blurred:0.5", "zones:10", "recurring:3", "shuffled", "runs:8", "irregular"])
def test_these_use_every_image(text: str) -> None:
    assert sorted(rows_of(ordered(benchmark(), text))) == list(range(1000))


def test_hard_tasks_follow_each_other() -> None:
    data = ordered(benchmark(), "tasks")
    assert tasks_of(data) == sorted(tasks_of(data)) and data.order is not None
    assert data.order.starts == (200, 400, 600, 800)
    assert tasks_of(ordered(benchmark(), "blurred:0")) == sorted(tasks_of(data))


@pytest.mark.parametrize("share", [0.3, 1.0])
def test_the_ramp_is_linear(share: float) -> None:
    """The share of the next task at a distance y before a border is 1/2 (1 - y / w)."""
    large, counts = benchmark(3, 2000), np.zeros(3 * 2000)
    for seed in range(20):
        counts += np.array(tasks_of(ordered(large, f"blurred:{share}", seed))) >= 1
    measured, w, border = counts / 20, share * 2000 / 2, 2000
    place = np.arange(6000) + 0.5
    before = np.clip((1 - (border - place) / w) / 2, 0, 1)
    expected = np.where(place < border, before, np.where(place - border < w, (1 + (place - border) / w) / 2, 1))
    windows = lambda values: values.reshape(-1, 200).mean(1)  # noqa: E731
    assert abs(windows(measured) - windows(expected)).max() < 0.03
    tasks = np.array(tasks_of(ordered(large, f"blurred:{share}")))
    assert abs((tasks[2000:4000] != 1).mean() - share / 4) < 0.03, "a quarter of the share is foreign in an inner task"
    assert (tasks[:500] == 0).all() and (tasks[-500:] == 2).all(), "the stream begins and ends pure"


def test_zones_mix_both_sides_of_a_border_and_nothing_else() -> None:
    tasks = tasks_of(ordered(benchmark(), "zones:50"))
    for task in range(5):
        inner = tasks[task * 200 + 50 * (task > 0) : (task + 1) * 200 - 50 * (task < 4)]
        assert set(inner) == {task}
    mixed = tasks[150:250]
    assert sorted(mixed) == [0] * 50 + [1] * 50 and mixed != sorted(mixed)


def test_irregular_tasks_hold_all_classes_and_none_is_empty() -> None:
    for seed in range(30):
        data = ordered(benchmark(), "irregular", seed)
        assert data.order is not None and data.train.label is not None
        sizes = np.diff([0, *data.order.starts, 1000])
        assert len(sizes) == 5 and sizes.min() >= 50 and (sizes % 50 == 0).all()


def test_recurring_tasks_come_once_a_round() -> None:
    data = ordered(benchmark(), "recurring:4")
    assert data.order is not None
    visits = [tasks_of(data)[start] for start in (0, *data.order.starts)]
    assert len(visits) == 20
    assert all(sorted(visits[start : start + 5]) == list(range(5)) for start in range(0, 20, 5))
    assert all(one != other for one, other in pairwise(visits))


def test_runs_have_the_geometric_length_that_was_asked_for() -> None:
    """P(next label = label) = 1 - 1/m + (1/m) / C, while all classes have images left."""
    data = ordered(benchmark(5, 2000), "runs:10")
    assert data.train.label is not None and data.order is not None
    label = data.train.label[data.order.rows][:4000]
    assert abs(float((label[1:] == label[:-1]).double().mean()) - (0.9 + 0.1 / 20)) < 0.015


def test_i_blurry_disjoint_classes_stay_and_blurry_ones_wander() -> None:
    data = benchmark(5, 2000)
    stream = ordered(data, "i-blurry:50:30")
    assert stream.order is not None and data.train.label is not None
    label = data.train.label[stream.order.rows].numpy()
    part = np.searchsorted(stream.order.starts, np.arange(len(label)), side="right")
    share = np.array([np.bincount(part[label == one], minlength=5) / (label == one).sum() for one in range(20)])
    disjoint = (share == 1).any(1)
    assert disjoint.sum() == 10 and (np.bincount(share[disjoint].argmax(1)) == 2).all()
    blurry = share[~disjoint]
    assert abs(blurry.max(1).mean() - (1 - 0.3 + 0.3 / 5)) < 0.02
    assert abs(np.sort(blurry, 1)[:, :-1].mean() - 0.3 / 5) < 0.01
    everything = ordered(data, "i-blurry:100:0")
    assert everything.order is not None and len(everything.order.rows) == 10_000


def test_si_blurry_has_random_numbers_of_classes() -> None:
    sizes = set()
    for seed in range(10):
        order = ordered(benchmark(), "si-blurry:50:20", seed).order
        assert order is not None
        sizes.add(tuple(np.diff([0, *order.starts, len(order.rows)])))
    assert len(sizes) == 10


def test_repetition_draws_again_and_slots_do_not() -> None:
    again = ordered(benchmark(), "repetition:30:100:0.2:0.5")
    assert len(set(rows_of(again))) < len(rows_of(again))
    once = ordered(benchmark(), "slots:10:4")
    assert len(rows_of(once)) == 1000 and once.order is not None and len(once.order.starts) == 9
    assert once.train.label is not None
    first = once.train.label[once.order.rows[-100:]]
    assert len(first.unique()) == 4


def test_what_is_left_out_is_said() -> None:
    assert "never come" in ordered(benchmark(), "repetition:2:10:0.5:0.5").notices[-1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("blured:0.3", "Did you mean 'blurred'"),
        ("blurred", "write blurred:SHARE"),
        ("blurred:2", "from 0 to 1"),
        ("blurred:nan", "from 0 to 1"),
        ("tasks:3", "write tasks"),
        ("i-blurry:50", "write i-blurry:DISJOINT:WANDERING"),
        ("recurring:0", "1 to 10000"),
    ],
)
def test_a_wrong_order_says_what_to_write(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse(text)


def test_orders_of_classes_need_labels_and_the_others_do_not() -> None:
    data = benchmark()
    blind = replace(data, train=replace(data.train, label=None), class_names=())
    for text in EACH.values():
        if KINDS[parse(text)[0]].labels:
            with pytest.raises(UserError, match=r"has no labels. Use tasks"):
                ordered(blind, text)
        elif text not in ("time", "name"):
            assert rows_of(ordered(blind, text)) == rows_of(ordered(data, text))


def test_a_stream_of_one_image() -> None:
    assert rows_of(ordered(tiny_benchmark(1, 1), "shuffled")) == [0]
    assert rows_of(ordered(tiny_benchmark(1, 1), "blurred:0.5")) == [0]


def photo(path: Path, taken: str | None, grey: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    image, exif = Image.new("RGB", (16, 16), (grey, grey, grey)), Image.Exif()
    if taken is not None:
        exif[306] = "2000:01:01 00:00:00"  # when the file was changed: less reliable
        exif.get_ifd(0x8769)[36867] = taken
    image.save(path, exif=exif)


def test_own_photos_in_the_order_of_time_and_of_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OSIRIS_CACHE", str(tmp_path / "cache"))
    root = tmp_path / "photos"
    photo(root / "b" / "img10.png", "2026:01:01 10:00:00", 10)
    photo(root / "a" / "img2.png", "2026:01:01 09:00:00", 20)
    photo(root / "b" / "img9.png", "2026:01:01 08:00:00", 30)
    photo(root / "a" / "img1.png", None, 40)  # the time of its file: now
    found = {}
    for text in ("time", "name"):
        data = load_benchmark(BenchmarkConfig(f"folder:{root}", stream=text))
        assert data.order is not None
        found[text] = data.train.images.take(data.order.rows)[:, 0, 0, 0].tolist()
        assert data.order.starts == ((2,) if text == "name" else ())
    assert found == {"time": [30, 20, 10, 40], "name": [40, 20, 30, 10]}
    notices = load_benchmark(BenchmarkConfig(f"folder:{root}", stream="time")).notices
    assert "1 of 4 images do not say when they were taken" in notices[-1]
