"""osiris compare: finished runs in one table."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro


@dataclass(frozen=True)
class Args:
    """Compare finished runs: methods over seeds, the best and second best marked.

    Runs of one method with different seeds make one row. Runs that were measured under different protocols are
    refused: their numbers mean different things. The first rows are features that were not learned: the untrained
    encoder, and what `osiris evaluate RUN --baseline NAME` measured.

    Examples:
      osiris compare runs/ft-0 runs/ft-1 runs/osiris-d-0 runs/osiris-d-1
      osiris compare runs --protocol task-aware --format latex
      osiris compare runs --with-paper
    """

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[RUN ...]")]
    """Run directories, or folders with run directories in them."""
    protocol: Literal["class-agnostic", "task-aware", "task-aware-masked"] = "class-agnostic"
    """Under which protocol to compare."""
    format: Literal["text", "markdown", "latex", "csv"] = "text"
    by: Literal["method", "run"] = "method"
    """One row per method (mean over seeds) or per run."""
    with_paper: bool = False
    """Put the published numbers below ours."""


def run(args: Args) -> int:
    from osiris.errors import UserError
    from osiris.evaluation.runs import load_runs
    from osiris.report.comparison import comparison_table
    from osiris.report.tables import show

    if not args.runs:
        raise UserError("name the runs to compare, for example `osiris compare runs`.")
    show(comparison_table(load_runs(args.runs), args.protocol, args.by, args.with_paper), args.format)
    return 0
