"""`osiris demo`: what continual learning without labels looks like, in minutes, on any machine."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

METHODS = ("ft", "osiris-d")


@dataclass(frozen=True)
class Args:
    """Train ft and osiris-d on the built-in data set tinyworld, evaluate after every task, write a report.

    Examples:
      osiris demo
      osiris demo --out demo --seed 3
    """

    out: Path = Path("demo")
    """Where the runs and the report go. The same command again continues what is missing."""
    seed: int = 0
    """Seed of both runs."""
    preset: str = "fast"
    """`fast` (minutes) or `smoke` (seconds; its numbers mean nothing)."""
    methods: tuple[str, ...] = METHODS
    """Methods to train."""
    jobs: int | None = None
    """Runs at a time; None means one per core."""


def run(args: Args) -> int:
    from osiris.commands import metrics_table
    from osiris.console import console, say
    from osiris.evaluation.metrics_file import read_metrics
    from osiris.sweep.grid import Grid, GridDirectory
    from osiris.sweep.runner import finish, run_grids

    started = time.monotonic()
    directory, grid = GridDirectory(args.out), Grid(args.methods, seeds=(args.seed,), preset=args.preset)
    run_grids(directory, [grid], args.jobs)
    page = finish(directory, grid.runs(), args.out / "report", title="osiris demo: tinyworld")
    console.print(metrics_table([read_metrics(directory.folder(run) / "metrics.json") for run in grid.runs()]))
    say(
        "A accuracy, F forgetting, K knowledge gain, C cross-task consolidation, T forward transfer; class-agnostic: "
        "the KNN does not know the task, task-aware: it does."
    )
    say(f"{time.monotonic() - started:.0f} seconds. Open {page} in a browser.")
    return 0
