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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from osiris import processes
from osiris.console import notice, warn
from osiris.data.benchmark import Benchmark, content_differences
from osiris.data.benchmarks import load_benchmark
from osiris.errors import Diverged, Stopped, UserError
from osiris.evaluation.features import Features, embed_benchmark
from osiris.evaluation.health import collapsed
from osiris.evaluation.metrics_file import RunMetrics, write_record
from osiris.files import file_digest, write_json
from osiris.framework.composition import method_to_dict, resolve
from osiris.framework.methods import Method
from osiris.framework.objectives import is_collapsed
from osiris.models import EncoderConfig
from osiris.models.external import architecture_of, is_pretrained
from osiris.models.pretrained import preprocessing
from osiris.training import checkpoint, run_evaluation
from osiris.training.config import Config, to_dict
from osiris.training.devices import choose_device, prepare_device, share_thread_count
from osiris.training.engine import Engine
from osiris.training.estimate import check_memory
from osiris.training.first_task import FirstTask, Progress
from osiris.training.interrupt import Interrupt
from osiris.training.loggers import JsonLines, Logger, open_views
from osiris.training.meter import Meter
from osiris.training.run_directory import RunDirectory, differences, settings
from osiris.training.schedule import Phase, check_sizes, phases
from osiris.training.tracking import Tracker

Extension = tuple[Benchmark, list[Phase]]
"""A benchmark with the images of one more task, and the phases of all tasks."""


@dataclass
class Position:
    """Where a run is: a task, a stage of it, and the steps done in it."""

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
                    stack.enter_context(directory)
                    config = directory.claim(config) if first else config
                state, metrics = _open(directory)
                plan = None
                if extend is not None:
                    benchmark, plan = extend(state)
                elif processes.agree(metrics is not None):
                    if first:
                        notice(f"{out} is already finished. Remove the directory to run it again.")
                    return metrics
                config = share_thread_count(config)
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
                raise Diverged(f"{end} {checkpoint.advice(out)}") from None
            if directory.config.exists():
                raise Stopped(f"{end} Continue with: osiris train --resume {out}") from None
            raise Stopped(f"{end} Nothing was saved yet: give the same command again.") from None


