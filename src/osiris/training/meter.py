"""From what steps leave on the device to lines of the log, and the guard against losses that are no numbers."""

from __future__ import annotations

import resource
import sys
import time
from typing import Any

import torch
from torch import Tensor

from osiris.training.engine import StepResult
from osiris.training.plan import Phase


class Diverged(Exception):
    """A loss became infinite or undefined."""


class Meter:
    """Gathers the results of steps without looking at them; `read` is the only place that waits for the device."""

    def __init__(self, phases: list[Phase], seed: int, allowed_bad_steps: int, seconds_before: float) -> None:
        self.phases, self.seed, self.allowed = phases, seed, allowed_bad_steps
        self.pending: list[StepResult] = []
        self.started = time.monotonic() - seconds_before
        self.bad_steps = 0
        self.resume()

    @property
    def seconds(self) -> float:
        """Since the start of the run, over all its parts."""
        return time.monotonic() - self.started

    def resume(self) -> None:
        """Training goes on: what came in between (evaluation, saving) does not count against images per second."""
        self.clock = time.monotonic()

    def add(self, result: StepResult) -> None:
        self.pending.append(result)

    def total(self, phase: Phase, step: int) -> int:
        """Steps of the whole run after `step` steps of this phase."""
        return sum(item.steps for item in self.phases[: phase.task]) + step

    def read(self, phase: Phase, step: int) -> dict[str, Any] | None:
        """One line: means over the finite steps since the last one. None without any."""
        if not self.pending:
            return None
        results, self.pending = self.pending, []
        names = list(results[0].values)
        rows = [torch.stack([result.values[name].float() for name in names]) for result in results]
        table = torch.stack([torch.cat([row, result.finite.float().view(1)]) for row, result in zip(rows, results)])
        table = table.cpu()  # one message from the device for everything
        table, finite = table[:, :-1], table[:, -1] > 0
        self._guard(phase, step - len(results), table, finite, names)
        now = time.monotonic()
        elapsed, self.clock = now - self.clock, now
        if not finite.any():
            return None
        means = {name: _mean(column) for name, column in zip(names, table[finite].T)}
        done, total = self.total(phase, step), sum(item.steps for item in self.phases)
        return {
            "event": "step",
            "task": phase.task + 1,
            "tasks": len(self.phases),
            "step": step,
            "total_step": done,
            "epoch": -(-step // phase.steps_per_epoch),
            "epochs": phase.epochs,
            "loss": means.pop("loss"),
            "gradient_norm": means.pop("gradient_norm"),
            "terms": means,
            "images_per_second": sum(result.images for result in results) / max(elapsed, 1e-9),
            "progress": done / total,
            "task_progress": step / phase.steps,
            "seconds": self.seconds,
            "seconds_left": self.seconds / done * (total - done),
            "bad_steps": self.bad_steps,
            "peak_memory_mb": peak_memory(),
        }

    def _guard(self, phase: Phase, first_step: int, table: Tensor, finite: Tensor, names: list[str]) -> None:
        """Bad steps were left out on the device; here the host learns of them and stops when they are too many."""
        bad = (~finite).nonzero().squeeze(1).tolist()
        if not bad:
            return
        self.bad_steps += len(bad)
        if self.bad_steps <= self.allowed:
            return
        fine = dict(zip(names, torch.isfinite(table[bad[0]]).tolist()))
        sums = {"loss": "the sum of the terms", "gradient_norm": "its gradient"}
        guilty = [f"term {name}" for name in names if name not in sums and not fine[name]]
        guilty = guilty or [text for name, text in sums.items() if not fine[name]] or ["its gradient, at any scale"]
        step = first_step + bad[0]
        raise Diverged(
            f"the loss is not finite in task {phase.task + 1} at step {step}: {', '.join(guilty[:4])}. The update was "
            f"left out, and the last checkpoint is good. The batch can be built again from seed {self.seed}, task "
            f"{phase.task + 1} and step {step}. Try a lower --learning-rate, or --skip-bad-steps N to leave out up "
            f"to N such steps."
        )


def _mean(column: Tensor) -> float | None:
    """None for a gradient norm whose every step overflowed half precision while it looked for its scale."""
    fine = column[torch.isfinite(column)]
    return float(fine.mean()) if len(fine) else None


def peak_memory() -> float:
    """Megabytes: the most that this process has held on the GPU, or else in all."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        return torch.cuda.max_memory_allocated() / 2**20
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20
