"""`osiris report`, `compare` and `paper`: pages and tables from finished runs, and the published numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import tyro

from osiris.commands import command
from osiris.console import notice, say
from osiris.errors import UserError
from osiris.evaluation.config import Protocol
from osiris.evaluation.differences import Varying
from osiris.models.external import typed_encoder
from osiris.paper import published
from osiris.presets import MEANINGLESS
from osiris.reporting.comparison import comparison_table, online_table, published_table
from osiris.reporting.tables import show
from osiris.reporting.tidy import write_tidy
from osiris.runs.run import load_runs

Format = Literal["text", "markdown", "latex", "csv"]
Runs = Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[RUN ...]")]


@command("report")
def report_command(
    runs: Runs,
    out: Path = Path("report"),
    title: str | None = None,
    encoder: str | None = None,
) -> None:
    """Make report.html, and every figure (SVG, PNG) and table (CSV, Markdown, LaTeX), from finished runs.

    The page is self-contained: it can be sent, archived or opened offline. Sections that the given runs do not support
    are left out, and a line at the end says which run would add them.

    Examples:
      osiris report runs --out report
      osiris report runs/ft-0 runs/osiris-d-0 --out report --title "My first runs"

    Args:
        runs: Run directories, or folders with run directories in them.
        out: Where report.html, figures/ and tables/ go.
        title: Heading of the page.
        encoder: For runs whose encoder is your own: `package.module:function`, as it was given to `osiris train`.
    """
    from osiris.reporting.page import make_report  # imports matplotlib

    if not runs:
        raise UserError("name the runs to report on, for example `osiris report runs`.")
    if encoder is not None:
        typed_encoder(encoder)
    say(f"report: {make_report(list(runs), out, title)}")


@command("compare")
def compare_command(
    runs: Runs,
    protocol: Protocol = "class-agnostic",
    format: Format = "text",
    by: Literal["method", "run"] = "method",
    with_paper: bool = False,
    against: Annotated[str | None, tyro.conf.arg(metavar="METHOD")] = None,
    varying: Varying | None = None,
    out: Path | None = None,
) -> None:
    """Compare finished runs: methods over seeds, the best and second best marked.

    Runs of one method with different seeds make one row, runs with different settings several. Runs that were measured
    under different protocols are refused: their numbers mean different things. The first rows are features that were
    not learned: the untrained encoder, and what `osiris evaluate RUN --baseline NAME` measured.

    Examples:
      osiris compare runs/ft-0 runs/ft-1 runs/osiris-d-0 runs/osiris-d-1
      osiris compare runs --protocol task-aware --format latex
      osiris compare runs --protocol class-agnostic-probe
      osiris compare runs --with-paper
      osiris compare runs --against ft --varying both
      osiris compare runs --out numbers.parquet

    Args:
        runs: Run directories, or folders with run directories in them.
        protocol: Under which protocol to compare. `class-agnostic-probe` needs runs with --probe, or
            `osiris evaluate RUN --probe`.
        by: One row per method (mean over seeds) or per run.
        with_paper: Put the published numbers below ours.
        against: The row that the others are tested against, by its name in the table. Default: the best.
        varying: What the interval and p are about: other seeds on the same test images, other images with these very
            runs, or both. Default: seeds, if there are two or more.
        out: Write all numbers instead, one row for each run, protocol and metric, to NAME.csv or NAME.parquet. The runs
            may have different benchmarks and protocols.
    """
    if not runs:
        raise UserError("name the runs to compare, for example `osiris compare runs`.")
    loaded = load_runs(runs)
    if out is not None:
        write_tidy(loaded, out)
        say(f"{len(loaded)} runs: {out}")
        return
    show(comparison_table(loaded, protocol, by, with_paper, against=against, varying=varying), format)
    if any(run.metrics.preset == "smoke" for run in loaded):
        notice(MEANINGLESS)


@command("paper")
def paper_command(
    benchmark: str | None = None,
    protocol: Literal["class-agnostic", "task-aware"] | None = None,
    table: Literal["methods", "ablation", "environments", "online"] = "methods",
    format: Format = "text",
) -> None:
    """Print the results that the paper published.

    Examples:
      osiris paper --benchmark split-cifar100-20
      osiris paper --benchmark structured-tiny-imagenet --protocol task-aware --format latex
      osiris paper --table ablation
      osiris paper --table environments
      osiris paper --table online                  of another paper: learning from a stream

    Args:
        benchmark: split-cifar100-5, split-cifar100-20, structured-cifar100 or structured-tiny-imagenet. None means
            split-cifar100-20.
        protocol: Whether the KNN knows the task of a test image. None means class-agnostic.
        table: All methods; osiris-d without its parts (split-cifar100-20); accuracy within the environments
            (Tiny-ImageNet); the tables of CLIMB, of which the paper has none (docs/streams.md).
    """
    if table == "online":
        if benchmark is not None or protocol is not None:
            raise UserError("--table online has two data sets and one protocol: leave out --benchmark and --protocol.")
        for dataset in published.online():
            show(online_table(dataset), format)
        return
    only = {"ablation": published.TWENTY, "environments": published.STRUCTURED_TINY}
    if benchmark not in (None, only.get(table, benchmark)):
        raise UserError(f"--benchmark {benchmark}: --table {table} is of {only[table]} alone; leave it out.")
    if protocol is not None and table == "environments":
        raise UserError("--protocol changes nothing with --table environments: leave it out.")
    show(published_table(benchmark or published.TWENTY, protocol or "class-agnostic", table), format)
