"""The tables of `osiris list`: Table 1 with what was measured, costs, presets, benchmarks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from osiris.config import Config
from osiris.data.load import BenchmarkDescription
from osiris.reporting.tables import Number, Table

if TYPE_CHECKING:
    from osiris.paper.table1 import Facts  # imports torch

MEGABYTE = 1e6
PARTS = ("current", "cross", "past")
WHY = {
    ("ewc", "isolated"): "ewc: its penalty reaches f alone, so g learns from X only; the paper gives no tick",
    ("cassle", "isolated"): "cassle: its L_past reaches f through g, so g's gradient depends on g*; the paper ticks it",
}
"""Where the paper's tick and the measured reach differ, and why."""


def _mark(value: bool) -> str:
    return "✓" if value else "-"


ABOUT = {
    "ft": "the current task alone",
    "er": "the same loss on the memory",
    "er+": "memory images as further negatives",
    "er++": "one loss on the union",
    "der": "memory images stay where they were embedded",
    "lump": "mixtures of current and memory images",
    "osiris-r": "cross and replay losses in a space of their own",
    "ewc": "important parameters stay where they were",
    "cassle": "the model predicts its checkpoint's embeddings",
    "pocon": "a free expert, and f follows its snapshots",
    "osiris-d": "cross and distillation losses in a space of their own",
    "pfr": "the encoder predicts its checkpoint's output",
    "pnr": "the checkpoint's embeddings are further negatives",
    "cromo": "mixtures resemble the current and the checkpoint's embeddings",
    "minred": "learns from a memory without redundant images",
    "cla-e": "the memory is aligned with a moving average of the model",
    "cla-r": "the memory is aligned with stored embeddings",
    "cla-b": "the current batch is aligned with a moving average",
    "storyboard": "frames of one scene of a film are positives",
    "readout": "a linear map of a frozen network's layers",
    "smt": "a feature layer from scratch, by sums over codes of patches",
    "offline": "all tasks at once: the soft upper bound",
    "d1-only": "the first task for the whole time",
}
"""A method in one line; docs/methods/README.md says the same."""


def about_table(rows: Sequence[Facts]) -> Table:
    """What each method is, what it costs and keeps, and where it is explained."""
    from osiris.framework.cost import TWO_VIEWS, later_cost  # imports torch
    from osiris.framework.methods import find_method

    body = []
    for row in rows:
        method = find_method(row.name)
        work = Number(None) if method.sums else Number(later_cost(method).work / TWO_VIEWS.work, decimals=2)
        page = f"docs/methods/{row.name}.md" if row.name in ABOUT else ""
        body.append((row.name, ABOUT.get(row.name, ""), work, row.stores, page))
    return Table.of(
        "Methods",
        ("method", "in one line", "work", "keeps", "page"),
        body,
        "work: of the encoder for each image from the second task on, relative to ft; sums pass once and forwards only",
        "keeps: f*, g* are copies of networks from before the task; see also osiris list methods --cost",
        rules=_rules(rows),
    )


def methods_table(rows: Sequence[Facts]) -> Table:
    """Table 1: the paper's tick, then the measured one, then which networks each loss reaches."""
    notes, body = [], []
    for row in rows:
        ticks = []
        for number, column in enumerate(("isolated", "cross", "past")):
            mark = "" if row.paper is None else f"{_mark(row.paper[number])} "
            mark += "" if row.measured is None else _mark(row.measured[number])
            if column in row.differences:
                notes.append(WHY.get((row.name, column), f"{row.name}: {column} differs from the paper"))
                mark += f" [{len(notes)}]"
            ticks.append(mark)
        reached = {role: [term.reaches for term in row.terms if term.role == role] for role in PARTS}
        symbols = [" ".join(dict.fromkeys(symbol for each in reached[role] for symbol in each)) for role in PARTS]
        body.append((row.name, row.origin, *ticks, *(text or "-" for text in symbols)))
    names = ("method", "from", "isolated", "cross", "past", "L_current →", "L_cross →", "L_past →")
    return Table.of(
        "Methods: Table 1 of the paper, and what was measured",
        names,
        body,
        *(f"[{number}] {note}" for number, note in enumerate(notes, start=1)),
        "from: the paper; later: published after it; osiris: not published elsewhere; reference: not continual",
        "readout and smt learn by sums over images: they have no losses, and no columns of them",
        "isolated, cross, past: the paper's tick, then the one measured on the code (one mark: not in the paper)",
        "isolated: a projector of L_current learns from X alone",
        "cross: X and Y meet in one loss; past: f learns from the memory or the past",
        "→: the networks that get gradient from a loss; er+, er++, lump and cla-* join X and Y",
        "also er+/plus-replay, er+/plus-current, and osiris-r or osiris-d with /shared-space, /no-cross, /no-past; "
        "/renormalised and /equal-work of any method",
        rules=_rules(rows),
    )


