"""How much of forgetting is scale: A of methods by KNN on raw and on whitened features, and by a linear probe.

    osiris sweep --methods ft er er+ er++ der lump ewc cassle pocon osiris-r osiris-d offline --seeds 5 6 7 \
        --benchmarks tinyworld --preset fast --out grids/scale
    for run in grids/scale/runs/*; do osiris evaluate $run --probe; done
    python benchmarks/forgetting.py docs/pictures/scale.png grids/scale

Prints the table of docs/results/readout.md and draws its figure.
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib.pyplot as plt

from osiris.evaluation.statistics import deviation, mean
from osiris.reporting.style import style_of
from osiris.runs.run import Run, load_runs

PROTOCOLS = {"class-agnostic": "raw", "class-agnostic-whitened": "whitened", "class-agnostic-probe": "linear probe"}


def by_method(runs: list[Run], protocol: str, metric: str) -> dict[str, list[float]]:
    values: dict[str, list[float]] = {}
    for run in runs:
        value = run.metrics[protocol].values()[metric] if protocol in run.metrics.protocols else None
        if value is not None:
            values.setdefault(run.method, []).append(value)
    return values


def main(picture: Path, *folders: Path) -> None:
    runs = load_runs(folders)
    known = {(protocol, metric): by_method(runs, protocol, metric) for protocol in PROTOCOLS for metric in "AF"}
    first = known["class-agnostic", "A"]
    names = sorted(first, key=lambda name: mean(first[name]) or 0.0)
    print("| | " + " | ".join(f"{metric}, {shown}" for metric in "AF" for shown in PROTOCOLS.values()) + " |")
    for name in names:
        cells = []
        for metric in "AF":
            for protocol in PROTOCOLS:
                values = known[protocol, metric].get(name, [])
                spread = deviation(values)
                cells.append(
                    "" if not values else f"{mean(values):.1f}" + ("" if spread is None else f" ± {spread:.1f}")
                )
        print(f"| {name} | {' | '.join(cells)} |")
    figure, axes = plt.subplots(figsize=(6.4, 3.6), layout="constrained")
    for name in names:
        means = {place: mean(known[protocol, "A"].get(name, [])) for place, protocol in enumerate(PROTOCOLS)}
        points = {place: value for place, value in means.items() if value is not None}
        axes.plot([*points], [*points.values()], label=name, marker="o", **style_of(name).line)
    axes.set_xticks(range(len(PROTOCOLS)), list(PROTOCOLS.values()))
    axes.set_ylabel("A, percent")
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    figure.savefig(picture, dpi=150)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
