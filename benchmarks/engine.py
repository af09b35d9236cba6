"""What a step costs by method, and what --micro-batch saves.

    python benchmarks/engine.py [--repeats 9]

Steps: the second task of tinyworld with the fast preset on one thread, CPU time, methods taking turns, so that another
load on the machine matters little and to all alike; beside it the encoder work counted by running one step.
Micro-batch: a step of osiris-d with an encoder of width 32 and a batch of 256 + 192 images, each in a process of its
own, whose peak memory is read; and the estimates of that run and of the paper's, from steps with a few images.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import time
from dataclasses import replace

import torch

from osiris.bench import second_task
from osiris.config import Config
from osiris.data.load import load_benchmark
from osiris.devices import peak_memory
from osiris.framework.cost import TWO_VIEWS, later_cost
from osiris.framework.methods import TRAINED, ZOO, find_method
from osiris.models.config import EncoderConfig
from osiris.presets import preset_config
from osiris.training.engine import Engine
from osiris.training.estimate import estimate_memory, total
from osiris.training.schedule import plan_episodes

PIECES = (None, 128, 64, 32)


def steps(repeats: int) -> None:
    torch.set_num_threads(1)
    names = [name for name in TRAINED if ZOO[name].learns == "continual"]
    ready = {name: second_task(name, preset_config("fast", "tinyworld")) for name in names}
    times: dict[str, list[float]] = {name: [] for name in names}
    for repeat in range(repeats + 1):
        for name, (engine, phase) in ready.items():
            began = time.process_time()
            engine.step(phase, repeat)
            times[name].append(time.process_time() - began)
    print(f"{'method':10}{'ms per step':>14}{'of ft':>8}{'encoder work of ft':>21}")
    for name in names:
        ratio = statistics.median(one / ft for one, ft in zip(times[name][1:], times["ft"][1:]))
        work = later_cost(find_method(name)).work / TWO_VIEWS.work
        print(f"{name:10}{1000 * statistics.median(times[name][1:]):14.1f}{ratio:8.2f}{work:21.2f}")


def large(pieces: int | None) -> Config:
    """The paper's batch on a middle-sized encoder."""
    config = preset_config("fast", "tinyworld")
    data = replace(config.data, train_per_class=100)
    learning = replace(config.learning, batch_size=256, memory_size=500)
    encoder = EncoderConfig(width=32, blocks=(1, 1, 1, 1))
    return replace(
        config, data=data, learning=learning, encoder=encoder, engine=replace(config.engine, micro_batch=pieces)
    )


def child(pieces: int | None) -> None:
    engine, phase = second_task("osiris-d", large(pieces))
    began = time.process_time()
    engine.step(phase, 0)
    taken = time.process_time() - began
    print(json.dumps({"seconds": taken, "megabytes": peak_memory()}))


def micro_batch() -> None:
    print(f"{'--micro-batch':14}{'CPU s':>8}{'peak MB':>10}{'estimate':>10}{'estimate, paper':>17}")
    for pieces in PIECES:
        done = subprocess.run([sys.executable, __file__, "--child", str(pieces)], capture_output=True, text=True)
        if done.returncode:
            sys.exit(done.stderr)
        measured, sizes = json.loads(done.stdout.splitlines()[-1]), []
        for config in (large(pieces), replace(preset_config("paper", "tinyworld"), engine=large(pieces).engine)):
            method, benchmark, learning = find_method("osiris-d"), load_benchmark(config.data), config.learning
            plan = plan_episodes(benchmark, method, learning)
            engine = Engine(config, method, benchmark, torch.device("cpu"))
            sizes.append(total(estimate_memory(engine, plan, pieces)) / 2**20)
        print(f"{pieces!s:14}{measured['seconds']:8.1f}{measured['megabytes']:10.0f}{sizes[0]:10.0f}{sizes[1]:17.0f}")


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        return child(None if sys.argv[2] == "None" else int(sys.argv[2]))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=9)
    options = parser.parse_args()
    print(f"{platform.machine()}, one thread, torch {torch.__version__}; {options.repeats} repeats")
    steps(options.repeats)
    print()
    micro_batch()


if __name__ == "__main__":
    main()
