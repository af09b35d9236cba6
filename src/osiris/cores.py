"""The cores that this process may use."""

from __future__ import annotations

import os


def available_cores() -> set[int]:
    """Numbers of the cores that the affinity of this process allows (taskset, containers, SLURM)."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def core_count() -> int:
    """Also honours the CPUs of a SLURM job on clusters that do not bind jobs to cores."""
    granted = os.environ.get("SLURM_CPUS_PER_TASK", "")
    count = len(available_cores())
    return min(count, int(granted)) if granted.isdigit() and int(granted) else count
