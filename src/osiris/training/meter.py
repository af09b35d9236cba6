"""From the results of steps, still on the device, to lines of the log. Stops a run whose loss is not finite."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor

from osiris.devices import peak_memory
from osiris.errors import Diverged
from osiris.training.engine import StepResult
from osiris.training.schedule import Episode

WARM_UP_SECONDS = 5.0
"""Before this, the time left is not estimated: the first steps are slower than the others."""


class Meter:
    """Collects the results of steps without looking at them; only `read` waits for the device."""

    def __init__(self, episodes: list[Episode], seed: int, allowed_bad_steps: int, seconds_before: float) -> None:
        self.episodes, self.seed, self.allowed = episodes, seed, allowed_bad_steps
        self.pending: list[StepResult] = []
        self.started = time.monotonic() - seconds_before
        self.bad_steps = 0
        self.warm: tuple[float, int] | None = None
        self.resume()

    @property
    def seconds(self) -> float:
        """Since the start of the run, without the time between its parts."""
        return time.monotonic() - self.started

    def resume(self) -> None:
        """Training goes on. What came in between (evaluation, saving) does not count in images per second."""
        self.clock = time.monotonic()

    def add(self, result: StepResult) -> None:
        self.pending.append(result)

    def total(self, episode: Episode, step: int) -> int:
        """Steps of the whole run after `step` steps of this episode."""
        return sum(item.steps for item in self.episodes[: episode.task]) + step

    def read(self, episode: Episode, step: int) -> dict[str, Any] | None:
        """A line of the log: means over the finite steps since the last one. None if there is none."""
        if not self.pending:
            return None
        results, self.pending = self.pending, []
        names = list(results[0].values)
        rows = [torch.stack([result.values[name].float() for name in names]) for result in results]
        table = torch.stack([torch.cat([row, result.finite.float().view(1)]) for row, result in zip(rows, results)])
        table = table.cpu()  # one message from the device for everything
        table, finite = table[:, :-1], table[:, -1] > 0
        self._guard(episode, step - len(results), table, finite, names)
        now = time.monotonic()
        elapsed, self.clock = now - self.clock, now
        if not finite.any():
            return None
        means = {name: _mean(column) for name, column in zip(names, table[finite].T)}
        done, total = self.total(episode, step), sum(item.steps for item in self.episodes)
        return {
            "event": "step",
            "task": episode.task + 1,
            "tasks": len(self.episodes),
            "step": step,
            "total_step": done,
            "epoch": -(-step // episode.steps_per_epoch),
            "epochs": episode.epochs,
            "loss": means.pop("loss"),
            "gradient_norm": means.pop("gradient_norm"),
            "spread": means.pop("spread", None),
            "terms": means,
            "images_per_second": sum(result.images for result in results) / max(elapsed, 1e-9),
            "progress": done / total,
            "task_progress": step / episode.steps,
            "seconds": self.seconds,
            "seconds_left": self._seconds_left(done, total),
            "bad_steps": self.bad_steps,
            "peak_memory_mb": peak_memory(),
        }

    def _seconds_left(self, done: int, total: int) -> float | None:
        """At the rate since the first line of this start; None while that is too short to tell."""
        now = time.monotonic()
        if self.warm is None:
            self.warm = now, done
        since, before = self.warm
        return (now - since) / (done - before) * (total - done) if now - since > WARM_UP_SECONDS else None

    def _guard(self, episode: Episode, first_step: int, table: Tensor, finite: Tensor, names: list[str]) -> None:
        """The device has skipped bad steps already. Here the host learns of them, and stops if there are too many."""
        bad = (~finite).nonzero().squeeze(1).tolist()
        if not bad:
            return
        self.bad_steps += len(bad)
        if self.bad_steps <= self.allowed:
            return
        finite_values = dict(zip(names, torch.isfinite(table[bad[0]]).tolist()))
        sums = {"loss": "the sum of the terms", "spread": "the embeddings", "gradient_norm": "its gradient"}
        culprits = [f"term {name}" for name in names if name not in sums and not finite_values[name]]
        culprits = (
            culprits
            or [text for name, text in sums.items() if not finite_values.get(name, True)]
            or ["its gradient, at any scale"]
        )
        step = first_step + bad[0]
        raise Diverged(
            f"the loss is not finite in task {episode.task + 1} at step {step}: {', '.join(culprits[:4])}. The update "
            f"was skipped. The batch can be built again from seed {self.seed}, task {episode.task + 1} and step "
            f"{step}. Try a lower --learning-rate, or --skip-bad-steps N to skip up to N such steps."
        )


def _mean(column: Tensor) -> float | None:
    """None for a gradient norm that overflowed in every step, while half precision was looking for its scale."""
    fine = column[torch.isfinite(column)]
    return float(fine.mean()) if len(fine) else None
