"""`osiris bench`: the speeds that matter on this machine, as ratios."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Args:
    """Measure augmentation, a training step, the encoders, the losses, evaluation and start-up, in a few minutes.

    Every result is a ratio of two times, measured alternately on one thread, so that other load matters little.

    Examples:
      osiris bench
      osiris bench --repeats 9
    """

    repeats: int = 5
    """Turns per measurement; the median is shown."""


def run(args: Args) -> int:
    import torch
    from rich.table import Table

    from osiris.bench import PARTS
    from osiris.console import console
    from osiris.errors import UserError

    if args.repeats < 1:
        raise UserError(f"--repeats {args.repeats} measures nothing; use a positive number, such as 5.")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        rows = []
        for part in PARTS:
            with console.status(f"measuring: {part.__name__.replace('_', ' ')}"):
                rows += part(args.repeats)
    finally:
        torch.set_num_threads(before)
    table = Table(title=f"medians of {args.repeats} turns, one thread, torch {torch.__version__}")
    for name in ("what", "ratio", "target", ""):
        table.add_column(name, justify="left" if name in ("what", "target") else "right")
    for row in rows:
        table.add_row(row.what, f"{row.ratio:.3g}", row.target, "met" if row.met else "missed")
    console.print(table)
    return 0
