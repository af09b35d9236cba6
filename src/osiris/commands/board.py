"""`osiris board`: results of runs by anybody, checked before they are listed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

from osiris.commands import command
from osiris.console import progress, say, warn
from osiris.errors import UserError
from osiris.files import require_writable, write_text
from osiris.grids.board import board_page, board_tables, of_file, of_paper, of_runs
from osiris.runs.run import load_runs
from osiris.training.verify import Checked, check_claims

ENDINGS = (".html", ".md")


@command("board")
def board_command(
    sources: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[RUN|CSV ...]")],
    out: Path = Path("board.html"),
    title: str = "Board",
    verify: bool = False,
    paper: bool = False,
) -> None:
    """Make a page of results from run directories, whoever made them.

    Each row has method, numbers, seeds, budget and the command of a run. Rows that cannot be compared (another
    benchmark, protocol or fingerprint) stand in different tables. Before a run is listed, its numbers are checked
    against its evaluations; with --verify they are measured again from its weights, in seconds to minutes per run. A
    run that does not give the numbers that it claims is left out and named, and the command ends with an error.

    Examples:
      osiris board runs --out board.html --verify
      osiris board runs docs/results/runs.csv --paper --out board.md

    Args:
        sources: Run directories, folders with run directories in them, or files in the format of a sweep's results.csv,
            whose numbers cannot be checked.
        out: The page; its ending says what is written: .html or .md.
        title: Heading of the page.
        verify: Evaluate the weights of every run again.
        paper: Also list the published numbers, in tables of their own.
    """
    if out.suffix not in ENDINGS:
        raise UserError(f"--out {out}: give a name that ends in {' or '.join(ENDINGS)}.")
    if not sources and not paper:
        raise UserError("name the runs to list, for example `osiris board runs --out board.html`.")
    require_writable(out.parent)
    files = [path for path in sources if path.suffix == ".csv"]
    folders = [path for path in sources if path.suffix != ".csv"]
    runs = [run for run in (load_runs(folders) if folders else []) if run.metrics.complete and run.metrics.labelled]
    checked: dict[Path, Checked] = {}
    refused: list[str] = []
    with progress("checking", len(runs)) as ticker:
        for run in runs:
            try:
                checked[run.path], problems = check_claims(run, verify)
            except UserError as error:
                problems = [str(error).rstrip(".")]
            if problems:
                refused.append(f"{run.path} is not listed: {'; '.join(problems[:3])}.")
                checked.pop(run.path, None)
            ticker.advance()
    listed = [run for run in runs if run.path in checked]
    tables = board_tables([of_runs(listed, checked), *map(of_file, files), *([of_paper()] if paper else [])])
    write_text(out, board_page(tables, title, out.suffix[1:]))
    for line in refused:
        warn(line)
    say(f"{len(listed)} runs in {len(tables)} tables: {out}")
    if refused:
        raise UserError(f"{len(refused)} of {len(runs)} runs are not listed, because they do not give what they claim.")
