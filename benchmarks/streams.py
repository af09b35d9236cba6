"""Tables and the figure of docs/results/streams.md, from the runs of a folder: NAME-SEED directories.

python benchmarks/streams.py RUNS [--figure PATH] [--cuts BENCHMARK FRAMES]
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from osiris.data.tinyworld.walk import stations
from osiris.files import write_atomically
from osiris.reporting.style import SETTINGS

RAW, WHITE = "class-agnostic", "class-agnostic-whitened"
NEAR = 8
"""Frames within which a cut finds the beginning of a scene."""


def read(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Name -> metrics.json of every seed."""
    runs: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for path in sorted(folder.glob("*/metrics.json")):
        runs[path.parent.name.rsplit("-", 1)[0]].append(json.loads(path.read_text()))
    return runs


def course(metrics: dict[str, Any], protocol: str) -> list[float]:
    points = [*(metrics.get("curve") or []), *metrics["evaluations"]]
    return [statistics.mean(point["protocols"][protocol]["accuracy"]) for point in points]


def spread(values: list[float]) -> str:
    if not values:
        return "-"
    return f"{statistics.mean(values):.1f}" + (f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else "")


def table(runs: dict[str, list[dict[str, Any]]]) -> None:
    print(f"untrained encoder: A {members_level(runs, RAW):.1f}, whitened {members_level(runs, WHITE):.1f}\n")
    print("| | seeds | A | A whitened | A mean | drop | F | C | coming | views (k) | frozen (k) | memory (kB) |")
    print("|---|---|---|---|---|---|---|---|---|---|---|---|")
    for name, members in sorted(runs.items(), key=lambda item: -statistics.mean(course(m, RAW)[-1] for m in item[1])):
        raw = [m["protocols"][RAW] for m in members]
        budget = members[0]["evaluations"][0].get("budget") or {}
        coming = [[c["coming"] for c in m.get("curve") or [] if c.get("coming") is not None] for m in members]
        cells = [
            spread([r["A"] for r in raw]),
            spread([m["protocols"][WHITE]["A"] for m in members]),
            spread([r["average"] for r in raw]),
            spread([r["drop"] for r in raw]),
            spread([r["F"] for r in raw]),
            spread([r["C"] for r in raw]),
            spread([statistics.mean(values) for values in coming if values]),
            f"{budget.get('backward', 0) / 1000:.0f}",
            f"{budget.get('forward', {}).get('frozen', 0) / 1000:.0f}",
            f"{budget.get('memory_bytes', 0) / 1000:.0f}",
        ]
        print(f"| {name} | {len(members)} | {' | '.join(cells)} |")


def cuts(runs: dict[str, list[dict[str, Any]]], benchmark: str, frames: int) -> None:
    """How well storyboard finds the beginnings of scenes, and the detector those of tasks, against random places."""
    ordered = benchmark == "walk:ordered"
    scenes = [station.start for station in stations(frames, ordered)][1:]
    tasks = [start for start in range(frames // 10, frames, frames // 10)] if ordered else []
    print("| | found | precision | recall | F1 | at random |\n|---|---|---|---|---|---|")
    for name, members in runs.items():
        budgets = [m["evaluations"][0].get("budget") or {} for m in members]
        for what, truth, near in (("cuts", scenes, NEAR), ("renewals", tasks, 256)):
            found = [one[what] for one in budgets if one.get(what)]
            if not found or not truth or (what == "renewals" and "detect" not in name):
                continue
            numbers = [scores(one, truth, near, what == "renewals") for one in found]
            random = [
                scores(np.random.default_rng(seed).integers(0, frames, len(one)).tolist(), truth, near, False)
                for seed, one in enumerate(found * 20)
            ]
            means = [statistics.mean(column) for column in zip(*numbers)]
            chance = statistics.mean(f1 for *_, f1 in random)
            count = statistics.mean(map(len, found))
            print(f"| {name}, {what} | {count:.0f} | " + " | ".join(f"{v:.2f}" for v in means) + f" | {chance:.2f} |")


def scores(found: list[int], truth: list[int], near: int, after: bool) -> tuple[float, float, float]:
    """(precision, recall, F1). `after`: within `near` images after the truth, because a detector comes late."""

    def fits(one: int, start: int) -> bool:
        return 0 <= one - start <= near if after else abs(one - start) <= near

    precision = statistics.mean(any(fits(one, start) for start in truth) for one in found)
    recall = statistics.mean(any(fits(one, start) for one in found) for start in truth)
    return precision, recall, 2 * precision * recall / max(precision + recall, 1e-9)


def figure(runs: dict[str, list[dict[str, Any]]], path: Path) -> None:
    """A over the stream, mean over seeds: raw and whitened KNN."""
    with matplotlib.rc_context(fname=SETTINGS):
        canvas = Figure(figsize=(9, 3.6), layout="constrained")
        FigureCanvasAgg(canvas)
        left, right = canvas.subplots(1, 2, sharey=True)
        for axes, protocol, title in ((left, RAW, "KNN"), (right, WHITE, "KNN on whitened features")):
            for number, (name, members) in enumerate(sorted(runs.items())):
                rows = [course(m, protocol) for m in members]
                if len(rows[0]) < 2:
                    continue
                style = {"color": matplotlib.colormaps["tab10"](number % 10), "marker": "osD^v<>pPX"[number % 10]}
                budget = [point["budget"]["images"] for point in [*members[0]["curve"], members[0]["evaluations"][0]]]
                axes.plot(budget, np.mean(rows, 0), label=name, markersize=4, **style)
            level = members_level(runs, protocol)
            axes.axhline(level, color="grey", linestyle=":", linewidth=1)
            axes.annotate("untrained encoder", (axes.get_xlim()[0], level), fontsize=7, va="bottom")
            axes.set(title=title, xlabel="images of the stream")
        left.set_ylabel("A, class-agnostic")
        canvas.legend(*left.get_legend_handles_labels(), loc="outside right center", fontsize=8)
        write_atomically(path, lambda temporary: canvas.savefig(temporary, format="png", dpi=130))


def members_level(runs: dict[str, list[dict[str, Any]]], protocol: str) -> float:
    """A of untrained encoders, of the first run that has it."""
    known = [m["protocols"][protocol].get("random_baseline") for members in runs.values() for m in members]
    return statistics.mean(next(values for values in known if values))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--figure", type=Path)
    parser.add_argument("--only", nargs="*", help="names in the figure")
    parser.add_argument("--cuts", nargs=2, metavar=("BENCHMARK", "FRAMES"))
    args = parser.parse_args()
    runs = read(args.runs)
    table(runs)
    if args.cuts:
        cuts(runs, args.cuts[0], int(args.cuts[1]))
    if args.figure:
        figure({name: runs[name] for name in args.only or runs}, args.figure)


if __name__ == "__main__":
    main()
