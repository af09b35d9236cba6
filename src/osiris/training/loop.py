"""The training loop, from the first image to metrics.json, as a narrative.

    for each task:  train  ->  end of task (terms, then f* <- f)  ->  evaluate  ->  next

Every stage writes the whole state before the next one starts, and every random draw is keyed, so that a run killed at
any moment continues to the same bits.
"""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from osiris import processes
from osiris.console import notice
from osiris.data.benchmark import Benchmark
from osiris.data.benchmarks import load_benchmark
from osiris.evaluation.features import Features
from osiris.evaluation.metrics_file import RunMetrics, read_metrics, write_record
from osiris.files import write_json
from osiris.framework.composition import method_to_dict, resolve
from osiris.framework.methods import Method
from osiris.training import checkpoint
from osiris.training.config import Config, to_dict
from osiris.training.engine import Engine, choose_device
from osiris.training.estimate import check_memory
from osiris.training.evaluating import (
    baseline_of,
    embed_sharded,
    evaluate_whole,
    shown,
    summarise,
    warn_of_collapse,
    write_evaluation,
)
from osiris.training.interrupt import STOPPED, Interrupt, Stopped
from osiris.training.loggers import JsonLines, Logger, open_views
from osiris.training.meter import Diverged, Meter
from osiris.training.plan import Phase, phases
from osiris.training.run_directory import RunDirectory
from osiris.training.start import check_initial_weights, check_sizes, prepare, same_threads
from osiris.training.tracking import Tracker

__all__ = ["STOPPED", "Diverged", "Position", "Run", "Stopped", "train"]


@dataclass
class Position:
    """Where a run stands: a task, a stage of it, and the steps done in it."""

    task: int = 0
    stage: str = "train"
    """train, curve (an evaluation between two steps), end, evaluate"""
    step: int = 0
    bad_steps: int = 0
    seconds: float = 0.0
    """Time so far, over all starts."""


def train(
    config: Config,
    out: Path,
    quiet: bool = False,
    method: Method | None = None,
    benchmark: Benchmark | None = None,
) -> RunMetrics | None:
    """Run, or continue, the run that `config` describes in the directory `out`; returns its metrics.

    `method` and `benchmark` replace those that the config names.

    With several processes the first one writes, speaks and gets the metrics; the others return nothing.
    """
    with processes.started(), ExitStack() as stack:
        first = processes.rank() == 0
        directory = RunDirectory(out, owner=first)
        with processes.together():
            config.check()
            method, device = method or resolve(config.method), choose_device(config.engine.device)
            stack.enter_context(directory)
            config = directory.claim(config) if first else config
        if processes.agree(first and directory.metrics.exists()):
            if first:
                notice(f"{out} is already finished; its metrics stand. Remove the directory to run it again.")
            return read_metrics(directory.metrics) if first else None
        config = same_threads(config)
        with processes.together():
            prepare(config, device)
        benchmark = benchmark or processes.in_turn(lambda: load_benchmark(config.data))
        with processes.together():
            check_sizes(config, method, benchmark)
            check_memory(config, method, benchmark, device)
            if first:
                check_initial_weights(config, directory.checkpoints)
                for text in benchmark.notices:
                    notice(text)
                directory.record(config, method_to_dict(method), str(device), processes.world_size())
        interrupt = stack.enter_context(Interrupt())
        stack.enter_context(checkpoint.room_on_disk(out))
        try:
            return Run(config, method, benchmark, device, directory, interrupt, quiet).run()
        except (Stopped, Diverged) as end:
            if first:
                raise
            raise processes.Elsewhere(STOPPED if isinstance(end, Stopped) else 1) from None


