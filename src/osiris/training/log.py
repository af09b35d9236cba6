"""log.jsonl: its records, made from the results of steps and evaluations. Stops a run whose loss is not finite."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor

from osiris import processes
from osiris.augment.operations import upload
from osiris.config import Config
from osiris.console import warn
from osiris.devices import peak_memory
from osiris.errors import Diverged
from osiris.evaluation.evaluate import headline
from osiris.evaluation.health import collapsed
from osiris.evaluation.overfitting import overfitting
from osiris.evaluation.scores import Scores
from osiris.files import open_to_append
from osiris.framework.objectives import is_collapsed
from osiris.framework.terms import X
from osiris.models.normalisation import frozen_statistics
from osiris.runs.directory import RunDirectory
from osiris.runs.progress import Position
from osiris.runs.records import EvaluationLine, Line, OverfittingLine, StepLine
from osiris.training.dashboards import Logger, open_views
from osiris.training.engine import Engine, StepResult
from osiris.training.schedule import Episode
from osiris.training.summing import SummingEngine

WARM_UP_SECONDS = 5.0
"""Before this, the time left is not estimated: the first steps are slower than the others."""


class Log:
    """Writes the records of an open run to log.jsonl and its dashboards, and warns at the first collapse."""

    def __init__(self, config: Config, directory: RunDirectory, episodes: list[Episode], position: Position) -> None:
        self.config, self.directory, self.episodes = config, directory, episodes
        self.meter = Meter(episodes, config.seed, config.engine.skip_bad_steps, position.seconds)
        self.meter.bad_steps = position.bad_steps
        self.file: JsonLines | None = None
        self.loggers: list[Logger] = []
        self.collapses: dict[str, list[int]] = {}
        """What has collapsed -> the tasks in which it has."""

    def open(self, method: str, length: int, position: Position, quiet: bool, plain: bool = False) -> None:
        """Continue log.jsonl after `length` bytes, where the run stands at `position`. The first process writes it.
        `plain`: show no more than what is learned from."""
        done = sum(episode.steps for episode in self.episodes[: position.task]) + position.step
        names = [str(episode.content["name"]) for episode in self.episodes] if plain else None
        self.file = processes.on_first(JsonLines, self.directory.log, length)
        views = processes.on_first(open_views, self.config, method, self.directory.path, quiet, done, names)
        self.loggers = [] if self.file is None else [self.file, *(views or ())]

    @property
    def length(self) -> int:
        """The length of log.jsonl in bytes, which are on disk when this returns."""
        return 0 if self.file is None else self.file.position

    def steps(self, engine: Engine | SummingEngine, episode: Episode, step: int) -> None:
        """A record of the steps since the last one."""
        line = self.meter.read(episode, step)
        if line is None:
            return
        if line.spread is not None and is_collapsed(line.spread):
            self._collapsed(
                "embeddings have",
                episode,
                f"the embeddings have collapsed in task {episode.task + 1} at step {step}: their spread is "
                f"{line.spread:.3f}, near 1 is healthy. The encoder maps all images to almost the same point. "
                f"Try a lower --learning-rate, a larger --batch-size or another --objective.",
            )
        line.memory = engine.memory.filled
        if isinstance(engine, Engine):
            line.learning_rate = engine.optimiser.param_groups[0]["lr"]
        self._emit(line)

    def overfitting(self, engine: Engine | SummingEngine, episode: Episode, step: int) -> None:
        if isinstance(engine, SummingEngine):  # without gradients and without a memory
            return
        line = track_overfitting(engine, episode, step)
        if line is not None:
            line.total_step = self.meter.total(episode, step)
            self._emit(line)

    def evaluation(self, episode: Episode, where: dict[str, int], numbers: Scores, bank: int) -> None:
        """A record of an evaluation with `bank` images to search, and a warning if the features have collapsed."""
        message = collapsed(numbers.health)
        if message:
            self._collapsed("representation has", episode, message)
        place = where | {"task": episode.task + 1, "tasks": len(self.episodes)}
        self._emit(EvaluationLine(**place, shown=headline(numbers, bank)))

    def _collapsed(self, what: str, episode: Episode, message: str) -> None:
        tasks = self.collapses.setdefault(what, [])
        if not tasks and self.directory.owner and self.config.preset != "smoke":
            warn(message)
        if episode.task not in tasks[-1:]:
            tasks.append(episode.task)

    def summarise_collapses(self) -> None:
        """Say in how many tasks something has collapsed, if it was more than one."""
        for what, tasks in self.collapses.items():
            if len(tasks) > 1 and self.directory.owner and self.config.preset != "smoke":
                warn(f"the {what} collapsed in {len(tasks)} tasks, the first of them task {tasks[0] + 1}.")

    def _emit(self, line: Line) -> None:
        record = msgspec.to_builtins(line)
        for logger in self.loggers:
            logger.log(record)

    def close(self) -> None:
        for logger in self.loggers:
            logger.close()


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

    def read(self, episode: Episode, step: int) -> StepLine | None:
        """A line of the log: means over the finite steps since the last one. None if there is none."""
        if not self.pending:
            return None
        results, self.pending = self.pending, []
        names = list(dict.fromkeys(name for result in results for name in result.values))  # terms may set in meanwhile
        missing = next(iter(results[0].values.values())).new_full((), torch.nan, dtype=torch.float32)
        rows = [torch.stack([result.values.get(name, missing).float() for name in names]) for result in results]
        table = torch.stack([torch.cat([row, result.finite.float().view(1)]) for row, result in zip(rows, results)])
        table = table.cpu()  # one message from the device for everything
        table, finite = table[:, :-1], table[:, -1] > 0
        self._guard(episode, step - len(results), table, finite, names, results)
        now = time.monotonic()
        elapsed, self.clock = now - self.clock, now
        if not finite.any():
            return None
        means = {name: _mean(column) for name, column in zip(names, table[finite].T)}
        done, total = self.total(episode, step), sum(item.steps for item in self.episodes)
        return StepLine(
            task=episode.task + 1,
            tasks=len(self.episodes),
            step=step,
            total_step=done,
            epoch=-(-step // episode.steps_per_epoch),
            epochs=episode.epochs,
            loss=means.pop("loss", None),
            gradient_norm=means.pop("gradient_norm", None),
            spread=means.pop("spread", None),
            terms=means,
            images_per_second=sum(result.images for result in results) / max(elapsed, 1e-9),
            progress=done / total,
            task_progress=step / episode.steps,
            seconds=self.seconds,
            seconds_left=self._seconds_left(done, total),
            bad_steps=self.bad_steps,
            peak_memory_mb=peak_memory(),
        )

    def _seconds_left(self, done: int, total: int) -> float | None:
        """Estimated from the rate since the first line of this start; None while that is too short to tell."""
        now = time.monotonic()
        if self.warm is None:
            self.warm = now, done
        since, before = self.warm
        return (now - since) / (done - before) * (total - done) if now - since > WARM_UP_SECONDS else None

    def _guard(
        self,
        episode: Episode,
        first_step: int,
        table: Tensor,
        finite: Tensor,
        names: list[str],
        results: list[StepResult],
    ) -> None:
        """The device has skipped bad steps already. Here the host learns of them, and stops if there are too many."""
        bad = (~finite).nonzero().squeeze(1).tolist()
        if not bad:
            return
        self.bad_steps += len(bad)
        if self.bad_steps <= self.allowed:
            return
        finite_values = dict(zip(names, torch.isfinite(table[bad[0]]).tolist()))
        finite_values |= dict.fromkeys(set(names) - results[bad[0]].values.keys(), True)
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
            f"{step}. Continue with --skip-bad-steps N to skip up to N such steps, or start a new run with a lower "
            "--learning-rate."
        )


def _mean(column: Tensor) -> float | None:
    """The mean of the finite values; None if a gradient norm overflowed in every step, while half precision was looking
    for its scale."""
    fine = column[torch.isfinite(column)]
    return float(fine.mean()) if len(fine) else None


def track_overfitting(engine: Engine, episode: Episode, step: int) -> OverfittingLine | None:
    """A line of the log: the loss on past tasks against the loss on the memory, while training goes on (Fig. 3b).

    It has random streams of its own and changes nothing: the weights of a run are the same bits with and without it.
    None while the memory holds too few images of past tasks.
    """

    @torch.no_grad()
    def embed(indices: Tensor, key: torch.Generator) -> dict[str, Tensor]:
        count, rows = len(indices), processes.share(len(indices))
        images = upload(engine.benchmark.train.images.take(indices[rows]), engine.device)
        with frozen_statistics(engine.networks):
            rep = engine.represent({X: engine.two_views(images, key, rows, count)}, {X: count})
        return {space: rep(X, head=space) for space in engine.networks.heads}

    learning, memory = engine.config.learning, engine.memory
    past = (engine.benchmark.train.task < episode.task).nonzero().squeeze(1)
    source, task = memory.source[: memory.filled].cpu(), memory.task[: memory.filled].cpu()
    earlier = task < episode.task
    remembered = engine.benchmark.training_rows(task[earlier], source[earlier])
    key = (engine.config.seed, episode.task, step)
    spaces = overfitting(embed, past, remembered, key, learning.batch_size, tau=learning.tau)
    return OverfittingLine(task=episode.task + 1, step=step, spaces=spaces) if spaces else None


class JsonLines:
    """One line per record. Checkpoints hold `position`; a resumed run truncates the file to it."""

    def __init__(self, path: Path, position: int = 0) -> None:
        self.file = open_to_append(path)
        # A crash of the machine may have lost the end of the log: do not fill the gap, and keep whole lines only.
        self.file.seek(0)
        before = self.file.read()[:position]
        self.file.truncate(before.rfind(b"\n") + 1)
        self.file.seek(0, os.SEEK_END)

    @property
    def position(self) -> int:
        """The length of the log, which is on disk when this returns."""
        self.file.flush()
        os.fsync(self.file.fileno())
        return self.file.tell()

    def log(self, record: dict[str, Any]) -> None:
        self.file.write((json.dumps(record, allow_nan=False) + "\n").encode())
        self.file.flush()

    def close(self) -> None:
        os.fsync(self.file.fileno())
        self.file.close()
