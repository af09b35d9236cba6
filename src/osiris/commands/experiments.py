"""`osiris demo` and `osiris reproduce`: prepared grids of runs with their report."""

from __future__ import annotations

import os
import time
from pathlib import Path

from tyro.conf import Positional

from osiris.commands import command, metrics_table
from osiris.console import console, say
from osiris.errors import UserError, unknown
from osiris.grids.grid import Grid, GridDirectory, GridRun
from osiris.grids.plan import print_plan
from osiris.grids.repeat import cheapest, recorded, repeated_table
from osiris.grids.runner import finish, jobs_of, make_launcher, run_grids
from osiris.paper.recipes import find_recipe
from osiris.reporting.tables import show
from osiris.runs.records import read_metrics


@command("demo")
def demo_command(
    out: Path = Path("demo"),
    seed: int = 0,
    preset: str = "fast",
    methods: tuple[str, ...] = ("ft", "osiris-d"),
    jobs: int | None = None,
) -> None:
    """Train ft and osiris-d on the built-in data set tinyworld, evaluate after every task, write a report.

    Examples:
      osiris demo
      osiris demo --out demo --seed 3

    Args:
        out: Where the runs and the report go. The same command again continues what is missing.
        seed: Seed of both runs.
        preset: `fast` (minutes) or `smoke` (seconds; its numbers mean nothing).
        methods: Methods to train.
        jobs: Runs at a time; None means one per core.
    """
    started = time.monotonic()
    directory, grid = GridDirectory(out), Grid(methods, seeds=(seed,), preset=preset)
    run_grids(make_launcher(directory, jobs), [grid])
    page = finish(directory, grid.runs(), out / "report", title="osiris demo: tinyworld")
    console.print(metrics_table([read_metrics(directory.files(run).metrics) for run in grid.runs()]))
    say(
        "A accuracy, F forgetting, K knowledge gain, C cross-task consolidation, T forward transfer; class-agnostic: "
        "the KNN does not know the task, task-aware: it does; whitened: all directions of the features count alike."
    )
    say(f"{time.monotonic() - started:.0f} seconds. Open {page} in a browser.")


@command("reproduce")
def reproduce_command(
    target: Positional[str],
    preset: str = "paper",
    plan: bool = False,
    seeds: tuple[int, ...] = (0, 1, 2),
    out: Path = Path("reproduction"),
    benchmark: str | None = None,
    data_dir: Path | None = None,
    jobs: int | None = None,
    retries: int = 1,
    check: bool = False,
) -> None:
    """Train, evaluate and report everything that one table or figure of the paper needs, as `osiris sweep` does; or
    make the runs of a results.csv again, and say whether they give its numbers.

    The same command again keeps finished runs and continues the rest. Tables that need the same runs share them within
    one --out. With --plan nothing runs: the commands are printed with what they would cost here.

    Examples:
      osiris reproduce table4 --preset fast --plan
      osiris reproduce fig2 --preset fast --seeds 0 1
      osiris reproduce table5 --preset smoke --benchmark tinyworld
      osiris reproduce docs/results/runs.csv --check
      osiris reproduce docs/results/runs.csv --check --benchmark tinyworld --plan

    Args:
        target: table2 to table8, fig2 to fig11 (fig3a and fig3b are the two panels of fig3); or a file such as
            docs/results/runs.csv, which has presets and seeds of its own.
        preset: `paper` needs a GPU and days, `fast` minutes to hours on a laptop; `smoke` only shows that the program
            works.
        plan: Print the commands, their encoder FLOPs and hours; run nothing.
        seeds: One run of every method for each.
        out: The directory of the grid and of its reports.
        benchmark: Run the same methods on another benchmark than the paper's, such as tinyworld; of a file: only its
            runs on this one.
        data_dir: Local copy of the hub's files; None means the environment variable OSIRIS_DATA, then the hub.
        jobs: Runs at a time; None means one per core.
        retries: How often a failed run is started again.
        check: Of a file, make only one run of each benchmark again, the cheapest.
    """
    if data_dir is not None:
        os.environ["OSIRIS_DATA"] = str(data_dir)
    if target.endswith(".csv"):
        _repeat(Path(target), out, benchmark, check, plan, jobs, retries)
        return
    if check:
        raise UserError("--check needs a file of results, such as docs/results/runs.csv.")
    recipe = find_recipe(target)
    benchmarks = (benchmark,) if benchmark else recipe.benchmarks
    grid = Grid(recipe.methods, benchmarks, tuple(seeds), preset, recipe.settings(preset))
    grid.check()
    if plan:
        print(f"# {recipe.title}, preset {preset}")
        print_plan(GridDirectory(out, grid.runs()), jobs_of(jobs))
        return
    directory = GridDirectory(out)
    run_grids(make_launcher(directory, jobs, retries), [grid])
    folder = out / "".join(letter for letter in target.lower() if letter.isalnum())
    page = finish(directory, grid.runs(), folder, recipe.title)
    for stem in (folder / file.format(benchmark=benchmark) for benchmark in grid.benchmarks for file in recipe.files):
        for path in sorted(stem.parent.glob(f"{stem.name}.*")):
            say(str(path))
    say(f"report: {page}")


def _repeat(
    file: Path, out: Path, benchmark: str | None, check: bool, plan: bool, jobs: int | None, retries: int
) -> None:
    """Make runs of a file of results again, and compare."""
    numbers = recorded(file)
    runs = [run for run in numbers if benchmark in (None, run.benchmark)]
    if not runs:
        raise unknown("benchmark", benchmark or "", {run.benchmark for run in numbers})
    runs = cheapest(runs) if check else runs
    if plan:
        print_plan(GridDirectory(out, runs), jobs_of(jobs))
        return
    launcher = make_launcher(GridDirectory(out), jobs, retries)
    run_grids(launcher, [one_run(run) for run in runs])
    table, others = repeated_table(launcher.directory, runs, numbers)
    show(table, "text")
    if others:
        raise UserError(f"{len(others)} of {len(runs)} runs give other numbers: {', '.join(others)}.")


def one_run(run: GridRun) -> Grid:
    settings = {name: (value,) for name, value in run.settings}
    return Grid((run.method,), (run.benchmark,), (run.seed,), run.preset, settings)
