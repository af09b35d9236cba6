"""`osiris report`: the HTML page, its figures and its tables, from run directories alone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro


@dataclass(frozen=True)
class Args:
    """Make report.html, and every figure (SVG, PNG) and table (CSV, Markdown, LaTeX), from finished runs.

    The page is self-contained: it can be sent, archived or opened offline. Sections that the given runs do not support
    are left out, and a line at its end says which run would add them.

    Examples:
      osiris report runs --out report
      osiris report runs/ft-0 runs/osiris-d-0 --out report --title "My first runs"
    """

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[RUN ...]")]
    """Run directories, or folders with run directories in them."""
    out: Path = Path("report")
    """Where report.html, figures/ and tables/ go."""
    title: str | None = None
    """Heading of the page."""
    slow: bool = False
    """Also compute what takes long: overfitting to the memory from the checkpoints of large runs (then cached)."""


def run(args: Args) -> int:
    from osiris.console import say
    from osiris.errors import UserError
    from osiris.report.page import make_report

    if not args.runs:
        raise UserError("name the runs to report on, for example `osiris report runs`.")
    page = make_report(list(args.runs), args.out, args.title, args.slow)
    say(f"report: {page}")
    return 0