def storage_table(rows: Sequence[Facts], about: str) -> Table:
    """Replay or distillation, what is kept, and how much that is."""
    body = []
    for row in rows:
        sizes = [Number(count / MEGABYTE) for count in (row.storage.paper, row.storage.stored)]
        body.append((row.name, row.kind, row.stores, *sizes))
    return Table.of(
        f"What methods keep beyond f and g ({about})",
        ("method", "kind", "stores", "MB, paper", "MB, stored"),
        body,
        "paper: each extra parameter and each pixel channel of the memory as a 64-bit value (Fig. 6)",
        "stored: as it lies in a checkpoint, without the optimiser's momentum of extra trained networks",
        rules=_rules(rows),
    )


def _rules(rows: Sequence[Facts]) -> frozenset[int]:
    """The rows that start a new group, before which a rule is drawn."""
    return frozenset(index for index in range(1, len(rows)) if rows[index].group != rows[index - 1].group)


def cost_table(rows: Sequence[Facts]) -> Table:
    """Encoder passes per image of X, forward + backward, from the second task on."""
    from osiris.framework.cost import total_cost  # imports torch

    usual = ("f: X", "f: Y", "f: mixed", "expert: X", "frozen: X")
    sources = tuple(dict.fromkeys([*usual, *(_source(name) for row in rows for name in row.cost)]))
    body = []
    for row in rows:
        cells = []
        for source in sources:
            parts = {name: cost for name, cost in row.cost.items() if _source(name) == source}
            cells.append(str(total_cost(parts)) if parts else "-")
        body.append((row.name, *cells, str(total_cost(row.cost))))
    return Table.of(
        "Encoder passes for each image of X: forward + backward",
        ("method", *sources, "sum"),
        body,
        "counted by running one step of the second task; the first task of every method but readout and smt costs 2+2",
        "ewc passes over each task once more (2+2) at its end, for the Fisher; readout and smt over each task once",
        rules=_rules(rows),
    )


def _source(name: str) -> str:
    """`f: mix(0.4)` to `f: mixed`, `f*: X` to `frozen: X`."""
    return "f: mixed" if name.startswith("f: mix") else name.replace("f*", "frozen")


def presets_table(configs: dict[str, Config]) -> Table:
    """What each preset sets, for one benchmark; one column for each preset."""
    settings = {name: _settings(config) for name, config in configs.items()}
    first = next(iter(settings.values()))
    benchmark = next(iter(configs.values())).data.benchmark
    rows = [(setting, *(values[setting] for values in settings.values())) for setting in first]
    return Table.of(
        f"Presets, for {benchmark}",
        ("setting", *configs),
        rows,
        "osiris train --help has the flags",
    )


def _settings(config: Config) -> dict[str, str]:
    encoder, learning, data = config.encoder, config.learning, config.data
    counts = (data.train_per_class, data.bank_per_class, data.test_per_class)
    resnet = encoder.family == "resnet"
    return {
        "encoder family": encoder.family,
        "encoder width": str(encoder.width),
        "blocks": " ".join(str(count) for count in encoder.blocks),
        "stem stride": str(encoder.stem_stride) if resnet else "-",
        "norm": encoder.norm if resnet else "-",
        "projector": f"{config.projector.projector_hidden}, {config.projector.projector_output}",
        "epochs": str(learning.epochs),
        "batch": str(learning.batch_size),
        "memory": str(learning.memory_size),
        "optimiser": learning.optimiser,
        "learning rate": f"{learning.learning_rate:g}",
        "weight decay": f"{learning.weight_decay:g}",
        "train per class": _count(counts[0]),
        "bank per class": _count(counts[1]),
        "test per class": _count(counts[2]),
        "k of the KNN": str(config.evaluation.k),
        "random encoders": str(config.evaluation.random_encoders),
        "pocon interval": _count(config.method.pocon_interval, "a quarter"),
    }


def _count(value: int | None, absent: str = "all") -> str:
    return absent if value is None else str(value)


def benchmarks_table(rows: Sequence[BenchmarkDescription]) -> Table:
    body = []
    for row in rows:
        here = row.present.partition(":")[0]
        here += "" if row.bytes_on_disk is None else f", {row.bytes_on_disk / MEGABYTE:.0f} MB"
        tasks = f"{row.tasks} of {row.classes // row.tasks}"
        body.append((row.name, tasks, f"{row.train_images:,}", f"{row.test_images:,}", str(row.image_size), here))
    described = tuple(f"{row.name}: {row.about}" for row in rows)
    return Table.of(
        "Benchmarks",
        ("benchmark", "tasks", "train", "test", "px", "here"),
        body,
        *described,
        "tasks: how many, and of how many classes; px: side of the images; here: no means fetched when needed",
        "also split-DATASET-N, folder:PATH, dataset:NAME and arrays:FILE.npz (osiris data --help)",
    )
