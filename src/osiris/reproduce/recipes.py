"""Which runs each table and figure of the paper is made of, as plain data."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from osiris.errors import unknown

FIVE, TWENTY = "split-cifar100-5", "split-cifar100-20"
STRUCTURED, TINY = "structured-cifar100", "structured-tiny-imagenet"
ZOO = ("ft", "er", "der", "lump", "er+", "er++", "osiris-r", "ewc", "cassle", "pocon", "osiris-d", "offline")
RECENT = ("ft", "lump", "cassle", "pocon", "osiris-r", "osiris-d", "offline")
ABLATIONS = ("osiris-d/shared-space", "osiris-d/no-cross", "osiris-d/no-past", "osiris-d")
COMPARED = ("ft", "lump", "cassle", "osiris-d")
REPLAY = ("er", "lump", "osiris-r", "osiris-d")
GEOMETRY = ("offline", "ft", "osiris-d")

INTERVALS = {
    "paper": (500, 100),
    "paper-released": (500, 100),
    "fast-long": (64, 32),
    "fast": (32, 16),
    "smoke": (2, 2),
}
"""Preset -> steps between evaluations inside tasks, and between looks at the memory."""


@dataclass(frozen=True)
class Recipe:
    """The runs behind one table or figure, and the files of the report that show it."""

    title: str
    benchmarks: tuple[str, ...]
    methods: tuple[str, ...]
    shows: tuple[str, ...]
    """Files of the report, with {benchmark}."""
    norms: tuple[str, ...] = ("gn",)
    curves: bool = False
    """Evaluate inside tasks as well."""
    tracked: bool = False
    """Track overfitting to the memory."""


def _table(protocol: str) -> tuple[str, ...]:
    return (f"tables/{{benchmark}}-{protocol}",)


RECIPES: dict[str, Recipe] = {
    "table2": Recipe("Table 2: standard Split-CIFAR-100", (FIVE, TWENTY), ZOO, _table("class-agnostic")),
    "table3": Recipe("Table 3: structured benchmarks", (STRUCTURED, TINY), RECENT, _table("class-agnostic")),
    "table4": Recipe("Table 4: ablation of osiris-d", (TWENTY,), ABLATIONS, _table("ablation-class-agnostic")),
    "table5": Recipe("Table 5: accuracy within environments", (TINY,), GEOMETRY, _table("environments")),
    "table6": Recipe("Table 6: Split-CIFAR-100, task known", (FIVE, TWENTY), ZOO, _table("task-aware")),
    "table7": Recipe("Table 7: structured benchmarks, task known", (STRUCTURED, TINY), RECENT, _table("task-aware")),
    "table8": Recipe("Table 8: ablation of osiris-d, task known", (TWENTY,), ABLATIONS, _table("ablation-task-aware")),
    "fig2": Recipe(
        "Figure 2: BatchNorm and GroupNorm",
        (TWENTY,),
        ("ft", "cassle", "lump", "d1-only"),
        ("figures/{benchmark}-norms",),
        norms=("bn", "gn"),
    ),
    "fig3": Recipe(
        "Figure 3: plasticity, consolidation, stability, and overfitting to the memory",
        (TWENTY,),
        tuple(dict.fromkeys(COMPARED + REPLAY)),
        ("figures/{benchmark}-trade-off", "figures/{benchmark}-overfitting"),
        curves=True,
        tracked=True,
    ),
    "fig3a": Recipe(
        "Figure 3a: plasticity, consolidation, stability",
        (TWENTY,),
        COMPARED,
        ("figures/{benchmark}-trade-off",),
        curves=True,
    ),
    "fig3b": Recipe(
        "Figure 3b: overfitting to the memory",
        (TWENTY,),
        REPLAY,
        ("figures/{benchmark}-overfitting",),
        tracked=True,
    ),
    "fig4": Recipe("Figure 4: similarity between classes", (TINY,), GEOMETRY, ("figures/{benchmark}-similarity",)),
    "fig5": Recipe(
        "Figure 5: overfitting to the memory, in g and in h",
        (TWENTY,),
        REPLAY,
        ("figures/{benchmark}-overfitting",),
        tracked=True,
    ),
    "fig6": Recipe(
        "Figure 6: accuracy against extra storage",
        (TWENTY,),
        tuple(name for name in ZOO if name != "offline"),
        ("figures/{benchmark}-storage", "tables/{benchmark}-storage-table"),
    ),
    "fig7": Recipe("Figure 7: distributions of similarity", (TINY,), GEOMETRY, ("figures/{benchmark}-distributions",)),
}
for _number, _tasks in ((8, "1 to 5"), (9, "6 to 10"), (10, "11 to 15"), (11, "16 to 20")):
    RECIPES[f"fig{_number}"] = Recipe(
        f"Figure {_number}: accuracy on tasks {_tasks} through training",
        (TWENTY,),
        COMPARED,
        ("figures/{benchmark}-tasks",),
        curves=True,
    )


@dataclass(frozen=True)
class PlannedRun:
    """One call of `osiris train`."""

    benchmark: str
    method: str
    norm: str
    seed: int
    preset: str
    evaluate_every: int | None = None
    track_overfitting: int | None = None

    @property
    def name(self) -> str:
        """The folder of the run: two tables that need the same run share it."""
        parts = [self.benchmark, self.method.replace("/", "-")]
        parts += [self.norm] if self.norm != "gn" else []
        parts += ["curve"] if self.evaluate_every else []
        parts += ["tracked"] if self.track_overfitting else []
        return re.sub(r"[^A-Za-z0-9.+-]+", "-", "-".join([*parts, self.preset, f"seed{self.seed}"]))

    @property
    def arguments(self) -> list[str]:
        """Of `osiris train`, without --out."""
        found = ["--method", self.method, "--benchmark", self.benchmark, "--preset", self.preset]
        found += ["--seed", str(self.seed)]
        found += ["--norm", self.norm] if self.norm != "gn" else []
        found += ["--evaluate-every", str(self.evaluate_every)] if self.evaluate_every else []
        found += ["--track-overfitting", str(self.track_overfitting)] if self.track_overfitting else []
        return found


def find_recipe(name: str) -> Recipe:
    """`table2`, `Table 2`, `fig3a`, `figure-3a`."""
    key = re.sub(r"[^a-z0-9]", "", name.lower()).replace("figure", "fig").replace("tab", "table", 1)
    key = key.replace("tablele", "table")
    if key not in RECIPES:
        raise unknown("table or figure", name, RECIPES)
    return RECIPES[key]


def planned_runs(
    recipe: Recipe, preset: str, seeds: Sequence[int], benchmarks: Sequence[str] | None = None
) -> list[PlannedRun]:
    """All runs, seed after seed, so that an interrupted chain has whole seeds."""
    evaluate_every, track = INTERVALS[preset]
    return [
        PlannedRun(
            benchmark,
            method,
            norm,
            seed,
            preset,
            evaluate_every if recipe.curves else None,
            track if recipe.tracked else None,
        )
        for seed in seeds
        for benchmark in (benchmarks or recipe.benchmarks)
        for method in recipe.methods
        for norm in recipe.norms
    ]
