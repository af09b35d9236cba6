"""The tables of `osiris list`: Table 1 with what was measured, costs, presets, benchmarks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from osiris.report.tables import Column, Number, Table

if TYPE_CHECKING:
    from osiris.analysis.framework import Facts
    from osiris.training.config import Config

MEGABYTE = 1e6
ROLES = ("current", "cross", "past")
WHY = {
    ("ewc", "isolated"): "ewc: its penalty reaches f alone, so g learns from X only; the paper gives no tick",
    ("cassle", "isolated"): "cassle: its L_past reaches f through g, so g's gradient depends on g*; the paper ticks it",
}
"""Where the paper's tick and the measured reach differ, and why."""


def _mark(value: bool) -> str:
    return "✓" if value else "-"


def methods_table(rows: Sequence[Facts], about: str) -> Table:
    """Table 1: the paper's tick, then the measured one, then which networks each loss reaches, then what is stored."""
    notes, body = [], []
    for row in rows:
        ticks = []
        for number, column in enumerate(("isolated", "cross", "past")):
            mark = "" if row.paper is None else f"{_mark(row.paper[number])} "
            mark += _mark(row.measured[number])
            if column in row.differences:
                notes.append(WHY.get((row.name, column), f"{row.name}: {column} differs from the paper"))
                mark += f" [{len(notes)}]"
            ticks.append(mark)
        reach = [" ".join(_reached(row, role)) or "-" for role in ROLES]
        storage = [Number(bytes_ / MEGABYTE) for bytes_ in (row.storage.paper, row.storage.stored)]
        body.append((row.name, row.kind, *ticks, *reach, row.stores, *storage))
    columns = ("method", "kind", "isolated", "L_cross", "L_past", "current →", "cross →", "past →", "stores")
    explained = (
        "isolated, L_cross, L_past: the paper's tick, then the one measured on the code (one mark: not in the paper)",
        "isolated: a projector of L_current learns from X alone; L_cross: X and Y meet in one loss; "
        "L_past: f learns from the memory or the past",
        "→: the networks that get gradient from the loss; er+, er++ and lump have all three losses in one",
        "also er+/plus-replay and er+/plus-current, and after osiris-r or osiris-d /shared-space, /no-cross, /no-past",
        f"MB beyond f and g, {about}: each parameter and pixel channel as 64 bits (paper), as really stored (stored)",
    )
    return Table(
        title="Methods (Table 1 of the paper, and what was measured)",
        columns=(*(Column(name) for name in columns), Column("MB paper"), Column("MB stored")),
        rows=tuple(body),
        notes=(*(f"[{number}] {note}" for number, note in enumerate(notes, start=1)), *explained),
        rules=_rules(rows),
    )


def _reached(row: Facts, role: str) -> list[str]:
    return list(dict.fromkeys(symbol for term in row.terms if term.role == role for symbol in term.reaches))


def _rules(rows: Sequence[Facts]) -> frozenset[int]:
    """A rule where the kind changes."""
    return frozenset(index for index in range(1, len(rows)) if rows[index].group != rows[index - 1].group)


def cost_table(rows: Sequence[Facts]) -> Table:
    """Encoder passes per image of X, forward + backward, from the second task on."""
    from osiris.analysis.framework import total_cost

    sources = ("f: X", "f: Y", "f: mixed", "expert: X", "frozen: X")
    body = []
    for row in rows:
        costs = {_source(name): cost for name, cost in row.cost.items()}
        assert set(costs) <= set(sources), costs
        total = total_cost(row.cost)
        body.append((row.name, *(str(costs.get(name, "-")) for name in sources), str(total)))
    return Table(
        title="Encoder passes for each image of X: forward + backward",
        columns=tuple(Column(name) for name in ("method", *sources, "sum")),
        rows=tuple(body),
        notes=(
            "counted by running one step of the second task; the first task of every method costs 2+2",
            "ewc passes over each task once more (2+2) at its end, for the Fisher",
        ),
        rules=_rules(rows),
    )


def _source(name: str) -> str:
    """`f: mix(0.4)` to `f: mixed`, `f*: X` to `frozen: X`."""
    return "f: mixed" if name.startswith("f: mix") else name.replace("f*", "frozen")


def presets_table(configs: dict[str, Config]) -> Table:
    """What each preset sets, for one benchmark."""
    names = "preset encoder projector epochs batch memory rate decay images k τ"
    body = [(name, *_preset(config)) for name, config in configs.items()]
    benchmark = next(iter(configs.values())).data.benchmark
    return Table(
        title=f"Presets, for {benchmark}",
        columns=tuple(Column(name) for name in names.split()),
        rows=tuple(body),
        notes=(
            "encoder: width, blocks per stage, stride of the stem, norm; projector: hidden, output",
            "images: per class, train / bank / test; k: neighbours of the KNN; every value is a flag of osiris train",
        ),
    )


def _preset(config: Config) -> tuple[str, ...]:
    encoder, learning, data = config.encoder, config.learning, config.data
    blocks = "".join(str(count) for count in encoder.blocks)
    counts = (data.train_per_class, data.bank_per_class, data.test_per_class)
    return (
        f"{encoder.width} {blocks} /{encoder.stem_stride} {encoder.norm}",
        f"{config.projector.projector_hidden} {config.projector.projector_output}",
        str(learning.epochs),
        str(learning.batch_size),
        str(learning.memory_size),
        f"{learning.learning_rate:g}",
        f"{learning.weight_decay:g}",
        "all" if counts == (None, None, None) else "/".join("all" if n is None else str(n) for n in counts),
        str(config.evaluation.k),
        f"{learning.tau:g}",
    )


def benchmarks_table(rows: Sequence[dict[str, Any]]) -> Table:
    body = []
    for row in rows:
        size = "-" if row["bytes"] is None else f"{row['bytes'] / MEGABYTE:.0f} MB"
        images = f"{row['train_images']:,} + {row['test_images']:,}"
        pixels = f"{row['image_size']}x{row['image_size']}"
        body.append((row["name"], str(row["tasks"]), str(row["classes"]), images, pixels, row["present"], size))
    names = ("benchmark", "tasks", "classes", "images (train + test)", "pixels", "here", "on disk")
    described = tuple(f"{row['name']}: {row['about']}" for row in rows)
    own = "also split-DATASET-N, folder:PATH, dataset:NAME and arrays:FILE.npz (osiris data --help)"
    return Table("Benchmarks", tuple(Column(name) for name in names), tuple(body), (*described, own))
