"""`osiris reproduce`: the whole chain behind one table or figure of the paper."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import tyro

if TYPE_CHECKING:
    from osiris.reproduce.recipes import PlannedRun, Recipe


@dataclass(frozen=True)
class Args:
    """Train, evaluate and report everything that one table or figure of the paper needs.

    The same command again keeps finished runs and continues the rest; tables that need the same runs share them
    within one --out. With --plan nothing runs: the commands are printed with what they would cost here.

    Examples:
      osiris reproduce table4 --preset fast --plan
      osiris reproduce fig2 --preset fast --seeds 0 1
      osiris reproduce table5 --preset smoke --benchmark tinyworld
    """

    target: tyro.conf.Positional[str]
    """table2 to table8, fig2 to fig11; fig3a and fig3b are the two panels of fig3."""
    preset: Literal["paper", "paper-released", "fast-long", "fast", "smoke"] = "paper"
    """`paper` needs a GPU and days, `cpu` hours on a laptop; `smoke` only shows that the chain works."""
    plan: bool = False
    """Only print the commands, their encoder FLOPs and hours."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """One run of every method for each."""
    out: Path = Path("reproduction")
    """Where runs/ and the report go."""
    benchmark: str | None = None
    """Run the same methods on another benchmark than the paper's, such as tinyworld."""
    data_dir: Path | None = None
    """Local copy of the hub's files (default: the variable OSIRIS_DATA, then the hub)."""
    workers: int | None = None
    """Runs at a time (default: one per core)."""


def run(args: Args) -> int:
    from osiris.errors import UserError
    from osiris.reproduce.recipes import find_recipe, planned_runs

    if not args.seeds or len(set(args.seeds)) < len(args.seeds):
        raise UserError("give one or more different seeds, for example --seeds 0 1 2.")
    recipe = find_recipe(args.target)
    runs = planned_runs(recipe, args.preset, args.seeds, [args.benchmark] if args.benchmark else None)
    if args.plan:
        return show_plan(args, recipe, runs)
    return carry_out(args, recipe, runs)


def folder_of(args: Args, run: PlannedRun) -> Path:
    return args.out / "runs" / run.name


def train_command(args: Args, run: PlannedRun) -> list[str]:
    data = ["--data-dir", str(args.data_dir)] if args.data_dir else []
    return ["osiris", "train", *run.arguments, *data, "--out", str(folder_of(args, run))]


def report_command(args: Args, recipe: Recipe, runs: list[PlannedRun]) -> list[str]:
    folders = [str(folder_of(args, run)) for run in runs]
    return ["osiris", "report", *folders, "--out", str(report_folder(args)), "--title", recipe.title]


def report_folder(args: Args) -> Path:
    return args.out / "".join(letter for letter in args.target.lower() if letter.isalnum())


def show_plan(args: Args, recipe: Recipe, runs: list[PlannedRun]) -> int:
    """Commands as they would be typed; what they cost, as comments, so that the output is a script."""
    import os

    from osiris.reproduce.plan import estimate_run, totals

    print(f"# {recipe.title}, preset {args.preset}: {len(runs)} runs")
    estimates = []
    for planned in runs:
        cost = estimate_run(planned)
        estimates.append(cost)
        print(f"{shlex.join(train_command(args, planned))}    # {describe(cost)}", flush=True)
    print(shlex.join(report_command(args, recipe, runs)))
    flops, hours = totals(estimates)
    workers = args.workers or os.cpu_count() or 1
    print(
        f"# in all {flops:.2e} FLOPs in encoders and {duration(hours)} on this machine with one run after the other "
        f"(speed measured just now; `osiris reproduce` runs {workers} at a time)"
    )
    return 0


def describe(cost) -> str:
    if cost is None:
        return "cost unknown: the size of this benchmark is known only after looking"
    return f"{cost.flops:.2e} FLOPs, {duration(cost.hours)}"


def duration(hours: float | None) -> str:
    if hours is None:
        return "unknown time"
    if hours < 1 / 60:
        return f"{hours * 3600:.0f} s"
    return f"{hours * 60:.0f} min" if hours < 1 else f"{hours:.1f} h" if hours < 100 else f"{hours / 24:.0f} days"


def carry_out(args: Args, recipe: Recipe, runs: list[PlannedRun]) -> int:
    from osiris.console import console
    from osiris.report.page import make_report
    from osiris.sweep import Job, run_jobs

    jobs = []
    for planned in runs:
        arguments = train_command(args, planned)[2:-2]
        jobs.append(Job(f"{planned.benchmark} {planned.method} {planned.seed}", arguments, folder_of(args, planned)))
    write_script(args, recipe, runs)
    run_jobs(jobs, args.workers)
    page = make_report([job.out for job in jobs], report_folder(args), recipe.title)
    benchmarks = list(dict.fromkeys(planned.benchmark for planned in runs))
    for name in benchmarks:
        for shown in recipe.shows:
            stem = page.parent / shown.format(benchmark=name)
            for path in sorted(stem.parent.glob(f"{stem.name}.*")):
                console.print(str(path), highlight=False, soft_wrap=True)
    console.print(f"report: {page}", highlight=False, soft_wrap=True)
    return 0


def write_script(args: Args, recipe: Recipe, runs: list[PlannedRun]) -> None:
    """The chain as commands, beside what it made."""
    from osiris.files import write_text

    lines = [f"# {recipe.title}, preset {args.preset}"]
    lines += [shlex.join(train_command(args, planned)) for planned in runs]
    lines += [shlex.join(report_command(args, recipe, runs)), ""]
    write_text(args.out / f"{report_folder(args).name}.sh", "\n".join(lines))
