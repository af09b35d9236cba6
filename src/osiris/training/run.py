"""A run is a list of episodes that grows.

    open -> for each coming episode: steps, end of the episode, weights, evaluation -> metrics

`osiris train` opens a run and advances it over the episodes of a benchmark, `observe` over one more folder of images;
resuming is advancing from where the run stands. Every stage is saved before the next one starts, and every random draw
is keyed, so that a run killed at any moment continues to the same bits.
"""

from __future__ import annotations

import copy
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from osiris import processes
from osiris.config import Config, to_dict
from osiris.console import notice, warn
from osiris.data.benchmark import Benchmark, content_differences
from osiris.data.catalogue import IMAGENET_MEAN, IMAGENET_STD, is_known
from osiris.data.load import load_benchmark
from osiris.devices import faster_precision, open_device, prepare_host
from osiris.errors import Diverged, Stopped, UserError
from osiris.evaluation.baselines import Baseline, untrained_baseline
from osiris.evaluation.config import ProtocolConfig
from osiris.evaluation.evaluate import compare_arrays, evaluate_encoder, headline
from osiris.evaluation.fingerprint import fingerprint
from osiris.evaluation.health import collapsed
from osiris.evaluation.scores import Comparison, CurveScores, Scores, read_record, write_record
from osiris.files import cache_directory, load_tensors, save_tensors, write_json
from osiris.framework.composition import method_to_dict, resolve
from osiris.framework.methods import Method
from osiris.framework.objectives import is_collapsed
from osiris.models.encoder import build_encoder
from osiris.models.external import Channels, normalisation, statistics
from osiris.presets import MEANINGLESS, own_data
from osiris.runs.directory import CURVE, START, RunDirectory, curve_name, differences, settings, task_name
from osiris.runs.records import RunMetrics, build_metrics
from osiris.runs.state import Position, Stage, State, advice, load_state, save_state, writing
from osiris.training.engine import Accept, Engine, encoder_weights, first_task_images
from osiris.training.episode import Ended, Event, Point, Stepped, Trained, learn
from osiris.training.estimate import check_memory, explain_out_of_memory
from osiris.training.interrupt import Interrupt
from osiris.training.loggers import JsonLines, Logger, open_views
from osiris.training.meter import Meter
from osiris.training.schedule import Episode, check_sizes, plan_episodes
from osiris.training.tracking import track_overfitting


@dataclass(frozen=True)
class Opening:
    """Which run to open, and how."""

    config: Config
    out: Path
    method: Method | None = None
    """Instead of the one that the config names."""
    quiet: bool = False
    """Do not display progress."""
    lock: bool = True
    again: str | None = None
    """How to continue it after an interruption; default: `osiris train --resume`."""


def train(opening: Opening, benchmark: Benchmark | None = None, stop_after: int | None = None) -> RunMetrics | None:
    """Advance a run over the episodes of its benchmark; returns its metrics.

    `benchmark` replaces the one that the config names. `stop_after`: the number of episodes after which the run rests,
    without metrics. With several processes, the first one writes, prints and returns the metrics; the others return
    nothing.
    """
    with opened(opening) as run:
        metrics = processes.on_first(run.finished_metrics)
        if any(processes.agree(metrics is not None)):
            if metrics is not None:
                notice(f"{opening.out} is already finished. Remove the directory to run it again.")
            return metrics
        if benchmark is None and not run.config.data.benchmark:
            raise UserError(f"{opening.out} learns from one folder at a time: {next_episode(opening.out, run.state)}.")
        name = run.config.data.benchmark
        if benchmark is None and run.directory.config.exists() and not (is_known(name) or own_data(name)):
            raise UserError(
                f"{opening.out} learns from images that were given in Python (benchmark_from), which only your program "
                "has: call osiris.train again with the same arguments to continue."
            )
        run.start(lambda: benchmark or processes.in_turn(lambda: load_benchmark(run.config.data)))
        for episode in run.coming(stop_after):
            run.advance(episode)
        return run.finish()


