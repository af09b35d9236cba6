"""The training loop, from the first image to metrics.json, as a narrative.

    for each task:  train  ->  end of task (terms, then f* <- f)  ->  evaluate  ->  next

Every stage writes the whole state before the next one starts, and every random draw is keyed, so that a run killed at
any moment continues to the same bits.
"""

from __future__ import annotations

import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from osiris import processes
from osiris.composition import method_to_dict, resolve
from osiris.console import messages, notice
from osiris.data.base import Benchmark
from osiris.data.benchmarks import load_benchmark
from osiris.errors import UserError
from osiris.files import read_json, write_json
from osiris.methods import Method
from osiris.training import checkpoint
from osiris.training.config import Config, to_dict
from osiris.training.engine import Engine, StepResult, choose_device
from osiris.training.evaluating import (
    baseline_of,
    evaluate_engine,
    shown,
    summarise,
    warn_of_collapse,
    write_evaluation,
)
from osiris.training.loggers import JsonLines, LiveView, Logger, PlainLines, TensorBoard, WeightsAndBiases
from osiris.training.plan import Phase, phases
from osiris.training.run_directory import RunDirectory

STOPPED = 75
"""Exit code after a clean stop by SIGTERM or SIGINT (EX_TEMPFAIL: a scheduler may requeue)."""


class Stopped(Exception):
    """The run was asked to stop; its state is on the disk."""


class Diverged(Exception):
    """A loss became infinite or undefined."""


@dataclass
class Position:
    """Where a run stands: a task, a stage of it, and the steps done in it."""

    task: int = 0
    stage: str = "train"
    """train, end, evaluate"""
    step: int = 0
    bad_steps: int = 0
    seconds: float = 0.0
    """Training time so far, over all starts."""


@dataclass
class Interrupt:
    """SIGTERM and SIGINT set a flag that the loop reads after each step; a second SIGINT stops at once."""

    asked: bool = False
    _before: dict[int, Any] = field(default_factory=dict)

    def __enter__(self) -> Interrupt:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._ask)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _ask(self, number: int, frame: object) -> None:
        if self.asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.asked = True
        messages.print("stopping after this step; the state will be saved (Ctrl-C again stops at once)")


