"""The machine: its device, threads and memory, and deterministic kernels."""

from __future__ import annotations

import os
import resource
import shutil
import sys
from pathlib import Path

import psutil
import torch

from osiris.config import EngineConfig
from osiris.errors import UserError


def open_device(name: str, tf32: bool = False) -> torch.device:
    """The device of this name, with torch set up in the same way for training, evaluation and embedding."""
    device = choose_device(name)
    if device.type == "cuda":
        torch.cuda.set_device(device)
        # On a CPU, every operation that osiris uses is deterministic already.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.utils.deterministic.fill_uninitialized_memory = False  # pyright: ignore[reportAttributeAccessIssue]
        # Kernels chosen by their time would change the bits of a resumed run.
        torch.backends.cudnn.benchmark = False
        os.environ.setdefault("TORCHINDUCTOR_DETERMINISTIC", "1")  # read when the compiler of torch is first imported
        torch.backends.cuda.matmul.allow_tf32 = tf32
        torch.backends.cudnn.allow_tf32 = tf32
    return device


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
    return _own_gpu(device) if device.type == "cuda" else device


def _own_gpu(device: torch.device) -> torch.device:
    """The GPU of this process. Each process needs one of its own: NCCL fails or hangs if two of them share one."""
    gpus, sharing = torch.cuda.device_count(), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if sharing > 1 and device.index is not None:
        raise UserError(
            f"--device {device} would be shared by {sharing} processes; use --device cuda, one GPU for each."
        )
    if sharing > gpus:
        raise UserError(f"{sharing} processes need a GPU each, and there are {gpus}; use --processes {gpus} or fewer.")
    index = int(os.environ.get("LOCAL_RANK", "0")) if device.index is None else device.index
    if index >= gpus:
        raise UserError(f"--device cuda:{index} does not exist: this machine has cuda:0 to cuda:{gpus - 1}.")
    return torch.device("cuda", index)


def prepare_host(engine: EngineConfig, device: torch.device) -> None:
    """Set the number of threads, and refuse to compile without a compiler."""
    assert engine.threads is not None
    torch.set_num_threads(engine.threads)
    compilers = [os.environ.get("CXX", "g++"), "g++", "clang++"]
    if engine.compile and device.type == "cpu" and not any(shutil.which(name) for name in compilers):
        raise UserError("--compile on a CPU needs a C++ compiler (g++ or clang++), and none is on the PATH.")


def faster_precision(engine: EngineConfig, device: torch.device) -> list[str]:
    """A notice for a run that could be several times as fast; empty if there is nothing to say."""
    if device.type != "cuda" or engine.precision != "32" or engine.tf32:
        return []
    if torch.cuda.get_device_capability(device) < (8, 0):  # Ampere
        return []
    return [
        "this GPU computes faster in lower precision: counted (not measured) for an A100, a step of the preset `paper` "
        "takes 290 ms as it is, 85 ms with --tf32 and 50 ms with --precision bf16."
    ]


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


def total_memory(device: torch.device) -> int | None:
    """Bytes of memory of a GPU, free or not; None for other devices, which share that of the host."""
    return torch.cuda.mem_get_info(device)[1] if device.type == "cuda" else None


def peak_memory() -> float:
    """The largest amount of memory that this process has used, in megabytes: on the GPU if it uses one."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        return torch.cuda.max_memory_allocated() / 2**20
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20
