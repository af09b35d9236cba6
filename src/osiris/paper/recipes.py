"""The runs that each table and figure of the paper needs, as data."""

from __future__ import annotations

import re
from dataclasses import dataclass

from osiris.errors import unknown
from osiris.paper.published import COMPARED, FIVE, STRUCTURED, STRUCTURED_TINY, TABLE_4, TRACKED, TWENTY

TABLE_2 = ("ft", "er", "der", "lump", "er+", "er++", "osiris-r", "ewc", "cassle", "pocon", "osiris-d", "offline")
TABLE_3 = ("ft", "lump", "cassle", "pocon", "osiris-r", "osiris-d", "offline")
FIGURE_2 = ("ft", "cassle", "lump", "d1-only")
GEOMETRY = ("offline", "ft", "osiris-d")

INTERVALS = {
    "paper": (500, 100),
    "paper-released": (500, 100),
    "gpu": (500, 100),
    "fast-long": (64, 32),
    "fast": (32, 16),
    "smoke": (2, 2),
    "climb": (675, 100),
}
"""Preset -> steps between evaluations inside tasks, and between measurements of overfitting to the memory."""

SMALL_RESNET = {"family": ("resnet",), "width": ("16",), "blocks": ("1 1 1 1",), "stem_stride": ("2",)}
"""For comparisons of normalisations with presets whose encoder has none."""


@dataclass(frozen=True)
class Recipe:
    """The runs behind one table or figure, and the files of the report that show it."""

    title: str
    benchmarks: tuple[str, ...]
    methods: tuple[str, ...]
    files: tuple[str, ...]
    """Paths of its files in the report, without endings; {benchmark} is replaced."""
    norms: tuple[str, ...] = ()
    """Normalisations to compare; empty: the preset's."""
    curves: bool = False
    """Evaluate inside tasks as well."""
    tracked: bool = False
    """Track overfitting to the memory."""

    def settings(self, preset: str) -> dict[str, tuple[str, ...]]:
        """Options of `osiris train` for these runs, other than method, benchmark and seed."""
        if preset not in INTERVALS:
            raise unknown("preset", preset, INTERVALS)
        evaluate_every, track = INTERVALS[preset]
        settings = {"norm": self.norms} if self.norms else {}
        settings |= SMALL_RESNET if self.norms and preset.startswith("fast") else {}
        settings |= {"evaluate_every": (str(evaluate_every),)} if self.curves else {}
        return settings | ({"track_overfitting": (str(track),)} if self.tracked else {})


def _table(protocol: str) -> tuple[str, ...]:
    return (f"tables/{{benchmark}}-{protocol}",)


def _figure(*names: str) -> tuple[str, ...]:
    return tuple(f"figures/{{benchmark}}-{name}" for name in names)


STORAGE = _figure("storage") + _table("cost")
RECIPES: dict[str, Recipe] = {
    "table2": Recipe("Table 2: standard Split-CIFAR-100", (FIVE, TWENTY), TABLE_2, _table("class-agnostic")),
    "table3": Recipe(
        "Table 3: structured benchmarks", (STRUCTURED, STRUCTURED_TINY), TABLE_3, _table("class-agnostic")
    ),
    "table4": Recipe("Table 4: ablation of osiris-d", (TWENTY,), TABLE_4, _table("ablation-class-agnostic")),
    "table5": Recipe("Table 5: accuracy within environments", (STRUCTURED_TINY,), GEOMETRY, _table("environments")),
    "table6": Recipe("Table 6: Split-CIFAR-100, task known", (FIVE, TWENTY), TABLE_2, _table("task-aware")),
    "table7": Recipe(
        "Table 7: structured benchmarks, task known", (STRUCTURED, STRUCTURED_TINY), TABLE_3, _table("task-aware")
    ),
    "table8": Recipe("Table 8: ablation of osiris-d, task known", (TWENTY,), TABLE_4, _table("ablation-task-aware")),
    "fig2": Recipe("Figure 2: BatchNorm and GroupNorm", (TWENTY,), FIGURE_2, _figure("norms"), norms=("bn", "gn")),
    "fig3": Recipe(
        "Figure 3: plasticity, consolidation, stability, and overfitting to the memory",
        (TWENTY,),
        tuple(dict.fromkeys(COMPARED + TRACKED)),
        _figure("trade-off", "overfitting"),
        curves=True,
        tracked=True,
    ),
    "fig3a": Recipe(
        "Figure 3a: plasticity, consolidation, stability", (TWENTY,), COMPARED, _figure("trade-off"), curves=True
    ),
    "fig3b": Recipe("Figure 3b: overfitting to the memory", (TWENTY,), TRACKED, _figure("overfitting"), tracked=True),
    "fig4": Recipe("Figure 4: similarity between classes", (STRUCTURED_TINY,), GEOMETRY, _figure("similarity")),
    "fig5": Recipe(
        "Figure 5: overfitting to the memory, in g and in h", (TWENTY,), TRACKED, _figure("overfitting"), tracked=True
    ),
    "fig6": Recipe("Figure 6: accuracy against extra storage", (TWENTY,), TABLE_2[:-1], STORAGE),
    "fig7": Recipe("Figure 7: distributions of similarity", (STRUCTURED_TINY,), GEOMETRY, _figure("distributions")),
}
for number, tasks in ((8, "1 to 5"), (9, "6 to 10"), (10, "11 to 15"), (11, "16 to 20")):
    title = f"Figure {number}: accuracy on tasks {tasks} through training"
    RECIPES[f"fig{number}"] = Recipe(title, (TWENTY,), COMPARED, _figure("tasks"), curves=True)


def find_recipe(name: str) -> Recipe:
    """The recipe of a table or figure, given as `table2`, `Table 2`, `tab2`, `fig3a` or `figure-3a`."""
    key = re.sub(r"[^a-z0-9]", "", name.lower())
    key = re.sub(r"^(?:figure|fig)", "fig", re.sub(r"^(?:table|tab)", "table", key))
    if key not in RECIPES:
        raise unknown("table or figure", name, RECIPES)
    return RECIPES[key]
