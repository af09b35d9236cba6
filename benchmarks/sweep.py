"""How much faster a grid is with `osiris sweep --jobs N` than the same runs one after the other with all N cores.

    python benchmarks/sweep.py [--methods ft er osiris-r osiris-d] [--seeds 0 1 2] [--preset smoke] [--set NAME=VALUE]

One after the other: `osiris train` with as many threads as this process has cores. Sweep: as many runs at a time as
there are cores, one thread each. Both start with a filled cache. The last column is the share of the cores that the
runs got: where it is far below 100 percent in the sweep, other programs were busy and the ratio of the wall times means
nothing. The ratio of the CPU times does: it is what the grid saves by not dividing small operations among threads.
Limit the cores with taskset.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from osiris.cores import core_count
from osiris.grids.attempts import training_command
from osiris.grids.grid import Grid, GridDirectory, parse_settings
from osiris.grids.runner import make_launcher, run_grids


def measure(work: Callable[[], object]) -> tuple[float, float]:
    """(wall, CPU) seconds of the processes that `work` starts."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    work()
    wall, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="+", default=["ft", "er", "osiris-r", "osiris-d"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--benchmark", default="tinyworld")
    parser.add_argument("--preset", default="smoke")
    parser.add_argument("--set", nargs="*", default=[])
    args = parser.parse_args()
    cores, settings = core_count(), parse_settings(args.set)
    place = tuple(args.methods), (args.benchmark,), tuple(args.seeds), args.preset
    several, one = (Grid(*place, settings | {"threads": (str(threads),)}) for threads in (cores, 1))

    def one_after_the_other(directory: GridDirectory) -> None:
        directory.write_configs(several.runs())
        for run in several.runs():
            subprocess.run(training_command(directory, run), check=True, stdout=subprocess.DEVNULL)

    with tempfile.TemporaryDirectory() as folder:
        os.environ["OSIRIS_CACHE"] = str(Path(folder) / "cache")
        for grid in {several.settings["threads"]: several, one.settings["threads"]: one}.values():
            warm_up = GridDirectory(Path(folder) / f"warm{grid.settings['threads'][0]}", stop_after=1)
            warm_up.write_configs(grid.runs()[:1])
            subprocess.run(training_command(warm_up, grid.runs()[0]), check=True, stdout=subprocess.DEVNULL)
        before = measure(lambda: one_after_the_other(GridDirectory(Path(folder) / "runs")))
        sweep = measure(lambda: run_grids(make_launcher(GridDirectory(Path(folder) / "grid"), cores), [one]))
    print(f"{len(one.runs())} runs of {args.benchmark}, preset {args.preset}, {cores} core(s)")
    for name, (wall, cpu) in (("one after the other", before), (f"osiris sweep --jobs {cores}", sweep)):
        print(f"{name:24} wall {wall:7.1f} s   CPU {cpu:7.1f} s   {100 * cpu / wall / cores:4.0f} % of the cores")
    print(f"{'ratio':24} wall {before[0] / sweep[0]:7.2f}     CPU {before[1] / sweep[1]:7.2f}")


if __name__ == "__main__":
    main()
