"""`osiris sweep`: methods times seeds, side by side on this machine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Args:
    """Train several methods with several seeds, as many at a time as there are cores. The same command continues it.

    Examples:
      osiris sweep --methods ft osiris-d offline --seeds 5 6 7 8 9 --preset fast --out runs/tinyworld
      osiris sweep --methods osiris-d --seeds 0 1 2 --options "--memory-size 100" --out runs/memory100
      osiris compare runs/tinyworld
    """

    methods: tuple[str, ...]
    """Names in the zoo (osiris list methods)."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """One run per method and seed."""
    benchmark: str = "tinyworld"
    """The data (osiris list benchmarks)."""
    preset: str = "fast"
    """paper, paper-released, cpu or smoke."""
    out: Path = Path("runs")
    """Runs go to OUT/METHOD-seedN."""
    options: str = ""
    """Further flags of `osiris train`, as one text."""
    workers: int | None = None
    """Runs at a time (default: one per core)."""


def run(args: Args) -> int:
    import shlex

    from osiris.console import console
    from osiris.framework.methods import find_method
    from osiris.sweep import Job, run_jobs

    for method in args.methods:
        find_method(method)
    jobs = []
    for seed in args.seeds:
        for method in args.methods:
            arguments = ["--method", method, "--benchmark", args.benchmark, "--preset", args.preset]
            arguments += ["--seed", str(seed), *shlex.split(args.options)]
            jobs.append(Job(f"{method} {seed}", arguments, args.out / f"{method.replace('/', '-')}-seed{seed}"))
    run_jobs(jobs, args.workers)
    console.print(f"{len(jobs)} runs in {args.out}. Next: osiris compare {args.out}", highlight=False)
    return 0
