"""`sweep`: plan a grid, run what is missing, then write the table of all runs, the comparisons and the report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from osiris.console import notice
from osiris.cores import core_count
from osiris.errors import UserError
from osiris.framework.methods import Method
from osiris.grids.attempts import RunStatus, Watch, statuses, summary, write_results
from osiris.grids.grid import Grid, GridDirectory, GridRun, as_text
from osiris.grids.local import LocalLauncher
from osiris.grids.search import Halving, Range, halvings_of, search
from osiris.grids.slurm import SlurmLauncher, SlurmOptions
from osiris.own import entry_of
from osiris.runs.lock import refuse_links_to_elsewhere

Launcher = LocalLauncher | SlurmLauncher


def sweep(
    methods: Sequence[str | Method],
    benchmarks: Sequence[str] = ("tinyworld",),
    seeds: Sequence[int] = (0, 1, 2),
    preset: str = "fast",
    settings: Mapping[str, Sequence[object]] | None = None,
    out: Path | str = "grids/sweep",
    jobs: int | None = None,
    retries: int = 1,
    processes: int = 1,
    slurm: SlurmOptions | None = None,
) -> list[RunStatus]:
    """Train every combination of methods, benchmarks, settings and seeds; returns where each run stands.

    `settings` maps options of `osiris train` to lists of values: `{"memory_size": [200, 500]}`. A method of your own is
    `module:name`, or a variable of a module. The same call again continues what is missing. `out` gets the runs,
    results.csv and a report. `slurm`: submit the runs to a cluster.
    """
    texts = {name: tuple(map(as_text, values)) for name, values in (settings or {}).items()}
    names = [name if isinstance(name, str) else entry_of(name) for name in methods]
    grid = Grid(tuple(names), tuple(benchmarks), tuple(seeds), preset, texts)
    directory = GridDirectory(Path(out))
    run_grids(make_launcher(directory, jobs, retries, processes, slurm), [grid])
    finish(directory, directory.runs, directory.path / "report")
    return statuses(directory)


def run_grids(launcher: Launcher, grids: Iterable[Grid]) -> None:
    """Write the plan, then run what is missing."""
    runs: dict[GridRun, None] = {}
    for grid in grids:
        grid.check()
        runs |= dict.fromkeys(grid.runs())
    launcher.directory.add(list(runs))
    with Watch(launcher.directory) as watch:
        launcher.run(list(runs), watch)
    launcher.directory.refresh()


def run_search(launcher: Launcher, grids: Iterable[Grid], ranges: Sequence[Range], trials: int) -> list[Halving]:
    """Halving the ranges for every method, benchmark and setting of the grids. See `search.py`."""
    halvings = []
    for grid in grids:
        grid.check()
        halvings += halvings_of(grid, ranges, trials)
    launcher.directory.add([trial for halving in halvings for trial in halving.trials])

    def launch(runs: list[GridRun]) -> None:
        with Watch(launcher.directory) as watch:
            launcher.run(runs, watch)

    search(launcher.directory, halvings, launch)
    return halvings


def make_launcher(
    directory: GridDirectory,
    jobs: int | None = None,
    retries: int = 1,
    processes: int = 1,
    slurm: SlurmOptions | None = None,
) -> Launcher:
    """A launcher for this machine, or with `slurm` for a cluster."""
    at_a_time = jobs_of(jobs, processes)
    if slurm is not None:
        return SlurmLauncher(directory, slurm, jobs, retries, processes)
    return LocalLauncher(directory, at_a_time, retries, processes)


def jobs_of(jobs: int | None, processes: int = 1) -> int:
    """Runs at a time on this machine: those asked for, or one per core."""
    for option, value in (("jobs", jobs), ("processes", processes)):
        if value is not None and value < 1:
            raise UserError(f"--{option} {value}: give a number of at least 1.")
    return jobs or max(1, core_count() // processes)


def finish(directory: GridDirectory, runs: Sequence[GridRun], out: Path, title: str | None = None) -> Path:
    """results.csv of the whole grid, and the report of `runs` in `out`; an error if one of them failed."""
    from osiris.reporting.page import make_report  # imports matplotlib

    refuse_links_to_elsewhere(directory.path)
    states = [status for status in write_results(directory) if status.run in runs]
    done = [directory.folder(status.run) for status in states if status.state == "done"]
    failed = [status for status in states if status.state == "failed"]
    if not done and not failed:
        raise UserError(f"no run of {directory.path} has finished, so there is nothing to report ({summary(states)}).")
    if done:
        notice(f"writing a report of {len(done)} runs to {out}; if you interrupt it, the same command writes it again.")
    page = make_report(done, out, title) if done else out / "report.html"
    if any(status.state in ("waiting", "running") for status in states):
        notice(f"{summary(states)}. The command of the sweep continues the others.")
    if failed:
        errors = "\n".join(f"{status.run.title} seed {status.run.seed}: {status.detail}" for status in failed)
        raise UserError(
            f"{summary(states)}. Fix the cause and give the same command again ({directory.path / 'results.csv'} lists "
            f"all runs).\n{errors}"
        )
    return page