def _open(directory: RunDirectory) -> tuple[dict[str, Any] | None, RunMetrics | None]:
    """(the state to continue from, the metrics of a finished run)"""
    state = checkpoint.load_for_all(directory.checkpoints)
    digests = None if state is None else state["files"]
    metrics = processes.on_first(run_evaluation.finished_metrics, directory, digests)
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
        method: Method | None = None,
        benchmark: Benchmark | None = None,
        plan: list[Phase] | None = None,
        first_task: Path | None = None,
    ) -> None:
        """`plan`: the phases of a run that grows by one task; only that task's images are in `benchmark`."""
        self.config, self.directory, self.interrupt = config, directory, interrupt
        with processes.together():
            self.method, self.device = method or resolve(config.method), choose_device(config.engine.device)
            prepare_device(config, self.device)
        benchmark = benchmark or processes.in_turn(lambda: load_benchmark(config.data))
        self.benchmark = normalised_for(config.encoder, benchmark, state)
        learning = config.learning
        self.position, self.files, log_position = Position(), dict[str, str](), 0
        self.collapsed_in: int | None = None
        with processes.together():
            self.growing = plan is not None
            self.phases = plan or phases(self.benchmark, self.method, learning.epochs, learning.batch_size)
            present = [phase for phase in self.phases if len(phase.indices)]
            notices = [*self.benchmark.notices, *check_sizes(present, self.method, learning)]
            architecture = None if state is None else state.get("architecture")
            self.engine = Engine(config, self.method, self.benchmark, self.device, architecture)
            self.architecture = architecture_of(config.encoder.encoder, self.engine.networks.encoder)
            check_memory(self.engine, present)
            if state is not None:
                log_position = self._restore(state)
            elif config.engine.init is not None:
                self.engine.initialise(config.engine.init)
            if directory.owner:
                for text in notices:
                    notice(text)
                directory.record(config, method_to_dict(self.method), str(self.device), processes.world_size())
                run_evaluation.repair_evaluations(self.engine, directory, self.files, possible=not self.growing)
        self.meter = Meter(self.phases, config.seed, config.engine.skip_bad_steps, self.position.seconds)
        self.meter.bad_steps = self.position.bad_steps
        self.first_task = FirstTask(first_task, self.engine)
        self.tracker = Tracker(self.engine, config.engine.track_overfitting)
        self.saved = time.monotonic()
        self.log = processes.on_first(JsonLines, directory.log, log_position)
        done = sum(phase.steps for phase in self.phases[: self.position.task]) + self.position.step
        views = processes.on_first(open_views, config, self.method.name, directory.path, quiet, done)
        self.loggers: list[Logger] = [] if self.log is None else [self.log, *(views or ())]

    def run(self, stop_after: int | None = None) -> RunMetrics | None:
        """Train, end, evaluate, task by task; then the metrics of the whole run. `stop_after`: see `train`."""
        try:
            self._measure_baseline()
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
                processes.on_first(self._write_weights, phase.task)
                self._evaluate(f"task-{phase.task + 1:02d}", phase, phase.steps)
                self._advance("train", phase.task + 1)
            return self._finish()
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
        every = self.config.evaluation.evaluate_every
        for step in range(self.position.step, phase.steps):
            self.meter.add(self.engine.step(phase, step))
            self.position.step = done = step + 1
            self.engine.model.after_step(self.engine.task_context(phase, done))
            if done % self.config.engine.log_every == 0 or done == phase.steps:
                self._log(phase)
            if self.tracker.due(phase, done):
                record = self.tracker.measure(phase, done)
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
        stop, due = processes.agree_each([self.interrupt.asked, due])
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
        if processes.agree(self.interrupt.asked):
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
        evaluation = run_evaluation.evaluate_encoder(self.engine, self.engine.networks.encoder, features)
        folder, total = self.directory.evaluation, self.meter.total(phase, step)
        self.directory.require_present()
        if name.startswith("curve"):
            where = {"task": phase.task, "step": step, "total_step": total}
            write_json(folder / f"{name}.json", where | evaluation.numbers.plain())
        else:
            run_evaluation.write_evaluation(folder, name, features, evaluation, self.config.evaluation.keep_features)
        self._remember(folder / f"{name}.json")
        message = collapsed(evaluation.numbers.health)
        if message:
            warn(message)
        where = {"task": phase.task + 1, "tasks": len(self.phases), "step": step, "total_step": total}
        self._emit({"event": "evaluation", **where, "shown": run_evaluation.headline(evaluation.numbers)})

    def _measure_baseline(self) -> None:
        """Untrained encoders, for T. Cached: this takes time once for each benchmark and encoder."""
        with self.interrupt.at_once():
            folder = self.directory.evaluation
            self.baseline = processes.on_first(
                run_evaluation.baseline_of, self.config, self.benchmark, self.device, folder
            )

    def _finish(self) -> RunMetrics | None:
        metrics = processes.on_first(self._write_metrics)
        self._save()
        return metrics

    def _write_metrics(self) -> RunMetrics:
        metrics = run_evaluation.summarise(
            self.config, self.method, self.benchmark, self.directory, self.files, self.baseline
        )
        self.directory.require_present()
        write_record(self.directory.metrics, metrics)
        self._remember(self.directory.metrics)
        return metrics

    def _emit(self, record: dict[str, Any] | None) -> None:
        if record is not None:
            for logger in self.loggers:
                logger.log(record)

    def _remember(self, path: Path) -> None:
        """The state knows the digest of a file that enters the metrics."""
        self.files[path.relative_to(self.directory.path).as_posix()] = file_digest(path)

    def _save(self) -> None:
        processes.on_first(self._write_state)
        self.saved = time.monotonic()

    def _write_state(self) -> None:
        assert self.log is not None
        self.directory.require_present()
        self.position.seconds = self.meter.seconds
        state = {
            "engine": self.engine.state(),
            "position": vars(self.position),
            "log": self.log.position,
            "run": settings(self.config),
            "data": list(self.benchmark.contents),
            "files": self.files,
            "normalisation": [list(self.benchmark.mean), list(self.benchmark.std)],
            "architecture": self.architecture,
        }
        checkpoint.save_state(self.directory.checkpoints, state)

    def _write_weights(self, task: int) -> None:
        """f, g and h after a task."""
        self.directory.require_present()
        metadata = {
            "encoder": to_dict(self.config.encoder),
            "architecture": self.architecture,
            "projector": to_dict(self.config.projector),
            "mean": self.benchmark.mean,
            "std": self.benchmark.std,
            "image_size": self.benchmark.train.images.shape[1],
            "task": task,
        }
        path = self.directory.weights(task)
        checkpoint.save_tensors(path, self.engine.task_tensors(), metadata)
        self._remember(path)

    def _restore(self, state: dict[str, Any]) -> int:
        """Continue from a state, if it belongs to this run and this data; returns the position in the log."""
        folder = self.directory.checkpoints
        other_run = differences(state["run"], settings(self.config))
        if other_run:
            raise UserError(
                f"the checkpoint in {folder} belongs to another run: {other_run}. Put the right one back, or remove "
                "latest.pt and previous.pt to start again."
            )
        contents = self.benchmark.contents
        other_data = content_differences(state["data"], contents[: len(state["data"])] if self.growing else contents)
        if other_data:
            raise UserError(
                f"the images of {self.benchmark.name} have changed since this run was saved: "
                f"{'; '.join(other_data[:4])}. Restore them to continue, or start a new run with another --out."
            )
        self.engine.restore(state["engine"])
        self.position, self.files = Position(**state["position"]), dict(state["files"])
        if self.directory.owner:
            task = min(self.position.task + 1, len(self.phases))
            notice(f"continuing {self.directory.path} in task {task} at step {self.position.step}")
        return int(state["log"])