@contextmanager
def opened(opening: Opening) -> Iterator[Training]:
    """A run with its directory locked and its state read. Interruptions and failures end in one line that says how to
    go on."""
    with Interrupt() as interrupt, processes.started(), ExitStack() as stack:
        first, config = processes.rank() == 0, opening.config
        directory = RunDirectory(opening.out, first, opening.lock)
        stack.enter_context(writing(opening.out))
        try:
            with interrupt.at_once():
                with processes.together():
                    config.check()
                    method = opening.method or resolve(config.method)
                    stack.enter_context(directory)
                    config = directory.claim(config) if first else config
                # The first process reads for all: they agree on one state, and need no common file system.
                state = processes.broadcast(processes.on_first(load_state, directory.checkpoints))
                if first and state is None and directory.log.exists() and not directory.metrics.exists():
                    warn(f"{directory.path} has no checkpoint, so the run starts again from the beginning.")
                threads = processes.broadcast(config.engine.threads)  # those of the run directory
                config = replace(config, engine=replace(config.engine, threads=threads))
            run = Training(config, method, directory, interrupt, state, opening.quiet)
            stack.callback(run.close)
            yield run
        except RuntimeError as error:
            if not processes.lost(error):
                raise
            if interrupt.asked:  # the other processes were asked too, and have left already
                raise Stopped(f"stopped. {advice(opening.out)}") from None
            print("osiris: another process has ended, so this one stops too.", file=sys.stderr)
            raise processes.Elsewhere(1) from None
        except (Stopped, Diverged) as end:
            if not first:
                raise processes.Elsewhere(end.exit_code) from None
            if isinstance(end, Diverged):
                way_on = advice(opening.out)
            elif directory.config.exists():
                way_on = opening.again or f"Continue with: osiris train --resume {opening.out}"
            else:
                way_on = "Nothing was saved yet: give the same command again."
            raise type(end)(f"{end} {way_on}") from None


