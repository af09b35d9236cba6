"""`osiris reproduce`: every run behind one table or figure of the paper, then its report."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tyro


@dataclass(frozen=True)
class Args:
    """Train, evaluate and report everything that one table or figure of the paper needs, as `osiris sweep` does.

    The same command again keeps finished runs and continues the rest. Tables that need the same runs share them within
    one --out. With --plan nothing runs: the commands are printed with what they would cost here.

    Examples:
      osiris reproduce table4 --preset fast --plan
      osiris reproduce fig2 --preset fast --seeds 0 1
      osiris reproduce table5 --preset smoke --benchmark tinyworld
    """

    target: tyro.conf.Positional[str]
    """table2 to table8, fig2 to fig11; fig3a and fig3b are the two panels of fig3."""
    preset: str = "paper"
    """`paper` needs a GPU and days, `fast` minutes to hours on a laptop; `smoke` only shows that the program works."""
    plan: bool = False
    """Print the commands, their encoder FLOPs and hours; run nothing."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """One run of every method for each."""
    out: Path = Path("reproduction")
    """The directory of the grid and of its reports."""
    benchmark: str | None = None
    """Run the same methods on another benchmark than the paper's, such as tinyworld."""
    data_dir: Path | None = None
    """Local copy of the hub's files; None means the environment variable OSIRIS_DATA, then the hub."""
    jobs: int | None = None
    """Runs at a time; None means one per core."""
    retries: int = 1
    """How often a failed run is started again."""


def run(args: Args) -> int:
    import os

    from osiris.console import say
    from osiris.reproduce.recipes import find_recipe
    from osiris.sweep.grid import GridDirectory
    from osiris.sweep.plan import print_plan
    from osiris.sweep.runner import default_jobs, finish, run_grids

    recipe = find_recipe(args.target)
    grid = recipe.grid(args.preset, args.seeds, [args.benchmark] if args.benchmark else [])
    if args.data_dir is not None:
        os.environ["OSIRIS_DATA"] = str(args.data_dir)
    if args.plan:
        print(f"# {recipe.title}, preset {args.preset}")
        print_plan(GridDirectory(args.out, grid.runs()), args.jobs or default_jobs())
        return 0
    directory = GridDirectory(args.out)
    run_grids(directory, [grid], args.jobs, args.retries)
    name = "".join(letter for letter in args.target.lower() if letter.isalnum())
    page = finish(directory, grid.runs(), args.out / name, recipe.title)
    for benchmark in grid.benchmarks:
        for file in recipe.files:
            stem = page.parent / file.format(benchmark=benchmark)
            for path in sorted(stem.parent.glob(f"{stem.name}.*")):
                say(str(path))
    say(f"report: {page}")
    return 0
