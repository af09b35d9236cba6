"""The training loop, from the first image to metrics.json.

    for each task:  train  ->  end of task (terms, then f* <- f)  ->  evaluate  ->  next

Every stage writes the whole state before the next one starts, and every random draw is keyed, so that a run killed at
any moment continues to the same bits.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from osiris import processes
from osiris.console import notice, warn
from osiris.data.benchmark import Benchmark
from osiris.data.benchmarks import load_benchmark
from osiris.errors import Diverged, Stopped, UserError
from osiris.evaluation.features import Features, embed_benchmark
from osiris.evaluation.health import collapsed
from osiris.evaluation.metrics_file import RunMetrics
from osiris.framework.composition import method_to_dict, resolve
from osiris.framework.methods import Method
from osiris.framework.objectives import is_collapsed
from osiris.models.config import EncoderConfig
from osiris.models.external import is_pretrained
from osiris.models.pretrained import preprocessing
from osiris.training import checkpoint, run_files
from osiris.training.config import Config
from osiris.training.devices import choose_device, prepare_device
from osiris.training.engine import Engine
from osiris.training.estimate import check_memory
from osiris.training.first_task import FirstTask, Progress
from osiris.training.interrupt import Interrupt
from osiris.training.loggers import JsonLines, Logger, open_views
from osiris.training.meter import Meter
from osiris.training.run_directory import RunDirectory
from osiris.training.run_files import Position, RunFiles
from osiris.training.schedule import Phase, check_sizes, phases

Extension = tuple[Benchmark, list[Phase]]
"""A benchmark with the images of one more task, and the phases of all tasks."""
EPISODES = "episodes"
"""The benchmark of a run that was given its images one folder at a time."""


def train(
    config: Config,
    out: Path,
    quiet: bool = False,
    lock: bool = True,
    method: Method | None = None,
    benchmark: Benchmark | None = None,
    extend: Callable[[dict[str, Any] | None], Extension] | None = None,
    first_task: Path | None = None,
    stop_after: int | None = None,
) -> RunMetrics | None:
    """Start or continue the run that `config` describes in the directory `out`; returns its metrics.

    `method` and `benchmark` replace those that the config names. `extend` gives the run one more task, from its state.
    `first_task`: a file to take the first task from, or to write it to. `stop_after`: the number of tasks after
    which the run rests, without metrics. With several processes, the first one writes, prints and returns the metrics;
    the others return nothing.
    """
    with Interrupt() as interrupt, processes.started(), ExitStack() as stack:
        first = processes.rank() == 0
        directory = RunDirectory(out, first, lock)
        stack.enter_context(checkpoint.writing(out))
        try:
            with interrupt.at_once():
                with processes.together():
                    config.check()
                    method = method or resolve(config.method)
                    stack.enter_context(directory)
                    config = directory.claim(config) if first else config
                state, metrics = _open(directory)
                plan = None
                if extend is not None:
                    benchmark, plan = extend(state)
                elif config.data.benchmark == EPISODES:
                    raise UserError(f"{out} learns from one folder at a time: {run_files.next_episode(out, state)}.")
                nothing_new = plan is None or (state is not None and state["position"]["task"] == len(plan))
                if any(processes.agree(metrics is not None and nothing_new)):
                    if first and plan is None:
                        notice(f"{out} is already finished. Remove the directory to run it again.")
                    return metrics
                threads = processes.broadcast(config.engine.threads)  # those of the run directory
                config = replace(config, engine=replace(config.engine, threads=threads))
                run = Training(config, directory, interrupt, state, quiet, method, benchmark, plan, first_task)
            return run.run(stop_after)
        except RuntimeError as error:
            if not processes.lost(error):
                raise
            if interrupt.asked:  # the other processes were asked too, and have left already
                raise Stopped(f"stopped. {checkpoint.advice(out)}") from None
            print("osiris: another process has ended, so this one stops too.", file=sys.stderr)
            raise processes.Elsewhere(1) from None
        except (Stopped, Diverged) as end:
            if not first:
                raise processes.Elsewhere(end.exit_code) from None
            if isinstance(end, Diverged):
                advice = checkpoint.advice(out)
            elif directory.config.exists():
                advice = (
                    f"Continue with: osiris train --resume {out}" if extend is None else "Give the same command again."
                )
            else:
                advice = "Nothing was saved yet: give the same command again."
            raise type(end)(f"{end} {advice}") from None


def _open(directory: RunDirectory) -> tuple[dict[str, Any] | None, RunMetrics | None]:
    """(the state to continue from, the metrics of a finished run)"""
    # The first process reads for all of them: they agree on one state, and need no common file system.
    state = processes.broadcast(processes.on_first(checkpoint.load_state, directory.checkpoints))
    digests = None if state is None else state["files"]
    metrics = processes.on_first(run_files.finished_metrics, directory, digests)
    if directory.owner and state is None and metrics is None and directory.log.exists():
        warn(f"{directory.path} has no checkpoint, so the run starts again from the beginning.")
    return state, metrics


def normalised_for(encoder: EncoderConfig, benchmark: Benchmark, state: dict[str, Any] | None) -> Benchmark:
    """A pretrained encoder sees images normalised as when it was pretrained; others by the statistics of the data."""
    if encoder.encoder is None or not is_pretrained(encoder.encoder):
        return benchmark
    if state is not None:
        mean, std = (tuple(values) for values in state["normalisation"])
        return replace(benchmark, mean=mean, std=std)
    expected = preprocessing(encoder.encoder)
    return replace(benchmark, mean=expected.mean, std=expected.std)


class Training:
    """One run in progress."""

    def __init__(
        self,
        config: Config,
        directory: RunDirectory,
        interrupt: Interrupt,
        state: dict[str, Any] | None,
        quiet: bool,
        method: Method,
        benchmark: Benchmark | None = None,
        plan: list[Phase] | None = None,
        first_task: Path | None = None,
    ) -> None:
        """`plan`: the phases of a run that grows by one task; only that task's images are in `benchmark`."""
        self.config, self.directory, self.interrupt = config, directory, interrupt
        with processes.together():
            self.method, self.device = method, choose_device(config.engine.device)
            prepare_device(config, self.device)
        benchmark = benchmark or processes.in_turn(lambda: load_benchmark(config.data))
        self.benchmark = normalised_for(config.encoder, benchmark, state)
        learning = config.learning
        self.position, log_position = Position(), 0
        self.collapsed_in: int | None = None
        with processes.together():
            if plan is not None and self.method.memory == "quota":
                raise UserError("the memory quota needs a known number of tasks; use --memory-policy reservoir.")
            self.phases = plan or phases(self.benchmark, self.method, learning.epochs, learning.batch_size)
            present = [phase for phase in self.phases if len(phase.indices)]
            notices = [*self.benchmark.notices, *check_sizes(present, self.method, learning)]
            architecture = None if state is None else state.get("architecture")
            self.engine = Engine(config, self.method, self.benchmark, self.device, architecture)
            self.files = RunFiles(directory, self.engine)
            check_memory(self.engine, present)
            if state is not None:
                self.position, log_position = self.files.restore(state, growing=plan is not None), state["log"]
            elif config.engine.init is not None:
                self.engine.initialise(config.engine.init)
            if directory.owner:
                if state is not None:
                    task = min(self.position.task + 1, len(self.phases))
                    notice(f"continuing {directory.path} in task {task} at step {self.position.step}")
                notice(*notices)
                directory.record(config, method_to_dict(self.method), str(self.device), processes.world_size())
                self.files.repair_evaluations(possible=plan is None)
        self.meter = Meter(self.phases, config.seed, config.engine.skip_bad_steps, self.position.seconds)
        self.meter.bad_steps = self.position.bad_steps
        self.first_task = FirstTask(first_task, self.engine)
        self.saved = time.monotonic()
        self.log = processes.on_first(JsonLines, directory.log, log_position)
        done = sum(phase.steps for phase in self.phases[: self.position.task]) + self.position.step
        views = processes.on_first(open_views, config, self.method.name, directory.path, quiet, done)
        self.loggers: list[Logger] = [] if self.log is None else [self.log, *(views or ())]

    def run(self, stop_after: int | None = None) -> RunMetrics | None:
        """Train, end, evaluate, task by task; then the metrics of the whole run. `stop_after`: see `train`."""
        try:
            with self.interrupt.at_once():  # untrained encoders, for T: cached for each benchmark and encoder
                place = self.directory.evaluation
                baseline = processes.on_first(run_files.baseline_of, self.config, self.benchmark, self.device, place)
            while self.position.task < len(self.phases):
                if stop_after is not None and self.position.task >= stop_after:
                    return None
                phase = self.phases[self.position.task]
                if self.position.stage in ("train", "curve"):
                    self._train(phase)
                    self._advance("end")
                if self.position.stage == "end":
                    if phase.task == 0:
                        processes.on_first(self._give_first_task)
                    with self.interrupt.at_once():
                        self.engine.model.end_task(self.engine.task_context(phase, phase.steps))
                    self._advance("evaluate")
                processes.on_first(self.files.write_weights, phase.task)
                self._evaluate(f"task-{phase.task + 1:02d}", phase, phase.steps)
                self._advance("train", phase.task + 1)
            metrics = processes.on_first(self.files.write_metrics, baseline)
            self._save()
            return metrics
        finally:
            for logger in self.loggers:
                logger.close()

    def _train(self, phase: Phase) -> None:
        if self.position.step == 0:
            self.engine.model.begin_task(self.engine.task_context(phase, 0))
            if phase.task == 0 and self._take_first_task(phase):
                return
        if self.position.stage == "curve":
            self._evaluate_between_steps(phase)
        self.meter.resume()
        every, track_every = self.config.evaluation.evaluate_every, self.config.engine.track_overfitting
        for step in range(self.position.step, phase.steps):
            self.meter.add(self.engine.step(phase, step))
            self.position.step = done = step + 1
            self.engine.model.after_step(self.engine.task_context(phase, done))
            if done % self.config.engine.log_every == 0 or done == phase.steps:
                self._log(phase)
            if track_every and phase.task > 0 and done % track_every == 0:
                record = run_files.track_overfitting(self.engine, phase, done)
                self._emit(record and record | {"total_step": self.meter.total(phase, done)})
            if every and done % every == 0 and done != phase.steps:
                self._log(phase)
                self._advance("curve")
                self._evaluate_between_steps(phase)
            self._maybe_save(phase)

    def _take_first_task(self, phase: Phase) -> bool:
        progress = self.first_task.take()
        if progress is None:
            return False
        self.position.step, self.position.bad_steps = phase.steps, progress.bad_steps
        self.meter.bad_steps, self.meter.started = progress.bad_steps, self.meter.started - progress.seconds
        for record in progress.log:
            self._emit(record)
        return True

    def _give_first_task(self) -> None:
        log = [json.loads(line) for line in self.directory.log.read_text(encoding="utf-8").splitlines()]
        self.first_task.give(Progress(log, self.position.bad_steps, self.meter.seconds))

    def _maybe_save(self, phase: Phase) -> None:
        """At intervals, and when a signal asks to stop. All processes decide together."""
        due = time.monotonic() - self.saved > 60 * self.config.engine.save_every
        stop, due = processes.agree(self.interrupt.asked, due)
        if stop or due:
            self._log(phase)
            self._save()
        if stop:
            raise Stopped(f"stopped in task {self.position.task + 1} at step {self.position.step}; the state is saved.")

    def _advance(self, stage: str, task: int | None = None) -> None:
        """Enter the next stage and save: from here on, a kill loses no more than that stage."""
        self.position.stage = stage
        if task is not None:
            self.position.task, self.position.step = task, 0
        self._save()
        if any(processes.agree(self.interrupt.asked)):
            raise Stopped(f"stopped in task {min(self.position.task + 1, len(self.phases))}; the state is saved.")

    def _log(self, phase: Phase) -> None:
        record = self.meter.read(phase, self.position.step)
        self.position.bad_steps = self.meter.bad_steps
        if self.directory.owner and record and is_collapsed(record["spread"]) and self.collapsed_in != phase.task:
            self.collapsed_in = phase.task
            warn(
                f"the embeddings have collapsed in task {phase.task + 1} at step {self.position.step}: their spread is "
                f"{record['spread']:.3f}, near 1 is healthy. The encoder maps all images to almost the same point. Try "
                f"a lower --learning-rate, a larger --batch-size or another --objective."
            )
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
            features = embed_benchmark(self.engine.networks.encoder, self.benchmark, self.device, shared=True)
            processes.on_first(self._report, name, phase, step, features)

    def _report(self, name: str, phase: Phase, step: int, features: Features) -> None:
        """Every number of this checkpoint, to disk and to the log."""
        evaluation = run_files.evaluate_encoder(self.engine, self.engine.networks.encoder, features)
        where = {"task": phase.task, "step": step, "total_step": self.meter.total(phase, step)}
        self.files.write_evaluation(name, where, features, evaluation)
        message = collapsed(evaluation.numbers.health)
        if message:
            warn(message)
        where |= {"task": phase.task + 1, "tasks": len(self.phases)}
        self._emit({"event": "evaluation", **where, "shown": run_files.headline(evaluation.numbers)})

    def _emit(self, record: dict[str, Any] | None) -> None:
        if record is not None:
            for logger in self.loggers:
                logger.log(record)

    def _save(self) -> None:
        self.position.seconds = self.meter.seconds
        processes.on_first(lambda: self.files.write_state(self.position, self.log.position if self.log else 0))
        self.saved = time.monotonic()
