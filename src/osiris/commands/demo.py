"""`osiris demo`: what continual learning without labels looks like, in minutes, on any machine."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

METHODS = ("ft", "osiris-d")


@dataclass(frozen=True)
class Args:
    """Train ft and osiris-d on the embedded tinyworld, evaluate after every task, write a report.

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
    workers: int | None = None
    """Runs at a time (default: one per core)."""


def run(args: Args) -> int:
    from osiris.commands.show import metrics_table
    from osiris.console import console
    from osiris.evaluation.metrics_file import read_metrics
    from osiris.report.page import make_report
    from osiris.sweep import Job, run_jobs

    started = time.monotonic()
    jobs = []
    for method in args.methods:
        arguments = ["--method", method, "--benchmark", "tinyworld", "--preset", args.preset, "--seed", str(args.seed)]
        jobs.append(Job(method, arguments, args.out / "runs" / f"{method.replace('/', '-')}-seed{args.seed}"))
    run_jobs(jobs, args.workers)
    page = make_report([job.out for job in jobs], args.out / "report", title="osiris demo: tinyworld")
    console.print(metrics_table([read_metrics(job.out / "metrics.json") for job in jobs]))
    console.print(
        "A accuracy, F forgetting, K knowledge gain, C cross-task consolidation, T forward transfer; class-agnostic: "
        "the KNN does not know the task, task-aware: it does.",
        highlight=False,
    )
    console.print(f"{time.monotonic() - started:.0f} seconds. Open [bold]{page}[/bold] in a browser.", highlight=False)
    return 0
