"""The tables of the results have the numbers of docs/results/runs.csv, the runs behind them."""

import csv
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import mean, stdev

import pytest

from osiris.grids.grid import read_grids

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results"
PROTOCOLS = ("class-agnostic", "task-aware")

Setting = tuple[str, str, str, str]
"""Benchmark, method, settings, protocol."""


@pytest.fixture(scope="module")
def runs() -> dict[Setting, list[dict[str, str]]]:
    """Of every setting, the runs of all seeds."""
    found = defaultdict(list)
    with (RESULTS / "runs.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            assert row["state"] == "done"
            found[row["benchmark"], row["method"], row["settings"], row["protocol"]].append(row)
    return dict(found)


def tables(page: Path) -> Iterator[tuple[str, list[list[str]]]]:
    """(the bold title above it, if any; its cells) of each table of a page."""
    title, rows = "", list[list[str]]()
    for line in [*page.read_text(encoding="utf-8").splitlines(), ""]:
        if line.startswith("|"):
            rows.append([cell.strip() for cell in line.strip("|").split("|")])
        elif rows:
            yield title, rows
            title, rows = "", []
        if line.startswith("**") and "KNN" in line:
            title = line


def columns(header: list[str], title: str) -> dict[int, tuple[str, str]]:
    """Position -> (metric, protocol). `A` stands for the protocol of the title, `A, task-aware` for its own."""
    of_title = next((name for name in PROTOCOLS if f", {name} KNN" in title), PROTOCOLS[0])
    found = {}
    for at, cell in enumerate(header):
        if match := re.fullmatch(rf"([AFKCT])( [↑↓])?(, ({'|'.join(PROTOCOLS)}))?", cell):
            found[at] = match[1], match[4] or of_title
    return found


def wrong_rows(
    page: Path, benchmark: str, runs: dict[Setting, list[dict[str, str]]], common: str = ""
) -> tuple[int, list[str]]:
    """(number of rows that were checked, those that differ from the runs). `common`: settings of all rows."""
    checked, wrong = 0, []
    for title, (header, *rows) in tables(page):
        places = columns(header, title)
        world = benchmark or ("split-cifar100-20" if "A, paper" in header else "tinyworld")
        for row in rows:
            method, _, settings = row[0].partition(", ")
            settings = settings or common
            if (world, method, settings, PROTOCOLS[0]) not in runs or not places:
                continue
            checked += 1
            for at, (metric, protocol) in places.items():
                values = [float(run[metric]) for run in runs[world, method, settings, protocol] if run[metric]]
                expected = f"{mean(values):.1f} ± {stdev(values):.1f}" if values else "-"
                if row[at].replace("*", "") != expected:
                    wrong.append(f"{page.name}: {row[0]}, {metric} {protocol}: {row[at]}, runs.csv has {expected}")
    return checked, wrong


@pytest.mark.parametrize(
    ("benchmark", "common", "least"),
    [
        ("tinyworld", "", 50),
        ("split-cifar100-20", "", 40),
        ("split-cifar100-5", "", 14),
        ("structured-cifar100", "", 10),
        ("structured-tiny-imagenet", "image_size=32", 12),
    ],
)
def test_the_tables_have_the_numbers_of_the_runs(benchmark, common, least, runs):
    checked, wrong = wrong_rows(RESULTS / f"{benchmark}.md", benchmark, runs, common)
    assert checked >= least and not wrong, "\n".join(wrong)


def test_the_readme_has_the_numbers_of_the_runs(runs):
    checked, wrong = wrong_rows(ROOT / "README.md", "", runs)
    assert checked >= 20 and not wrong, "\n".join(wrong)


def test_the_grid_of_the_evidence_has_these_runs(runs):
    known = [run for grid in read_grids(RESULTS / "evidence.toml") for run in grid.runs()]
    planned = {(run.benchmark, run.method, run.settings_text, run.seed) for run in known}
    measured = {(*setting[:3], int(run["seed"])) for setting, each in runs.items() for run in each}
    assert measured <= planned, sorted(measured - planned)