class Training:
    """An open run: where it stands, and how it advances."""

    benchmark: Benchmark
    engine: Engine
    episodes: list[Episode]
    """Those that are learned, and those to come."""
    meter: Meter

    def __init__(
        self,
        config: Config,
        method: Method,
        directory: RunDirectory,
        interrupt: Interrupt,
        state: State | None,
        quiet: bool,
    ) -> None:
        self.config, self.method, self.directory, self.interrupt = config, method, directory, interrupt
        self.state, self.quiet = state, quiet
        self.position = Position() if state is None else copy.copy(state.position)
        self.collapses: dict[str, list[int]] = {}
        """What has collapsed -> the tasks in which it has."""
        self.saved = time.monotonic()
        self.log: JsonLines | None = None
        self.loggers: list[Logger] = []

    def finished_metrics(self) -> RunMetrics | None:
        """metrics.json, if no episode is left and if it agrees with the evaluations on disk."""
        directory, state = self.directory, self.state
        if not directory.metrics.exists() or (state is not None and state.unfinished is not None):
            return None
        if state is None:  # the user has removed the checkpoints of a finished run
            return read_record(directory.metrics, RunMetrics)
        try:
            metrics = read_record(directory.metrics, RunMetrics)
        except UserError as error:
            warn(f"{error} It is computed again from {directory.evaluation}.")
            return None
        learned = range(state.position.task)
        if any(weights.exists() and self._broken(name) for name, weights in self._evaluated(learned).items()):
            return None
        found = [_read(directory.scores(task)) for task in learned]
        kept = dict(enumerate(metrics.evaluations)) if len(metrics.evaluations) == len(found) else {}
        stale = [task for task, scores in enumerate(found) if scores is not None and scores != kept.get(task)]
        return None if stale else metrics

    def start(self, load: Callable[[], Benchmark]) -> None:
        """Load the images, build the networks, and go to where the run stands."""
        config, state = self.config, self.state
        with self.interrupt.at_once():
            with processes.together():
                self.device = open_device(config.engine.device, config.engine.tf32)
                prepare_host(config.engine, self.device)
            self.benchmark = benchmark = self._normalised(load())
            with processes.together():
                self.episodes = plan_episodes(benchmark, self.method, config.learning)
                coming = [episode for episode in self.episodes if episode.images is not None]
                notices = [*benchmark.notices, *check_sizes(coming, self.method, config.learning)]
                notices += faster_precision(config.engine, self.device)
                architecture, planned = (None, None) if state is None else (state.architecture, state.planned)
                self.engine = Engine(config, self.method, benchmark, self.device, architecture, planned)
                check_memory(self.engine, coming)
                if state is not None:
                    self._restore(state)
                if self.directory.owner:
                    if state is not None and state.unfinished is not None:
                        where = f"task {self.position.task + 1} at step {self.position.step}"
                        notice(f"continuing {self.directory.path} in {where}")
                    notice(*notices)
                    if self.coming() and config.preset == "smoke":
                        notice(MEANINGLESS)
                    composition, world = method_to_dict(self.method), processes.world_size()
                    self.directory.record(config, composition, str(self.device), world)
            if config.pretrained and state is None:
                processes.on_first(self._write_weights, self.directory.start_weights)
                self._evaluate_encoder(self.engine.networks.encoder, START)
            self._repair_evaluations()
            self.baseline = None
            if not config.pretrained:  # untrained encoders, for T: cached for each benchmark and encoder
                self.baseline = processes.on_first(baseline_of, config, benchmark, self.device)
        self.meter = Meter(self.episodes, config.seed, config.engine.skip_bad_steps, self.position.seconds)
        self.meter.bad_steps = self.position.bad_steps
        if self.coming():
            self.log = processes.on_first(JsonLines, self.directory.log, 0 if state is None else state.log)
            done = sum(episode.steps for episode in self.episodes[: self.position.task]) + self.position.step
            views = processes.on_first(open_views, config, self.method.name, self.directory.path, self.quiet, done)
            self.loggers = [] if self.log is None else [self.log, *(views or ())]
        self.state = None  # it has served: the engine holds all of it now

    def coming(self, stop_after: int | None = None) -> list[Episode]:
        """The episodes that are not learned yet."""
        return self.episodes[self.position.task : stop_after]

    def advance(self, episode: Episode, accept: Accept | None = None) -> None:
        """Learn from one episode: its steps, its end, its weights, its evaluation. `accept`: see `Engine.end`."""
        settings, every = self.config.engine, self.config.evaluation.evaluate_every
        if accept is not None and self.position.step > 0 and self.engine.before is None:
            raise UserError("this episode was begun without --only-if-better: finish it without, too.")
        self.engine.guarded = accept is not None
        self.meter.resume()
        for event in self._events(episode, every, accept):
            match event:
                case Stepped(step, result, at_point):
                    self.meter.add(result)
                    self.position.step, self.position.stage = step, "curve" if at_point else "train"
                    if step % settings.log_every == 0 or step == episode.steps:
                        self._log_steps(episode)
                    if settings.track_overfitting and episode.task > 0 and step % settings.track_overfitting == 0:
                        self._track(episode)
                    self._save_if_due(episode)
                case Point(step):
                    self._log_steps(episode)
                    self._enter("curve")
                    self._evaluate(curve_name(episode.task, step), episode)
                    self.position.stage = "train"
                    self.meter.resume()
                case Trained():
                    self._enter("end")
                case Ended():
                    self._enter("evaluate")
        processes.on_first(self._write_weights, self.directory.weights(episode.task), episode.task)
        self._evaluate(task_name(episode.task), episode)
        self.engine.before = None
        self.position.task, self.position.step = episode.task + 1, 0
        self._enter("train")

    def _events(self, episode: Episode, every: int | None, accept: Accept | None) -> Iterator[Event]:
        with explain_out_of_memory(self.engine, self.episodes):
            yield from learn(self.engine, episode, self.position, every, self.interrupt.at_once, accept)

    def finish(self) -> RunMetrics | None:
        """metrics.json, a function of the evaluations on disk; None while episodes are left."""
        for what, tasks in self.collapses.items():
            if len(tasks) > 1 and self.directory.owner and self.config.preset != "smoke":
                warn(f"the {what} collapsed in {len(tasks)} tasks, the first of them task {tasks[0] + 1}.")
        return None if self.coming() else processes.on_first(self._write_metrics)

    def close(self) -> None:
        for logger in self.loggers:
            logger.close()

    # What happens around the steps

    def _log_steps(self, episode: Episode) -> None:
        record = self.meter.read(episode, self.position.step)
        self.position.bad_steps = self.meter.bad_steps
        if record and is_collapsed(record["spread"]):
            self._collapsed(
                "embeddings have",
                episode,
                f"the embeddings have collapsed in task {episode.task + 1} at step {self.position.step}: their spread "
                f"is {record['spread']:.3f}, near 1 is healthy. The encoder maps all images to almost the same point. "
                f"Try a lower --learning-rate, a larger --batch-size or another --objective.",
            )
        rate = self.engine.optimiser.param_groups[0]["lr"]
        self._emit(record and record | {"learning_rate": rate, "memory": self.engine.memory.filled})

    def _collapsed(self, what: str, episode: Episode, message: str) -> None:
        """Said at the first collapse of its kind; `finish` says in how many tasks it happened."""
        tasks = self.collapses.setdefault(what, [])
        if not tasks and self.directory.owner and self.config.preset != "smoke":
            warn(message)
        if episode.task not in tasks[-1:]:
            tasks.append(episode.task)

    def _track(self, episode: Episode) -> None:
        record = track_overfitting(self.engine, episode, self.position.step)
        self._emit(record and record | {"total_step": self.meter.total(episode, self.position.step)})

    def _emit(self, record: dict[str, Any] | None) -> None:
        if record is not None:
            for logger in self.loggers:
                logger.log(record)

    def _save_if_due(self, episode: Episode) -> None:
        """At intervals, and when a signal asks to stop. All processes decide together."""
        due = time.monotonic() - self.saved > 60 * self.config.engine.save_every
        stop, due = processes.agree(self.interrupt.asked, due)
        if stop or due:
            self._log_steps(episode)
            self._save()
        if stop:
            raise Stopped(f"stopped in task {self.position.task + 1} at step {self.position.step}; the state is saved.")

    def _enter(self, stage: Stage) -> None:
        """Enter the next stage and save: from here on, a kill loses no more than that stage."""
        self.position.stage = stage
        self._save()
        if any(processes.agree(self.interrupt.asked)):
            task = min(self.position.task + 1, len(self.episodes))
            raise Stopped(f"stopped in task {task}; the state is saved.")

    def _save(self) -> None:
        self.position.seconds = self.meter.seconds
        processes.on_first(self._write_state)
        self.saved = time.monotonic()

    # Files

    def _write_state(self) -> None:
        self.directory.require_present()
        engine = self.engine
        state = State(
            engine=engine.state(),
            position=self.position,
            log=self.log.position if self.log else 0,
            settings=settings(self.config),
            episodes=[episode.content for episode in self.episodes],
            planned=engine.planned,
            mean=self.benchmark.mean,
            std=self.benchmark.std,
            architecture=engine.architecture,
        )
        save_state(self.directory.checkpoints, state)

    def _restore(self, state: State) -> None:
        """Continue from a state, if it belongs to this run and these images."""
        place, contents = self.directory.path, [episode.content for episode in self.episodes]
        other_run = differences(state.settings, settings(self.config))
        if other_run:
            raise UserError(
                f"the checkpoint in {self.directory.checkpoints} belongs to another run: {other_run}. Put the right "
                "one back, or remove latest.pt and previous.pt to start again."
            )
        more = [content["name"] for content in state.episodes[len(contents) :]]
        if more and state.episodes[: len(contents)] == contents:
            raise UserError(f"{place} has more tasks since: {', '.join(more)}; {next_episode(place, state)}.")
        grows = self.benchmark.learned > 0
        other_images = content_differences(state.episodes, contents[: len(state.episodes)] if grows else contents)
        if other_images:
            raise UserError(
                f"the images of {self.benchmark.name} have changed since this run was saved: "
                f"{'; '.join(other_images[:4])}. Restore them to continue, or start a new run with another --out."
            )
        try:
            if state.unfinished is not None and state.position.step > self.episodes[state.position.task].steps:
                raise ValueError("its task has fewer steps")
            self.engine.restore(state.engine)
        except ValueError as error:
            raise UserError(f"the checkpoint in {self.directory.checkpoints} does not fit this run: {error}.") from None

    def _write_weights(self, path: Path, task: int | None = None) -> None:
        """f, g and h after an episode, or at the start."""
        metadata = {
            "encoder": to_dict(self.config.encoder),
            "architecture": self.engine.architecture,
            "projector": to_dict(self.config.projector),
            "mean": self.benchmark.mean,
            "std": self.benchmark.std,
            "image_size": self.benchmark.train.images.shape[1],
            "task": task,
        }
        self.directory.require_present()
        save_tensors(path, self.engine.task_tensors(), metadata)

    def _evaluate(self, name: str, episode: Episode) -> None:
        """Every number of the encoder as it is now, to disk and to the log."""
        step = self.position.step
        where = {"task": episode.task, "step": step, "total_step": self.meter.total(episode, step)}
        with self.interrupt.at_once():
            numbers = self._evaluate_encoder(self.engine.networks.encoder, name, where)
        if numbers is None:
            return
        message = collapsed(numbers.health)
        if message:
            self._collapsed("representation has", episode, message)
        shown = where | {"task": episode.task + 1, "tasks": len(self.episodes)}
        self._emit({"event": "evaluation", **shown, "shown": headline(numbers, len(self.benchmark.bank))})

    def _evaluate_encoder(self, encoder: nn.Module, name: str, where: dict[str, int] | None = None) -> Scores | None:
        """Of a point between two steps (curve-...), the numbers alone are kept."""
        protocol, folder = self.config.evaluation, self.directory.evaluation
        evaluation = evaluate_encoder(encoder, self.benchmark, protocol, self.device)
        if evaluation is None:
            return None
        self.directory.require_present()
        if name.startswith(CURVE):
            write_json(folder / f"{name}.json", (where or {}) | evaluation.numbers.plain())
        else:
            evaluation.save(folder, name, protocol.keep_features)
        return evaluation.numbers

    def _repair_evaluations(self) -> None:
        """Compute evaluations of the start and of learned episodes that are missing or damaged again, from their
        weights."""
        directory, needed = self.directory, self._evaluated(range(self.position.task))
        gone = {START, *map(task_name, range(self.benchmark.learned))} if self.benchmark.learned else set()
        alone = {name for name, weights in needed.items() if name in gone or not weights.exists()}
        broken = [name for name in needed if self._broken(name, numbers_only=name in alone)]
        for name in processes.broadcast(broken):
            path, weights = directory.evaluation / f"{name}.json", needed[name]
            if name in gone:
                if directory.owner:
                    warn(f"{path} is damaged or missing, and its images are gone: metrics.json will not have it.")
                continue
            tensors = processes.broadcast(processes.on_first(self._weights_for, path, weights))
            assert tensors is not None
            encoder = copy.deepcopy(self.engine.networks.encoder)
            encoder.load_state_dict(tensors)
            self._evaluate_encoder(encoder, name)

    def _evaluated(self, learned: range) -> dict[str, Path]:
        """Name -> weights of what is evaluated: the start, if the run has one, and the learned episodes."""
        directory = self.directory
        start = {START: directory.start_weights} if directory.start_weights.exists() else {}
        return start | {task_name(task): directory.weights(task) for task in learned}

    def _broken(self, name: str, numbers_only: bool = False) -> bool:
        """Whether an evaluation is missing or damaged: its numbers or its arrays."""
        folder = self.directory.evaluation
        try:
            read_record(folder / f"{name}.json", Scores)
            if not numbers_only:
                load_tensors(folder / f"{name}.safetensors")
        except UserError:
            return True
        return False

    def _weights_for(self, evaluation: Path, weights: Path) -> dict[str, Tensor]:
        """The encoder from which a damaged evaluation is computed again."""
        try:
            tensors = encoder_weights(load_tensors(weights)[0])
        except UserError as error:
            raise UserError(
                f"{evaluation} is damaged or missing, and cannot be computed again: {error} Restore one of them from a "
                f"copy, or remove {self.directory.path} to start again."
            ) from None
        warn(f"{evaluation} is damaged or missing; it is computed again from {weights}.")
        return tensors

    def _write_metrics(self) -> RunMetrics:
        config, benchmark, directory = self.config, self.benchmark, self.directory
        tasks = [_read(directory.scores(episode.task)) for episode in self.episodes]
        curve = {path: _read(path, CurveScores) for path in directory.curve_scores()}
        for path in (path for path, scores in curve.items() if scores is None):
            warn(f"{path} is damaged, and the encoder between two steps is gone: metrics.json will not have it.")
        start, last = _read(directory.start_scores), task_name(self.episodes[-1].task)
        untrained = self.baseline and self.baseline.protocols
        if start is not None:
            untrained = {name: one.accuracy for name, one in start.protocols.items()}
        metrics = build_metrics(
            self.method.name,
            benchmark,
            config.seed,
            [scores for scores in tasks if scores is not None],
            untrained,
            fingerprint(benchmark, config.evaluation, config.encoder.description),
            self.method.stream == "continual",
            [scores for scores in curve.values() if scores is not None],
            config.preset,
            start,
            {} if start is None else against_start(directory.evaluation, last, benchmark, config.evaluation),
        )
        directory.require_present()
        if _read(directory.metrics, RunMetrics) != metrics:
            write_record(directory.metrics, metrics)
        if metrics.harm:
            warn(metrics.harm)
        return metrics

    def _normalised(self, benchmark: Benchmark) -> Benchmark:
        """With the channel statistics that the encoder expects, if that is known; a run that is continued keeps its
        own."""
        if self.state is not None:
            return replace(benchmark, mean=self.state.mean, std=self.state.std)
        known = expected_normalisation(self.config)
        return benchmark if known is None else replace(benchmark, mean=known[0], std=known[1])