class Run:
    """One run in progress."""

    def __init__(
        self,
        config: Config,
        method: Method,
        benchmark: Benchmark,
        device: torch.device,
        directory: RunDirectory,
        interrupt: Interrupt,
        quiet: bool,
    ) -> None:
        self.config, self.method, self.benchmark, self.directory = config, method, benchmark, directory
        self.interrupt, self.device = interrupt, device
        learning = config.learning
        self.phases = phases(benchmark, method, learning.epochs, learning.batch_size)
        self.engine = Engine(config, method, benchmark, device)
        self.position = Position()
        log_position = self._restore()
        self.meter = Meter(self.phases, config.seed, config.engine.skip_bad_steps, self.position.seconds)
        self.meter.bad_steps = self.position.bad_steps
        self.tracker = Tracker(self.engine, config.engine.track_overfitting)
        self.saved = time.monotonic()
        self.log: JsonLines | None = None
        self.loggers: list[Logger] = []
        with processes.together():
            if processes.rank() == 0:
                self.log = JsonLines(directory.log, log_position)
                start = 0 if self.position.task == len(self.phases) else self._total(self._phase, self.position.step)
                self.loggers = [self.log, *open_views(config, method.name, directory.path, quiet, start)]

    @property
    def _phase(self) -> Phase:
        return self.phases[self.position.task]

    def run(self) -> RunMetrics | None:
        """Train, end, evaluate, task by task; then the metrics of the whole."""
        try:
            self._measure_baseline()
            while self.position.task < len(self.phases):
                phase = self._phase
                if self.position.stage in ("train", "curve"):
                    self._train(phase)
                    self._advance("end")
                if self.position.stage == "end":
                    with self.interrupt.at_once():
                        self.engine.model.end_task(self.engine.task_context(phase, phase.steps))
                    self._advance("evaluate")
                self._save_task(phase.task)
                self._evaluate(f"task-{phase.task + 1:02d}", phase, phase.steps)
                self._advance("train", phase.task + 1)
            return self._finish()
        except RuntimeError as error:
            if not processes.lost(error):
                raise
            if self.interrupt.asked:  # the others were asked too, and have left already
                raise Stopped("stopped; the newest saved state stands.") from None
            print(
                "osiris: another process is gone, so this one leaves; the newest saved state stands.", file=sys.stderr
            )
            raise processes.Elsewhere(1) from None
        finally:
            for logger in self.loggers:
                logger.close()

    def _train(self, phase: Phase) -> None:
        if self.position.step == 0:
            self.engine.model.begin_task(self.engine.task_context(phase, 0))
        if self.position.stage == "curve":
            self._evaluate_between_steps(phase)
        self.meter.resume()
        every = self.config.evaluation.evaluate_every
        for step in range(self.position.step, phase.steps):
            self.meter.add(self.engine.step(phase, step))
            self.position.step = done = step + 1
            self.engine.model.after_step(self.engine.task_context(phase, done))
            if done % self.config.engine.log_every == 0 or done == phase.steps:
                self._log(phase)
            if self.tracker.due(phase, done):
                record = self.tracker.measure(phase, done)
                self._emit(record and record | {"total_step": self._total(phase, done)})
            if every and done % every == 0 and done != phase.steps:
                self._log(phase)
                self._advance("curve")
                self._evaluate_between_steps(phase)
            self._maybe_save(phase)

    def _maybe_save(self, phase: Phase) -> None:
        """At intervals, and when somebody asks to stop. All processes decide together."""
        due = time.monotonic() - self.saved > 60 * self.config.engine.save_every
        stop, due = processes.agree_each([self.interrupt.asked, due])
        if stop or due:
            self._log(phase)
            self._save()
        if stop:
            raise Stopped(f"stopped in task {self.position.task + 1} at step {self.position.step}; state saved.")

    def _advance(self, stage: str, task: int | None = None) -> None:
        """Enter the next stage: from here on a kill loses no more than that stage."""
        self.position.stage = stage
        if task is not None:
            self.position.task, self.position.step = task, 0
        self._save()
        if processes.agree(self.interrupt.asked):
            raise Stopped(f"stopped in task {min(self.position.task + 1, len(self.phases))}; state saved.")

    def _log(self, phase: Phase) -> None:
        record = self.meter.read(phase, self.position.step)
        self.position.bad_steps = self.meter.bad_steps
        rate = self.engine.optimiser.param_groups[0]["lr"]
        self._emit(record and record | {"learning_rate": rate, "memory": self.engine.memory.filled})

    def _evaluate_between_steps(self, phase: Phase) -> None:
        """A point of the curve through training. The state was saved in stage `curve`, which ends here."""
        step = self.position.step
        self._evaluate(f"curve-{phase.task + 1:02d}-{step:07d}", phase, step)
        self.position.stage = "train"
        self.meter.resume()

    def _evaluate(self, name: str, phase: Phase, step: int) -> None:
        with self.interrupt.at_once():
            features = embed_sharded(self.engine)
            with processes.together():
                if processes.rank() == 0:
                    self._report(name, phase, step, features)

    def _report(self, name: str, phase: Phase, step: int, features: Features) -> None:
        """Every number of this checkpoint, to the disk and to the log."""
        evaluation, folder = evaluate_whole(self.engine, features), self.directory.evaluation
        total = self._total(phase, step)
        if name.startswith("curve"):
            where = {"task": phase.task, "step": step, "total_step": total}
            write_json(folder / f"{name}.json", where | evaluation.numbers.plain())
        else:
            write_evaluation(folder, name, features, evaluation, self.config.evaluation.keep_features)
        warn_of_collapse(evaluation.numbers)
        where = {"task": phase.task + 1, "tasks": len(self.phases), "step": step, "total_step": total}
        self._emit({"event": "evaluation", **where, "shown": shown(evaluation.numbers)})

    def _total(self, phase: Phase, step: int) -> int:
        return sum(item.steps for item in self.phases[: phase.task]) + step

    def _measure_baseline(self) -> None:
        """Untrained encoders, for T. Cached: it costs time once per benchmark and encoder."""
        self.baseline = None
        with self.interrupt.at_once(), processes.together():
            if processes.rank() == 0:
                self.baseline = baseline_of(self.config, self.benchmark, self.device)

    def _finish(self) -> RunMetrics | None:
        metrics = None
        with processes.together():
            if processes.rank() == 0:
                method, folder = self.method, self.directory.evaluation
                metrics = summarise(self.config, method.name, method.stream, self.benchmark, folder, self.baseline)
                write_record(self.directory.metrics, metrics)
        return metrics

    def _emit(self, record: dict[str, Any] | None) -> None:
        if record is not None:
            for logger in self.loggers:
                logger.log(record)

    def _save(self) -> None:
        with processes.together():
            if self.log is not None:
                self.position.seconds = self.meter.seconds
                state = {"engine": self.engine.state(), "position": vars(self.position), "log": self.log.position}
                checkpoint.save_state(self.directory.checkpoints, state)
        self.saved = time.monotonic()

    def _save_task(self, task: int) -> None:
        with processes.together():
            if processes.rank() == 0:
                path = self.directory.checkpoints / f"task-{task + 1:02d}.safetensors"
                metadata = {
                    "encoder": to_dict(self.config.encoder),
                    "projector": to_dict(self.config.projector),
                    "mean": self.benchmark.mean,
                    "std": self.benchmark.std,
                    "image_size": self.benchmark.train.images.shape[1],
                }
                checkpoint.save_tensors(path, self.engine.task_tensors(), {**metadata, "task": task})

    def _restore(self) -> int:
        """Continue from the newest whole checkpoint, which the first process reads; returns the position in the log."""
        state = checkpoint.load_for_all(self.directory.checkpoints)
        if state is None:
            with processes.together():
                if self.config.engine.init is not None:
                    self.engine.initialise(self.config.engine.init)
            return 0
        self.engine.restore(state["engine"])
        self.position = Position(**state["position"])
        if processes.rank() == 0:
            task = min(self.position.task + 1, len(self.phases))
            notice(f"continuing {self.directory.path} in task {task} at step {self.position.step}")
        return int(state["log"])
