"""How long a run takes to its first training step, and how much memory it needs until then: cold cache and warm.

    python benchmarks/start.py [--benchmark split-cifar100-20] [--preset fast] [--data-dir DIR] [--repeats 3]

Each start is a process of its own that runs `osiris train` until the first optimiser step has been made. Cold: an
empty cache, so that the parquet files are decoded and the untrained encoders of the baseline are measured first. Warm:
the same command again with another run directory. The file cache of the operating system is left as it is; the CPU
time is there to judge a machine that is busy with other work.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def child(arguments: list[str]) -> None:
    """In the measured process: time `import torch`, then train until the first step is done."""
    started = time.perf_counter()
    import torch  # noqa: F401

    imported, imported_cpu = time.perf_counter(), time.process_time()
    from osiris.cli import main
    from osiris.devices import peak_memory
    from osiris.training.engine import Engine

    whole_step = Engine.step

    def first_step(engine: Engine, *given: object, **named: object) -> object:
        began, began_cpu = time.perf_counter(), time.process_time()
        result = whole_step(engine, *given, **named)  # pyright: ignore[reportArgumentType]
        done = time.perf_counter()
        measured = {
            "import torch": imported - started,
            "torch to first step": began - imported,
            "of it CPU time": began_cpu - imported_cpu,
            "first step": done - began,
            "peak MB": peak_memory(),
        }
        print(json.dumps(measured), flush=True)
        os._exit(0)
        return result

    Engine.step = first_step  # pyright: ignore[reportAttributeAccessIssue]
    sys.exit(main(arguments))


def measure(arguments: list[str], cache: Path, out: Path) -> dict[str, float]:
    command = [sys.executable, __file__, "--child", "train", *arguments, "--quiet", "--out", str(out)]
    done = subprocess.run(command, env={**os.environ, "OSIRIS_CACHE": str(cache)}, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"the run failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        return child(sys.argv[2:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--benchmark", default="split-cifar100-20")
    parser.add_argument("--preset", default="fast")
    parser.add_argument("--method", default="osiris-d")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    arguments = ["--benchmark", options.benchmark, "--preset", options.preset, "--method", options.method]
    arguments += ["--data-dir", str(options.data_dir.resolve())] if options.data_dir else []
    cold: list[dict[str, float]] = []
    warm: list[dict[str, float]] = []
    for repeat in range(options.repeats):
        with tempfile.TemporaryDirectory() as name:
            place = Path(name)
            cold.append(measure(arguments, place / "cache", place / f"cold-{repeat}"))
            warm.append(measure(arguments, place / "cache", place / f"warm-{repeat}"))
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan")
    print(f"{options.benchmark}, preset {options.preset}, {options.method}: median of {options.repeats}")
    print(f"{platform.machine()}, {os.cpu_count()} cores, load {load:.1f}, Python {platform.python_version()}")
    print(f"{'':22}{'cold':>10}{'warm':>10}")
    for name in cold[0]:
        first, second = (statistics.median(row[name] for row in rows) for rows in (cold, warm))
        print(f"{name:22}{first:10.2f}{second:10.2f}" + ("" if name == "peak MB" else "  s"))


if __name__ == "__main__":
    main()
