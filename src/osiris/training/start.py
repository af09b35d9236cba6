"""What comes before the first step: threads, determinism, and numbers that must fit together."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import torch

from osiris import processes
from osiris.data.benchmark import Benchmark
from osiris.errors import UserError
from osiris.framework.methods import Method
from osiris.models import build_encoder
from osiris.training.config import Config
from osiris.training.engine import initial_weights
from osiris.training.plan import phases


def same_threads(config: Config) -> Config:
    """Every process takes the first one's number of threads, which the run directory may have decided."""
    threads = int(processes.broadcast(str(config.engine.threads).encode()))
    return replace(config, engine=replace(config.engine, threads=threads))


def prepare(config: Config, device: torch.device) -> None:
    """Threads and determinism, before anything is computed."""
    assert config.engine.threads is not None
    torch.set_num_threads(config.engine.threads)
    compilers = [os.environ.get("CXX", "g++"), "g++", "clang++"]
    if config.engine.compile and device.type == "cpu" and not any(shutil.which(name) for name in compilers):
        raise UserError("--compile on a CPU needs a C++ compiler (g++ or clang++), and there is none on the PATH.")
    if device.type == "cuda":
        # On a CPU all that we use is deterministic as it is.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.utils.deterministic.fill_uninitialized_memory = False  # pyright: ignore[reportAttributeAccessIssue]
        torch.backends.cuda.matmul.allow_tf32 = config.engine.tf32
        torch.backends.cudnn.allow_tf32 = config.engine.tf32


def check_initial_weights(config: Config, checkpoints: Path) -> None:
    """--init can be read and fits, before anything is written; a run that has begun does not need it any more."""
    if config.engine.init is None or (checkpoints / "latest.pt").exists() or (checkpoints / "previous.pt").exists():
        return
    with torch.device("meta"):
        wanted = build_encoder(config.encoder).state_dict()
    initial_weights(config.engine.init, wanted)


def check_sizes(config: Config, method: Method, benchmark: Benchmark) -> None:
    """Numbers that only make sense together."""
    learning, world = config.learning, processes.world_size()
    plan = phases(benchmark, method, learning.epochs, learning.batch_size)
    sizes = [size for phase in plan for size in phase.batch_sizes]
    wanted = int(max(sizes) * method.replay)
    if method.reads_memory and learning.memory_size < wanted:
        raise UserError(
            f"the memory holds {learning.memory_size} images, but {method.name} replays {wanted} at each step; "
            f"use --memory-size {wanted} or more, or a smaller --batch-size."
        )
    offered = len(plan[0].indices) * learning.epochs
    if method.reads_memory and offered < wanted:
        raise UserError(
            f"task 1 offers {offered} images to the memory, but {method.name} replays {wanted} at each step; "
            f"use more --epochs, or a smaller --batch-size."
        )
    smallest = min(int(min(sizes) * method.replay) if method.reads_memory else min(sizes), min(sizes))
    if world > smallest:
        raise UserError(
            f"{world} processes cannot share a batch of {smallest} images, the smallest of this run. Use fewer "
            f"processes, or a --batch-size whose last batch of an epoch is larger."
        )
