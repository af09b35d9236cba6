"""Train fine-tuning and osiris-d on the built-in images, compare them and write a report.

python examples/train_and_compare.py            minutes
python examples/train_and_compare.py smoke      seconds; the numbers mean nothing
"""

import sys

import osiris

preset = sys.argv[1] if len(sys.argv) > 1 else "fast"
runs = [osiris.train(method, "tinyworld", preset=preset, out=f"runs/{method}") for method in ("ft", "osiris-d")]
for run in runs:
    metrics = run.metrics["class-agnostic"]
    print(f"{run.method}: accuracy {metrics.A:.1f}, forgetting {metrics.F:.1f}, untrained {metrics.untrained:.1f}")
print(osiris.compare(runs).text())
print("report:", osiris.report(runs, out="report"))