def _read(path: Path, kind: type[Any] = Scores) -> Any:
    """A record of the run directory; None if it is missing or damaged."""
    try:
        return read_record(path, kind)
    except UserError:
        return None


def against_start(
    folder: Path, last: str, benchmark: Benchmark, protocol: ProtocolConfig
) -> dict[str, tuple[Comparison | None, list[Comparison | None]]]:
    """Protocol -> (overall, by task): the predictions of the last evaluation in a folder against those of the start."""
    files = [folder / f"{name}.safetensors" for name in (START, last)]
    if not benchmark.labelled or not all(file.exists() for file in files):
        return {}
    before, after = (load_tensors(file)[0] for file in files)
    return {name: compare_arrays(before, after, name, benchmark.task_count) for name in protocol.protocols}


def next_episode(out: Path, state: State | None) -> str:
    """The command that continues a run which grows by one folder at a time."""
    command = f"continue with osiris observe {out} FOLDER"
    if state is None or state.unfinished is None:
        return command
    return f"{command}, where FOLDER holds the images of {state.unfinished['name']}"


def expected_normalisation(config: Config) -> tuple[Channels, Channels] | None:
    """(mean, std) as --normalise says, else as the encoder or the file of --init says; None if none of them does."""
    text, encoder, init = config.encoder.normalise, config.encoder.encoder, config.engine.init
    if text is not None:
        known = {"imagenet": (IMAGENET_MEAN, IMAGENET_STD), "half": ((0.5,) * 3, (0.5,) * 3)}
        try:
            mean, std = known[text] if text in known else (map(float, part.split(",")) for part in text.split("/"))
            return statistics(list(mean), list(std))
        except ValueError:
            raise UserError(
                f"--normalise {text}: use imagenet, half, or R,G,B/R,G,B (mean and deviation, which is positive)."
            ) from None
    if init is not None:
        metadata = load_tensors(init)[1]
        if metadata.get("mean") and metadata.get("std"):
            return statistics(metadata["mean"], metadata["std"])
    return None if encoder is None else normalisation(encoder)


def baseline_of(config: Config, benchmark: Benchmark, device: torch.device) -> Baseline | None:
    """R_i of untrained encoders, without zero-initialised last norms, which would make every block the identity. Those
    of the user's own are not cached: a name does not tell whether the code has changed."""
    identity = fingerprint(benchmark, config.evaluation, config.encoder.description).hash
    images = first_task_images(benchmark, config.encoder)
    return untrained_baseline(
        lambda seed: build_encoder(config.encoder, seed, zero_init_last=False, images=images),
        benchmark,
        config.evaluation,
        cache_directory() / "baselines" if config.encoder.encoder is None else None,
        f"{identity}-threads{torch.get_num_threads()}",
        device,
    )
