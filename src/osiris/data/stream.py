"""Streams: all training images in one order, instead of tasks one after the other.

    ordered(benchmark, "blurred:0.3", seed)      # the benchmark with an `order`

An order is a function of tasks, labels, options and a seed. Labels serve only to make it where its definition needs
classes; the learner sees neither them nor where a task begins. Every image comes at most once, except in `repetition`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from osiris.data.benchmark import Benchmark, Order
from osiris.errors import UserError, unknown
from osiris.randomness import generator

Numbers = tuple[float, ...]
Rows = tuple[list[Tensor], bool]
"""The rows of each part, and whether the border between two parts is one between tasks."""


@dataclass(frozen=True)
class Given:
    """What an order is made of."""

    task: Tensor
    """int64 [N]"""
    tasks: int
    label: Tensor | None
    random: torch.Generator

    def of_task(self, task: int) -> Tensor:
        return (self.task == task).nonzero().squeeze(1)

    def of_classes(self, classes: Sequence[int]) -> Tensor:
        assert self.label is not None
        return torch.isin(self.label, torch.tensor(list(classes), dtype=torch.int64)).nonzero().squeeze(1)

    def shuffled(self, rows: Tensor) -> Tensor:
        return rows[torch.randperm(len(rows), generator=self.random)]

    def uniform(self, *shape: int) -> Tensor:
        return torch.rand(*shape, generator=self.random, dtype=torch.float64)

    def cuts(self, total: int, parts: int) -> list[int]:
        """`total` in parts of random sizes, which may be 0: uniform cut points with replacement, sorted."""
        if total == 0:
            return [0] * parts
        points = torch.randint(total, (parts - 1,), generator=self.random).sort().values.tolist()
        return [end - start for start, end in zip([0, *points], [*points, total])]

    def classes(self) -> list[int]:
        """All classes in a random order."""
        assert self.label is not None
        return self.shuffled(self.label.unique()).tolist()


def hard(given: Given) -> Rows:
    """One task after the other, shuffled within each."""
    return [given.shuffled(given.of_task(task)) for task in range(given.tasks)], True


def shuffled(given: Given) -> Rows:
    return [given.shuffled(torch.arange(len(given.task)))], False


def blurred(given: Given, share: float) -> Rows:
    """A linear ramp from each task to the next one, which covers `share` of the smaller of the two.

    An image of the hard order moves by up to w, uniformly, where w is half of that, at the nearer border. Then the
    share of the next task at a distance y < w before the border is 1/2 (1 - y / w), if tasks are equally large.
    """
    parts = [part for part in hard(given)[0] if len(part)]
    sizes = [len(part) for part in parts]
    rows, border = torch.cat(parts), torch.tensor([*accumulate(sizes)][:-1], dtype=torch.float64)
    if not len(border):
        return parts, True
    width = torch.tensor([share * min(pair) / 2 for pair in pairwise(sizes)], dtype=torch.float64)
    place = torch.arange(len(rows), dtype=torch.float64) + 0.5
    after = torch.searchsorted(border, place).clamp(max=len(border) - 1)
    before = (after - 1).clamp(min=0)
    nearest = torch.where((place - border[before]).abs() <= (border[after] - place).abs(), before, after)
    key = place + (2 * given.uniform(len(rows)) - 1) * width[nearest]
    return list(rows[key.argsort(stable=True)].split(sizes)), True


def zones(given: Given, width: float) -> Rows:
    """The last and the first `width` images on both sides of a border are shuffled together (CLIMB)."""
    parts = [part for part in hard(given)[0] if len(part)]
    for left, right in pairwise(range(len(parts))):
        reach = min(int(width), len(parts[left]) // 2, len(parts[right]) // 2)
        if reach:
            mixed = given.shuffled(torch.cat([parts[left][-reach:], parts[right][:reach]]))
            parts[left] = torch.cat([parts[left][:-reach], mixed[:reach]])
            parts[right] = torch.cat([mixed[reach:], parts[right][reach:]])
    return parts, True


def irregular(given: Given) -> Rows:
    """As many tasks, of random numbers of classes: proportional to U(0, 1), at least one (CLIMB)."""
    classes, share = given.classes(), given.uniform(given.tasks)
    if len(classes) < given.tasks:
        raise UserError(f"--stream irregular: {len(classes)} classes are too few for {given.tasks} tasks.")
    sizes = (len(classes) * share / share.sum()).long().clamp(min=1).tolist()
    while sum(sizes) != len(classes):
        for task in range(len(sizes)):
            step = (sum(sizes) < len(classes)) - (sum(sizes) > len(classes))
            sizes[task] = max(1, sizes[task] + step)
    ends = [0, *accumulate(sizes)]
    return [given.shuffled(given.of_classes(classes[a:b])) for a, b in pairwise(ends)], True


def recurring(given: Given, rounds: float) -> Rows:
    """Each task comes back: its images are cut into as many parts, and each round visits all tasks in random order."""
    count, order, visits = int(rounds), list[int](), [given.of_task(task) for task in range(given.tasks)]
    pieces = [given.shuffled(rows).tensor_split(count) for rows in visits]
    parts = []
    for turn in range(count):
        following = torch.randperm(given.tasks, generator=given.random).tolist()
        if order and given.tasks > 1 and following[0] == order[-1]:
            following = [*following[1:], following[0]]
        order += following
        parts += [pieces[task][turn] for task in following]
    return parts, True


def runs(given: Given, length: float) -> Rows:
    """Runs of images of one class, of geometric length with this mean: neighbours are false negatives."""
    assert given.label is not None
    left = [given.shuffled((given.label == one).nonzero().squeeze(1)).tolist() for one in given.label.unique()]
    rows: list[int] = []
    while any(left):
        sizes = torch.tensor([len(one) for one in left], dtype=torch.float64)
        chosen = left[int(torch.multinomial(sizes, 1, generator=given.random))]
        drawn = 1 - float(given.uniform(1))  # above 0
        count = 1 if length <= 1 else 1 + int(torch.tensor(drawn).log() / torch.tensor(1 - 1 / length).log())
        rows += chosen[-count:]
        del chosen[-count:]
    return [torch.tensor(rows)], False


def _groups(given: Given, disjoint_percent: float, stochastic: bool) -> tuple[list[list[int]], list[list[int]]]:
    """Disjoint and blurry classes of each task."""
    classes, tasks = given.classes(), given.tasks
    disjoint = int(len(classes) * disjoint_percent // 100) // tasks * tasks
    blurry = (len(classes) - disjoint) // tasks * tasks
    if disjoint + blurry == 0:
        raise UserError(f"--stream: {len(classes)} classes are too few for {tasks} tasks of some classes each.")

    def dealt(chosen: list[int]) -> list[list[int]]:
        sizes = given.cuts(len(chosen), tasks) if stochastic else [len(chosen) // tasks] * tasks
        ends = [0, *accumulate(sizes)]
        return [chosen[start:end] for start, end in pairwise(ends)]

    return dealt(classes[:disjoint]), dealt(classes[disjoint : disjoint + blurry])


def i_blurry(given: Given, disjoint_percent: float, wandering_percent: float) -> Rows:
    """Of N percent of the classes each belongs to one task; M percent of the images of the others go to any task."""
    disjoint, blurry = _groups(given, disjoint_percent, stochastic=False)
    staying, pool = [], []
    for classes in blurry:
        rows = given.shuffled(given.of_classes(classes))
        moving = round(len(rows) * wandering_percent / 100)
        staying.append(rows[moving:])
        pool.append(rows[:moving])
    shares = given.shuffled(torch.cat(pool)).tensor_split(given.tasks)
    parts = zip(disjoint, staying, shares)
    return [given.shuffled(torch.cat([given.of_classes(own), stay, come])) for own, stay, come in parts], True


def si_blurry(given: Given, disjoint_percent: float, wandering_percent: float) -> Rows:
    """The same with random numbers of classes and of wandering images in each task; empty tasks are left out."""
    disjoint, blurry = _groups(given, disjoint_percent, stochastic=True)
    members = [given.shuffled(given.of_classes(classes)) for classes in blurry]
    shares = given.cuts(int(wandering_percent / 100 * sum(map(len, members))), given.tasks)
    pool = given.shuffled(torch.cat([rows[:share] for rows, share in zip(members, shares)]))
    parts, start = [], 0
    for own, rows, share in zip(disjoint, members, shares):
        come = pool[start : start + share]
        parts.append(given.shuffled(torch.cat([given.of_classes(own), rows[share:], come])))
        start += share
    return parts, True


def repetition(given: Given, count: float, size: float, first: float, again: float) -> Rows:
    """Experiences in which classes come back (CIR, sampling): the first time with P(e) proportional to p (1 - p)^e,
    then each time with the probability r. Images are drawn anew for each."""
    count, size = int(count), int(size)
    weight = first * (1 - first) ** torch.arange(count, dtype=torch.float64)
    classes = given.classes()
    births = torch.multinomial(weight, len(classes), replacement=True, generator=given.random)
    present = given.uniform(len(classes), count) < again
    times = torch.arange(count)
    present = (present & (times > births[:, None])) | (times == births[:, None])
    parts = []
    for time in range(count):
        here = given.shuffled(present[:, time].nonzero().squeeze(1)).tolist()
        if not here:
            continue
        each, more = divmod(size, len(here))
        members = [given.shuffled(given.of_classes([classes[one]])) for one in here]
        taken = [rows[: each + (at < more)] for at, rows in enumerate(members)]
        parts.append(given.shuffled(torch.cat(taken)))
    return [part for part in parts if len(part)], True


def slots(given: Given, count: float, each: float) -> Rows:
    """Experiences of K classes (CIR, slots): each class is cut into slots of equal size, and every image comes once."""
    count, each = int(count), int(each)
    classes = given.classes()
    if count * each < len(classes):
        raise UserError(f"--stream slots: {count} x {each} slots are fewer than the {len(classes)} classes.")
    number, more = divmod(count * each, len(classes))
    left: dict[int, list[Tensor]] = {}
    for at, label in enumerate(classes):
        rows, pieces = given.shuffled(given.of_classes([label])), number + (at < more)
        size = len(rows) // pieces
        left[label] = [rows[piece * size : (piece + 1) * size] for piece in range(pieces)]
    parts = []
    for _ in range(count):  # from the last experience backwards
        free = [label for label, pieces in left.items() if pieces]
        chosen = [free[at] for at in torch.randperm(len(free), generator=given.random).tolist()][:each]
        drawn = [_taken(left[label], given) for label in chosen]
        while len(drawn) < each:
            label = next(label for label, pieces in left.items() if pieces)
            drawn.append(_taken(left[label], given))
        parts.append(given.shuffled(torch.cat(drawn)))
    return parts[::-1], True


def _taken(pieces: list[Tensor], given: Given) -> Tensor:
    return pieces.pop(int(torch.randint(len(pieces), (1,), generator=given.random)))


@dataclass(frozen=True)
class Kind:
    """An order by its name on the command line."""

    make: Callable[..., Rows] | None
    """None: the order in which the images were recorded, or that of their names."""
    form: str
    limits: tuple[tuple[float, float], ...] = ()
    """The range of each number."""
    labels: bool = False
    """Whether its definition needs classes."""


MANY = 1e9
KINDS: dict[str, Kind] = {
    "tasks": Kind(hard, "tasks"),
    "blurred": Kind(blurred, "blurred:SHARE", ((0, 1),)),
    "zones": Kind(zones, "zones:IMAGES", ((1, MANY),)),
    "irregular": Kind(irregular, "irregular", labels=True),
    "recurring": Kind(recurring, "recurring:ROUNDS", ((1, 10_000),)),
    "i-blurry": Kind(i_blurry, "i-blurry:DISJOINT:WANDERING", ((0, 100), (0, 100)), labels=True),
    "si-blurry": Kind(si_blurry, "si-blurry:DISJOINT:WANDERING", ((0, 100), (0, 100)), labels=True),
    "runs": Kind(runs, "runs:LENGTH", ((1, MANY),), labels=True),
    "repetition": Kind(
        repetition, "repetition:EXPERIENCES:IMAGES:FIRST:AGAIN", ((1, 1e5), (1, MANY), (1e-4, 1), (0, 1)), labels=True
    ),
    "slots": Kind(slots, "slots:EXPERIENCES:CLASSES", ((1, 1e5), (1, 1e6)), labels=True),
    "shuffled": Kind(shuffled, "shuffled"),
    "time": Kind(None, "time"),
    "name": Kind(None, "name"),
}


def parse(text: str) -> tuple[str, Numbers]:
    """`si-blurry:50:10` -> (`si-blurry`, (50, 10))."""
    name, *given = text.split(":")
    if name not in KINDS:
        raise unknown("stream", name, KINDS)
    kind = KINDS[name]
    try:
        numbers = tuple(map(float, given))
    except ValueError:
        numbers = ()
    fits = len(numbers) == len(kind.limits) == len(given)
    if not fits or not all(low <= number <= high for number, (low, high) in zip(numbers, kind.limits)):
        ranges = " and ".join(f"{low:g} to {high:g}" for low, high in kind.limits)
        raise UserError(f"--stream {text}: write {kind.form}{f' with numbers from {ranges}' if ranges else ''}.")
    return name, numbers


def ordered(benchmark: Benchmark, text: str, seed: int = 0, place: Tensor | None = None) -> Benchmark:
    """The benchmark as one stream. `place`: where each training image belongs in time (or by name); None: the order of
    the data set."""
    name, numbers = parse(text)
    kind, train = KINDS[name], benchmark.train
    if kind.labels and train.label is None:
        others = ", ".join(form.form for form in KINDS.values() if not form.labels)
        raise UserError(f"--stream {name} is made of classes, and {benchmark.name} has no labels. Use {others}.")
    if kind.make is None:
        key = torch.arange(len(train)) if place is None else place
        rows = key.argsort(stable=True)
        sizes = torch.unique_consecutive(train.task[rows], return_counts=True)[1].tolist()
        parts, borders = list(rows.split(sizes)), len(sizes) == benchmark.task_count > 1
    else:
        random = generator(seed, f"stream.{text}")
        parts, borders = kind.make(Given(train.task, benchmark.task_count, train.label, random), *numbers)
    parts = [part for part in parts if len(part)]
    rows = torch.cat(parts)
    starts = tuple(accumulate(map(len, parts)))[:-1] if borders else ()
    digest = hashlib.sha256(f"{benchmark.checksum} {text} {starts}".encode() + rows.numpy().tobytes())
    never = len(train) - len(rows.unique())
    notices = [f"{never:,} of {len(train):,} training images never come in --stream {text}."] * bool(never)
    return replace(
        benchmark,
        order=Order(text, rows, starts),
        checksum=digest.hexdigest(),
        notices=(*benchmark.notices, *notices),
    )