def train(config: Config, out: Path, quiet: bool = False) -> dict[str, Any]:
    """Run, or continue, the run that `config` describes in the directory `out`; returns its metrics."""
    config.check()
    config, method = config.complete(), resolve(config.method)
    with processes.started(), RunDirectory(out, owner=processes.rank() == 0) as run:
        run.claim(config, method_to_dict(method))
        processes.barrier()
        if run.metrics.exists():
            notice(f"{out} is already finished; its metrics stand. Remove the directory to run it again.")
            return read_json(run.metrics)
        prepare(config)
        device = choose_device(config.engine.device)
        benchmark = load_benchmark(config.data)
        for text in benchmark.notices:
            notice(text)
        check_sizes(config, method, benchmark)
        if processes.rank() == 0:
            run.record_environment(str(device), processes.world_size())
        with Interrupt() as interrupt:
            return Run(config, method, benchmark, device, run, interrupt, quiet).run()


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
        self.phases = phases(benchmark, method.stream, learning.epochs, learning.batch_size)
        self.engine = Engine(config, method, benchmark, device)
        self.position = Position()
        log_position = self._restore()
        processes.barrier()
        self.log = JsonLines(directory.log, log_position) if processes.rank() == 0 else None
        self.loggers: list[Logger] = [] if self.log is None else [self.log, *self._views(quiet)]
        self.saved, self.started = time.monotonic(), time.monotonic() - self.position.seconds
        self.pending: list[StepResult] = []
        self.logged = time.monotonic()

    def run(self) -> dict[str, Any]:
        """Train, end, evaluate, task by task; then the metrics of the whole."""
        try:
            self.baseline = baseline_of(self.config, self.benchmark, self.device) if processes.rank() == 0 else None
            processes.barrier()
            while self.position.task < len(self.phases):
                phase = self.phases[self.position.task]
                if self.position.stage == "train":
                    self._train(phase)
                    self._advance("end")
                if self.position.stage == "end":
                    self.engine.objective.end_task(self.engine.world(phase, phase.steps))
                    self._advance("evaluate")
                self._save_task(phase.task)
                self._evaluate(f"task-{phase.task + 1:02d}", phase, phase.steps)
                self._advance("train", phase.task + 1)
            return self._finish()
        finally:
            for logger in self.loggers:
                logger.close()

    def _train(self, phase: Phase) -> None:
        if self.position.step == 0:
            self.engine.objective.begin_task(self.engine.world(phase, 0))
        self.logged = time.monotonic()
        for step in range(self.position.step, phase.steps):
            self.pending.append(self.engine.step(phase, step))
            self.position.step = step + 1
            self.engine.objective.after_step(self.engine.world(phase, step + 1))
            last = step + 1 == phase.steps
            if (step + 1) % self.config.engine.log_every == 0 or last:
                self._log(phase)
            every = self.config.evaluation.evaluate_every
            if every and (step + 1) % every == 0 and not last:
                self._log(phase)
                self._evaluate(f"curve-{phase.task + 1:02d}-{step + 1:07d}", phase, step + 1)
            self._maybe_save(phase)

    def _maybe_save(self, phase: Phase) -> None:
        """At intervals, and when somebody asks to stop. All processes decide together."""
        due = time.monotonic() - self.saved > 60 * self.config.engine.save_every
        if processes.agree(self.interrupt.asked):
            self._log(phase)
            self._save()
            raise Stopped(f"stopped in task {self.position.task + 1} at step {self.position.step}; state saved.")
        if processes.agree(due):
            self._log(phase)
            self._save()

    def _advance(self, stage: str, task: int | None = None) -> None:
        self.position.stage = stage
        if task is not None:
            self.position.task, self.position.step = task, 0
        self._save()
        if processes.agree(self.interrupt.asked):
            raise Stopped(f"stopped after task {self.position.task + 1}; state saved.")

    def _log(self, phase: Phase) -> None:
        """The only place in training that waits for the device: means over the steps since the last line."""
        if not self.pending:
            return
        results, self.pending = self.pending, []
        names = list(results[0].values)
        table = torch.stack([torch.stack([result.values[name].float() for name in names]) for result in results]).cpu()
        finite = torch.stack([result.finite for result in results]).cpu()
        self._guard(phase, table, finite, names)
        now = time.monotonic()
        images, self.logged, elapsed = sum(result.images for result in results), now, now - self.logged
        means = dict(zip(names, table[finite].mean(0).tolist() if finite.any() else [float("nan")] * len(names)))
        done = sum(item.steps for item in self.phases[: phase.task]) + self.position.step
        total = sum(item.steps for item in self.phases)
        spent = now - self.started
        self._emit(
            {
                "event": "step",
                "task": phase.task + 1,
                "tasks": len(self.phases),
                "step": self.position.step,
                "total_step": done,
                "epoch": -(-self.position.step // phase.steps_per_epoch),
                "epochs": phase.epochs,
                "loss": means.pop("loss"),
                "gradient_norm": means.pop("gradient_norm"),
                "terms": means,
                "learning_rate": self.engine.optimiser.param_groups[0]["lr"],
                "images_per_second": images / max(elapsed, 1e-9),
                "memory": self.engine.memory.filled,
                "progress": done / total,
                "task_progress": self.position.step / phase.steps,
                "seconds": spent,
                "seconds_left": spent / done * (total - done),
            }
        )

    def _guard(self, phase: Phase, table: torch.Tensor, finite: torch.Tensor, names: list[str]) -> None:
        """Bad steps were left out on the device; here the host learns of them and stops when they are too many."""
        bad = (~finite).nonzero().squeeze(1)
        if not len(bad):
            return
        self.position.bad_steps += len(bad)
        first = int(bad[0])
        step = self.position.step - len(finite) + first
        guilty = [name for name, value in zip(names, table[first]) if name != "loss" and not torch.isfinite(value)]
        if self.position.bad_steps > self.config.engine.skip_bad_steps:
            raise Diverged(
                f"the loss is not finite in task {phase.task + 1} at step {step} (term: {', '.join(guilty) or 'sum'}). "
                f"The update was left out, and the last checkpoint is good. The batch can be built again from seed "
                f"{self.config.seed}, task {phase.task} and step {step}. Try a lower --learning-rate, or "
                f"--skip-bad-steps N to leave out up to N such steps."
            )

    def _evaluate(self, name: str, phase: Phase, step: int) -> None:
        features, evaluation = evaluate_engine(self.engine)
        if evaluation is None:
            return
        folder = self.directory.evaluation
        if name.startswith("curve"):
            numbers = {"task": phase.task, "step": step, "total_step": self._total(phase, step), **evaluation.numbers}
            write_json(folder / f"{name}.json", numbers)
        else:
            write_evaluation(folder, name, features, evaluation, self.config.evaluation.keep_features)
        warn_of_collapse(evaluation.numbers)
        self._emit(
            {
                "event": "evaluation",
                "task": phase.task + 1,
                "tasks": len(self.phases),
                "step": step,
                "total_step": self._total(phase, step),
                "shown": shown(evaluation.numbers),
            }
        )
        self.logged = time.monotonic()

    def _total(self, phase: Phase, step: int) -> int:
        return sum(item.steps for item in self.phases[: phase.task]) + step

    def _finish(self) -> dict[str, Any]:
        metrics: dict[str, Any] = {}
        if processes.rank() == 0:
            metrics = summarise(
                self.config,
                self.method.name,
                self.method.stream,
                self.benchmark,
                self.directory.evaluation,
                self.baseline,
            )
            write_json(self.directory.metrics, metrics)
        processes.barrier()
        return metrics

    def _emit(self, record: dict[str, Any]) -> None:
        for logger in self.loggers:
            logger.log(record)

    def _save(self) -> None:
        if self.log is not None:
            self.position.seconds = time.monotonic() - self.started
            state = {"engine": self.engine.state(), "position": vars(self.position), "log": self.log.position}
            checkpoint.save_state(self.directory.checkpoints, state)
        self.saved = time.monotonic()
        processes.barrier()

    def _save_task(self, task: int) -> None:
        if processes.rank() == 0:
            path = self.directory.checkpoints / f"task-{task + 1:02d}.safetensors"
            metadata = {"encoder": to_dict(self.config.encoder), "projector": to_dict(self.config.projector)}
            checkpoint.save_tensors(path, self.engine.task_tensors(), {**metadata, "task": task})

    def _restore(self) -> int:
        """Continue from the newest whole checkpoint; returns the position in the log."""
        state = checkpoint.load_state(self.directory.checkpoints)
        if state is None:
            if self.config.engine.init is not None:
                initialise(self.engine, self.config.engine.init)
            return 0
        self.engine.restore(state["engine"])
        self.position = Position(**state["position"])
        notice(f"continuing {self.directory.path} in task {self.position.task + 1} at step {self.position.step}")
        return int(state["log"])

    def _views(self, quiet: bool) -> list[Logger]:
        views: list[Logger] = []
        if not quiet:
            title = f"{self.method.name} seed {self.config.seed}"
            views.append(LiveView(title) if messages.is_terminal else PlainLines(title))
        if self.config.engine.tensorboard:
            views.append(TensorBoard(self.directory.path))
        if self.config.engine.wandb:
            views.append(WeightsAndBiases(self.directory.path, to_dict(self.config), self.directory.path.name))
        return views


def prepare(config: Config) -> None:
    """Threads and determinism, before anything is computed."""
    assert config.engine.threads is not None
    torch.set_num_threads(config.engine.threads)
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cuda.matmul.allow_tf32 = config.engine.tf32
    torch.backends.cudnn.allow_tf32 = config.engine.tf32


def check_sizes(config: Config, method: Method, benchmark: Benchmark) -> None:
    """Numbers that only make sense together."""
    learning = config.learning
    wanted = int(learning.batch_size * method.replay)
    if method.reads_memory and learning.memory_size < wanted:
        raise UserError(
            f"the memory holds {learning.memory_size} images, but {method.name} replays {wanted} at each step; "
            f"use --memory-size {wanted} or more, or a smaller --batch-size."
        )
    if processes.world_size() > learning.batch_size:
        raise UserError(f"{processes.world_size()} processes cannot share a batch of {learning.batch_size} images.")


def initialise(engine: Engine, path: Path) -> None:
    """--init: start the encoder from given weights; says which are missing or of another shape."""
    tensors, _ = checkpoint.load_tensors(path)
    prefix = "encoder." if any(name.startswith("encoder.") for name in tensors) else ""
    given = {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
    wanted = engine.networks.encoder.state_dict()
    missing = [name for name in wanted if name not in given]
    shapes = [name for name in wanted if name in given and wanted[name].shape != given[name].shape]
    if missing or shapes:
        problem = f"{missing[0]} is missing" if missing else f"{shapes[0]} has another shape"
        raise UserError(
            f"--init {path} does not fit the encoder: {problem}. Check --width, --blocks, --stem and --norm."
        )
    engine.networks.encoder.load_state_dict({name: given[name] for name in wanted})
