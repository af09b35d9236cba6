"""Runs of a file of results, made again: whether they still give its numbers."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from osiris.errors import UserError
from osiris.evaluation.config import METRICS
from osiris.evaluation.statistics import deviation
from osiris.grids.attempts import status_of
from osiris.grids.grid import GridDirectory, GridRun
from osiris.grids.plan import Costs
from osiris.reporting.tables import Table
from osiris.runs.untrusted import harmless

Numbers = dict[str, dict[str, float]]
"""Protocol -> metric -> value."""
SAME = 1e-6
"""Numbers that differ by less are the same; the file may have fewer digits."""
DEVIATIONS = 2.0
"""Another machine gives other last bits, and so another run. It should not differ by more than so many deviations."""


def recorded(path: Path) -> dict[GridRun, Numbers]:
    """The finished runs of a results.csv, with their numbers."""
    found: dict[GridRun, Numbers] = {}
    try:
        with path.open(newline="", encoding="utf-8") as file:
            for row in harmless(list(csv.DictReader(file))):
                if row["state"] != "done" or not row["protocol"]:
                    continue
                settings = tuple((name, value) for name, _, value in _settings(row["settings"]))
                run = GridRun(row["method"], row["benchmark"], int(row["seed"]), row["preset"], settings)
                numbers = {name: float(row[name]) for name in METRICS if row[name]}
                found.setdefault(run, {})[row["protocol"]] = numbers
    except (OSError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{path} is not a results.csv of osiris sweep ({type(error).__name__}: {error}).") from None
    if not found:
        raise UserError(f"{path} has no finished run.")
    return found


def _settings(text: str) -> list[tuple[str, str, str]]:
    """`epochs=2 blocks=1 1` has spaces inside values: a word without `=` belongs to the one before it."""
    words: list[str] = []
    for word in text.split():
        if "=" in word or not words:
            words.append(word)
        else:
            words[-1] += f" {word}"
    return [word.partition("=") for word in words]


def cheapest(runs: Sequence[GridRun]) -> list[GridRun]:
    """One run of each benchmark: the first of those that cost least."""
    costs, best = Costs(), dict[str, tuple[float, GridRun]]()
    for run in runs:
        cost = costs.of(run)
        seconds = float("inf") if cost is None else cost.seconds
        if run.benchmark not in best or seconds < best[run.benchmark][0]:
            best[run.benchmark] = (seconds, run)
    costs.save()
    return [run for _, run in best.values()]


def repeated_table(
    directory: GridDirectory, runs: Sequence[GridRun], numbers: Mapping[GridRun, Numbers]
) -> tuple[Table, list[str]]:
    """(what the file says and what the runs gave, titles of those that give other numbers)"""
    rows, others = [], []
    for run in runs:
        metrics = status_of(directory, run).metrics or {}
        worst, of_worst, verdict = 0.0, "", "the same"
        for protocol, said in numbers[run].items():
            for name, value in said.items():
                found = metrics.get(protocol, {}).get(name)
                apart = float("inf") if found is None else abs(found - value)
                spread = DEVIATIONS * (deviation(_over_seeds(numbers, run, protocol, name)) or 0.0)
                if apart > SAME and verdict == "the same":
                    verdict = "within what seeds differ by"
                if apart > max(spread, SAME):
                    verdict = "another number"
                if apart > worst:
                    worst, of_worst = (
                        apart,
                        f"{protocol} {name}: {value:.2f}, now {found if found is None else round(found, 2)}",
                    )
        others += [f"{run.title} seed {run.seed}"] if verdict == "another number" else []
        protocol = next(iter(numbers[run]))
        accuracy = numbers[run][protocol].get("A")
        now = metrics.get(protocol, {}).get("A")
        shown = [("" if value is None else f"{value:.2f}") for value in (accuracy, now)]
        rows.append((run.title, str(run.seed), *shown, verdict, of_worst))
    names = ("run", "seed", "A, file", "A, now", "verdict", "largest difference")
    note = f"within what seeds differ by: every number within {DEVIATIONS:g} deviations over the seeds of the file"
    return Table.of("Runs made again", names, rows, note), others


def _over_seeds(numbers: Mapping[GridRun, Numbers], run: GridRun, protocol: str, name: str) -> list[float]:
    """Of the other seeds, if there are two or more, so that a number is not judged by itself; else of all."""
    alike = {other: said for other, said in numbers.items() if replace(other, seed=run.seed) == run}
    others = {other: said for other, said in alike.items() if other != run}
    used = others if len(others) > 1 else alike
    return [said[protocol][name] for said in used.values() if name in said.get(protocol, {})]
