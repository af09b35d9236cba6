"""Hyper-parameter search: trials spread over ranges, and successive halving by the accuracy after a few tasks.

The trials never see a test image: they are evaluated on a fifth of the training images, which they do not learn from.
Half of them stop after a few tasks, half of the others after twice as many, and so on; the best ones are trained to
their end. A trial that goes on continues its run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from osiris.config import Config
from osiris.data.load import load_benchmark
from osiris.errors import UserError
from osiris.evaluation.statistics import mean
from osiris.files import write_csv
from osiris.framework.composition import resolve
from osiris.grids.attempts import status_of
from osiris.grids.grid import Grid, GridDirectory, GridRun, Settings
from osiris.grids.journal import drop
from osiris.grids.plan import sizes_of

FEWEST_TASKS = 2
"""In its first task every method is ft, so it says nothing about most options."""


@dataclass(frozen=True)
class Range:
    """The values of one option that a search tries."""

    option: str
    choices: tuple[str, ...] = ()
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    integer: bool = False

    def value(self, position: float) -> str:
        """As text, for a position from 0 to 1 in the range."""
        if self.choices:
            return self.choices[min(int(position * len(self.choices)), len(self.choices) - 1)]
        if self.log:
            number = math.exp(math.log(self.low) + position * (math.log(self.high) - math.log(self.low)))
        else:
            number = self.low + position * (self.high - self.low)
        return str(round(number)) if self.integer else f"{number:.3g}"


def parse_range(text: str) -> Range:
    """`learning_rate=0.01..0.3:log`, `memory_size=100..500`, `norm=gn,bn`. Whole numbers at both ends stay whole."""
    option, equals, values = text.partition("=")
    option = option.strip().replace("-", "_")
    bounds, _, scale = values.partition(":")
    low, dots, high = bounds.partition("..")
    if equals and values and not dots:
        return Range(option, choices=tuple(value.strip() for value in values.split(",")))
    try:
        parsed = Range(option, (), float(low), float(high), scale == "log", low.strip().isdigit() and high.isdigit())
    except ValueError:
        parsed = None
    if parsed is None or scale not in ("", "log") or not parsed.low < parsed.high or (parsed.log and parsed.low <= 0):
        raise UserError(
            f"--search {text}: write NAME=LOW..HIGH, NAME=LOW..HIGH:log with LOW above 0, or NAME=VALUE,VALUE; for "
            "example --search learning_rate=0.01..0.3:log."
        )
    return parsed


def spread_trials(ranges: Sequence[Range], trials: int) -> list[Settings]:
    """Settings of the trials: a Latin hypercube, so that each option is tried evenly. Always the same ones."""
    random = np.random.default_rng(0)
    strata = np.stack([random.permutation(trials) for _ in ranges], axis=1)
    positions = (strata + random.random(strata.shape)) / trials
    settings = (tuple((one.option, one.value(at)) for one, at in zip(ranges, row)) for row in positions)
    return list(dict.fromkeys(settings))


def ladder(task_count: int, trials: int) -> list[tuple[int, int]]:
    """(tasks, trials) of each rung: half as many trials with twice as many tasks; the last one learns all tasks."""
    halvings = max(0, int(min(math.log2(max(1.0, task_count / FEWEST_TASKS)), math.log2(trials))))
    rungs = range(halvings + 1)
    return [(math.ceil(task_count / 2 ** (halvings - rung)), math.ceil(trials / 2**rung)) for rung in rungs]


@dataclass
class Halving:
    """The search for one method on one benchmark."""

    trials: list[GridRun]
    rungs: list[tuple[int, int]]
    """(tasks, trials): see `ladder`."""
    scores: dict[GridRun, tuple[int, float]]
    """Trial -> (tasks it has learned, its A on validation images)."""

    def at(self, rung: int) -> list[GridRun]:
        """The trials that take part in a rung: the best of the one before, in the order in which they were made."""
        if rung == 0:
            return self.trials
        best = self.ranking()[: self.rungs[rung][1]]
        return [trial for trial in self.trials if trial in best]

    def ranking(self) -> list[GridRun]:
        """Trials that went further come first, then the better ones. Failed trials have no score and are left out."""
        return sorted(self.scores, key=lambda trial: self.scores[trial], reverse=True)


def halvings_of(grid: Grid, ranges: Sequence[Range], trials: int) -> list[Halving]:
    """One halving for every method, benchmark and setting of the grid, with its first seed."""
    if trials < 2:
        raise UserError(f"--trials {trials}: a search needs at least 2 trials.")
    fixed = [one.option for one in ranges if one.option in grid.settings]
    if fixed:
        raise UserError(f"{fixed[0]} is both in --set and in --search; leave one of them out.")
    halvings = []
    for base in replace(grid, seeds=grid.seeds[:1]).runs():
        settings = [(*base.settings, *trial, ("validation", "true")) for trial in spread_trials(ranges, trials)]
        runs = [replace(base, settings=values) for values in settings]
        for run in runs:
            run.config.check()
        halvings.append(Halving(runs, ladder(task_count(runs[0].config), len(runs)), {}))
    return halvings


def task_count(config: Config) -> int:
    """1 for methods that are not continual: they learn all tasks at once."""
    if resolve(config.method).learns != "continual":
        return 1
    sizes = sizes_of(config)
    return load_benchmark(config.data).task_count if sizes is None else len(sizes.train_per_task)


def search(directory: GridDirectory, halvings: Sequence[Halving], launch: Callable[[list[GridRun]], None]) -> None:
    """Run all halvings rung by rung; `launch` runs what is missing of some runs."""
    for rung in range(max(len(halving.rungs) for halving in halvings)):
        by_tasks: dict[int, list[tuple[Halving, GridRun]]] = {}
        for halving in halvings:
            if rung < len(halving.rungs):
                members = [(halving, trial) for trial in halving.at(rung)]
                by_tasks.setdefault(halving.rungs[rung][0], []).extend(members)
        for tasks, members in by_tasks.items():
            directory.stop_after = tasks
            launch([trial for _, trial in members])
            for halving, trial in members:
                accuracy = score(directory, trial, tasks)
                if accuracy is not None:
                    halving.scores[trial] = tasks, accuracy
            for halving, trial in members:
                if rung + 1 < len(halving.rungs) and trial in halving.scores and trial not in halving.at(rung + 1):
                    drop(directory, trial, tasks)
    write_trials(directory, halvings)


def score(directory: GridDirectory, run: GridRun, tasks: int) -> float | None:
    """A after some tasks: the mean accuracy on them (class-agnostic). None if the run has not got there."""
    metrics, scores = directory.metrics(run), directory.scores(run, tasks)
    if metrics is not None and len(metrics.evaluations) == tasks and "class-agnostic" in metrics.protocols:
        return metrics["class-agnostic"].A
    if scores is None or "class-agnostic" not in scores.protocols:
        return None
    return mean(scores.protocols["class-agnostic"].accuracy[:tasks])


def write_trials(directory: GridDirectory, halvings: Iterable[Halving]) -> None:
    """GRID/search.csv: the trials of each halving, best first, then the failed ones with their error."""
    rows: list[list[object]] = [["benchmark", "method", "settings", "preset", "seed", "tasks", "validation A", "error"]]
    for halving in halvings:
        ranking = halving.ranking()
        for trial in [*ranking, *(trial for trial in halving.trials if trial not in ranking)]:
            tasks, accuracy = halving.scores.get(trial, ("", ""))
            error = "" if trial in ranking else status_of(directory, trial).detail
            about = [trial.benchmark, trial.method, searched(trial), trial.preset, trial.seed]
            rows.append([*about, tasks, accuracy, error])
    write_csv(directory.path / "search.csv", rows)


def searched(trial: GridRun) -> str:
    """The settings of a trial, as --set takes them."""
    return trial.settings_text.removesuffix("validation=true").rstrip()
