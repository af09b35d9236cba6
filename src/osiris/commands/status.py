"""`osiris status`: what a state has learned from, and what it holds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro


@dataclass(frozen=True)
class Args:
    """Show the episodes of a state or run, what its memory holds, the health of its features, and its size on disk.

    drift: how far the episode moved the features of the memory's images (1 - cosine). reference: KNN accuracy on the
    labelled images of `osiris observe --reference`.

    Examples:
      osiris status state
    """

    state: Annotated[Path, tyro.conf.Positional]
    """The directory of a state or run."""


def run(args: Args) -> int:
    from rich.table import Table

    from osiris.console import console, notice, printable, say
    from osiris.learner import Learner

    status = Learner(args.state).status()
    table = Table(title=f"{printable(str(args.state))}: {status['bytes'] / 2**20:.1f} MB on disk")
    for column in ("episode", "images", "in the memory", "drift", "reference"):
        table.add_column(column, justify="left" if column == "episode" else "right")
    observed = {one.task: one for one in status["observations"].episodes}
    for number, ((name, images), in_memory) in enumerate(zip(status["episodes"], status["memory"])):
        one = observed.get(number)
        drift = "" if one is None or one.drift is None else f"{one.drift:.3f}"
        accuracy = "" if one is None or one.reference is None else f"{one.reference.accuracy:.1f} %"
        table.add_row(printable(name), str(images), str(in_memory), drift, accuracy)
    table.add_section()
    table.add_row("all", str(sum(count for _, count in status["episodes"])), str(sum(status["memory"])))
    console.print(table, markup=False)
    if status["unfinished"] is not None:
        notice(f"{status['unfinished']} is not finished: observe it again to continue.")
    if status["health"] is not None:
        health = status["health"]
        text = f"features: {health.dimension} numbers, effective rank {health.effective_rank:.1f}"
        say(f"{text}, spread {health.spread:.2f}")
    return 0
