"""The machine: which device, how many threads, how much memory, and deterministic kernels."""

from __future__ import annotations

import os
import resource
import shutil
import sys
from pathlib import Path

import psutil
import torch

from osiris.errors import UserError
from osiris.training.config import Config


def choose_device(name: str) -> torch.device:
    """`auto` prefers cuda to mps to cpu. With several processes, each takes the CUDA device of its local rank."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError(f"unknown device {name!r}; use auto, cpu, cuda, cuda:N or mps.") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UserError(f"--device {name}: this machine or this build of torch has no CUDA; use --device cpu.")
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise UserError("--device mps: this machine has no Apple GPU; use --device cpu.")
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    return device


def prepare_device(config: Config, device: torch.device) -> None:
    """Set the number of threads and select deterministic kernels, before anything is computed."""
    assert config.engine.threads is not None
    torch.set_num_threads(config.engine.threads)
    compilers = [os.environ.get("CXX", "g++"), "g++", "clang++"]
    if config.engine.compile and device.type == "cpu" and not any(shutil.which(name) for name in compilers):
        raise UserError("--compile on a CPU needs a C++ compiler (g++ or clang++), and none is on the PATH.")
    if device.type == "cuda":
        # On a CPU, every operation that osiris uses is deterministic already.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.utils.deterministic.fill_uninitialized_memory = False  # pyright: ignore[reportAttributeAccessIssue]
        torch.backends.cuda.matmul.allow_tf32 = config.engine.tf32
        torch.backends.cudnn.allow_tf32 = config.engine.tf32


def available_memory(device: torch.device) -> int | None:
    """Free bytes on the device; None if unknown."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    if device.type != "cpu":
        return None
    limits = [psutil.virtual_memory().available]
    try:  # psutil does not know the limit of a container or of a SLURM job
        group = Path("/sys/fs/cgroup")
        limits.append(int((group / "memory.max").read_text()) - int((group / "memory.current").read_text()))
    except (OSError, ValueError):
        pass  # no control groups of version 2, or no limit
    return max(0, min(limits))


def peak_memory() -> float:
    """The most memory that this process has used so far, in megabytes: on the GPU if it uses one."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        return torch.cuda.max_memory_allocated() / 2**20
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20
