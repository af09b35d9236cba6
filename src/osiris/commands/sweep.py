"""`osiris sweep`: a grid of runs, planned, run, watched and summarised."""

from __future__ import annotations

import shlex
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from rich.live import Live
from tyro.conf import OmitArgPrefixes, Positional

from osiris.commands import command, parse_arguments
from osiris.console import console, say
from osiris.errors import UserError
from osiris.grids.attempts import status_table, statuses
from osiris.grids.grid import Grid, GridDirectory, parse_settings, read_grids
from osiris.grids.plan import print_plan
from osiris.grids.runner import Launcher, finish, jobs_of, make_launcher, run_grids, run_search
from osiris.grids.search import parse_range, searched
from osiris.grids.slurm import SlurmOptions
from osiris.reporting.comparison import main_table
from osiris.reporting.studies import studies
from osiris.reporting.tables import show
from osiris.runs.run import load_runs


@dataclass(frozen=True)
class Args:
    """Train every combination of methods, benchmarks, settings and seeds, then compare and report them.

    The same command continues what is missing: finished runs stay, interrupted runs resume, failed runs get another
    chance. A failed run does not stop the others. Results: OUT/runs, OUT/results.csv, OUT/report.

    Examples:
      osiris sweep --methods ft osiris-d offline --seeds 5 6 7 --preset fast --out grids/tinyworld
      osiris sweep --methods osiris-r osiris-d --set memory_size=100,250 epochs=1,2 --out grids/memory
      osiris sweep --grid grid.toml --out grids/a --plan
      osiris sweep --grid grid.toml --out grids/a --launcher slurm --partition gpu --gpus 1 --cpus 8 --time 240
      osiris sweep --methods osiris-d --search learning_rate=0.01..0.3:log --trials 20 --out grids/rates
      osiris sweep status grids/a                  where every run stands
      osiris sweep report grids/a                  the tables and the page again
    """

    methods: tuple[str, ...] = ()
    """Names of methods (osiris list methods)."""
    benchmarks: tuple[str, ...] = ("tinyworld",)
    """The data (osiris list benchmarks)."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """One run for each."""
    preset: str = "fast"
    """Where the defaults of the runs come from (osiris list presets)."""
    set: tuple[str, ...] = ()
    """Options of `osiris train` with their values: memory_size=200,500 learning_rate=0.03."""
    search: tuple[str, ...] = ()
    """Options to search for each method on each benchmark, with the first seed and with validation images instead of
    the test images: learning_rate=0.01..0.3:log memory_size=100..500 optimiser=sgd,muon."""
    trials: int = 20
    """Values to try with --search. Half of them stop after a few tasks, half of the others later, and so on."""
    grid: Path | None = None
    """A TOML file with methods, benchmarks, seeds, preset and set, instead of the options above."""
    out: Path = Path("grids/sweep")
    """The directory of the grid."""
    plan: bool = False
    """Print the commands, their encoder FLOPs and hours; run nothing."""
    jobs: int | None = None
    """Runs at a time; None means one per core (SLURM: as many as it allows). Each gets its share of the cores."""
    processes: int = 1
    """Processes of each run (torchrun)."""
    retries: int = 1
    """How often a failed run is started again."""
    launcher: Literal["local", "slurm"] = "local"
    """Where the runs go: processes on this machine, or jobs of a SLURM cluster (needs the extra `slurm`)."""
    slurm: OmitArgPrefixes[SlurmOptions] = field(default_factory=SlurmOptions)


IN_THE_FILE = ("methods", "benchmarks", "seeds", "preset", "set")
"""Options for which --grid has keys."""


def sweep_command(argv: list[str]) -> int:
    others = {"status": status_command, "report": report_command}
    if argv and argv[0] in others:
        return others[argv[0]](argv[1:])
    args = parse_arguments(Args, argv, "sweep")
    grids = grids_of(args)
    if args.plan and args.search:
        raise UserError("--plan: what a search costs depends on its results; leave out --plan or --search.")
    if args.plan:
        for grid in grids:
            grid.check()
        runs = list(dict.fromkeys(run for grid in grids for run in grid.runs()))
        print_plan(GridDirectory(args.out, runs), jobs_of(args.jobs, args.processes))
        return 0
    on_slurm = args.launcher == "slurm"
    if not on_slurm and args.slurm != SlurmOptions():
        raise UserError("--partition, --time, --gpus, --cpus, --nodes, --slurm and --no-wait need --launcher slurm.")
    slurm = args.slurm if on_slurm else None
    launcher = make_launcher(GridDirectory(args.out), args.jobs, args.retries, args.processes, slurm)
    if args.search:
        return run_trials(args, launcher, grids)
    run_grids(launcher, grids)
    return summarise(launcher.directory) if args.slurm.wait else 0


def run_trials(args: Args, launcher: Launcher, grids: list[Grid]) -> int:
    """Search, then print the best trials for each method and benchmark, and the command for the test images."""
    if not args.slurm.wait:
        raise UserError("--no-wait: a search submits jobs according to the results of earlier ones; leave it out.")
    ranges = [parse_range(text) for text in args.search]
    for halving in run_search(launcher, grids, ranges, args.trials):
        ranking, first = halving.ranking(), halving.trials[0]
        if not ranking:
            raise UserError(
                f"every trial of {first.method} on {first.benchmark} failed; see {args.out / 'search.csv'}."
            )
        say(f"{first.method} on {first.benchmark}, A on validation images:")
        for trial in ranking[:5]:
            tasks, accuracy = halving.scores[trial]
            say(f"  {accuracy:5.1f} after {tasks} tasks  {searched(trial)}")
        command = ["--methods", first.method, "--benchmarks", first.benchmark, "--preset", first.preset, "--set"]
        settings = [f"{option}={value}" for option, value in ranking[0].settings if option != "validation"]
        say(shlex.join(["osiris", "sweep", *command, *settings]))
    say(f"all trials: {args.out / 'search.csv'}")
    return 0


def grids_of(args: Args) -> list[Grid]:
    if args.grid is not None:
        default = Args()
        given = [name for name in IN_THE_FILE if getattr(args, name) != getattr(default, name)]
        if given:
            raise UserError(f"--grid: the file has its own {given[0]}; leave out --{given[0]}, or change the file.")
        return read_grids(args.grid)
    if not args.methods:
        raise UserError("name the methods, for example --methods ft osiris-d, or a file with --grid.")
    return [Grid(args.methods, args.benchmarks, args.seeds, args.preset, parse_settings(args.set))]


def summarise(directory: GridDirectory) -> int:
    """The comparison of every study on standard output, then where the report is."""
    try:
        page = finish(directory, directory.runs, directory.path / "report")
    except UserError:  # some runs have failed: the others are compared
        compare_finished(directory)
        raise
    compare_finished(directory)
    say(f"results: {directory.path / 'results.csv'}")
    say(f"report: {page}")
    return 0


def compare_finished(directory: GridDirectory) -> None:
    finished = [directory.folder(run) for run in directory.runs if directory.finished(run)]
    for study in studies(load_runs(finished))[0] if finished else []:
        if study.protocols:
            show(main_table(study, study.protocols[0]), "text")


@command("sweep report")
def report_command(grid: Positional[Path]) -> int:
    """Write results.csv and the report of a grid from the runs that are finished.

    Args:
        grid: The directory of the grid (--out of the sweep).
    """
    return summarise(GridDirectory.read(grid))


@command("sweep status")
def status_command(grid: Positional[Path], watch: bool = False) -> None:
    """Show where every run of a grid stands. Works on any machine that sees the directory.

    Args:
        grid: The directory of the grid (--out of the sweep).
        watch: Refresh every two seconds until all runs are finished.
    """
    directory = GridDirectory.read(grid)
    states = statuses(directory)
    if not watch:
        return console.print(status_table(states))
    with Live(status_table(states), console=console, auto_refresh=False) as live:
        while any(one.state in ("running", "waiting") for one in states):
            time.sleep(2)
            states = statuses(directory)
            live.update(status_table(states), refresh=True)
