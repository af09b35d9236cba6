"""A run is a list of episodes that grows.

    open -> for each coming episode: steps, end of the episode, weights, evaluation -> metrics

`osiris train` opens a run and advances it over the episodes of a benchmark, `observe` over one more folder of images;
resuming is advancing from where the run stands. Every stage is saved before the next one starts, and every random draw
is keyed, so that a run killed at any moment continues to the same bits.
"""

from __future__ import annotations

import copy
import shlex
import sys
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
from torch import nn

from osiris import processes
from osiris.config import Config, to_dict
from osiris.console import notice, warn
from osiris.data.benchmark import Benchmark, content_differences
from osiris.data.catalogue import is_known
from osiris.data.load import as_stream, load_benchmark
from osiris.devices import faster_precision, open_device, prepare_host
from osiris.errors import Diverged, Stopped, UserError
from osiris.evaluation.scores import Budget
from osiris.files import save_tensors
from osiris.framework.composition import resolve
from osiris.framework.methods import Method
from osiris.own import composition_of
from osiris.presets import MEANINGLESS, own_data
from osiris.runs.directory import EpisodeFolder, RunDirectory, differences, folder_name, read_config, settings
from osiris.runs.progress import FORMAT, Position, Progress, Stage, known_episodes, read_progress, remove_unnamed
from osiris.runs.records import RunMetrics
from osiris.runs.state import State, advice, load_state, save_state, writing
from osiris.runs.views import write_metrics
from osiris.training.build import baseline_of, expected_normalisation
from osiris.training.engine import Accept, Ended, Engine, Event, Point, Stepped, Trained
from osiris.training.estimate import check_memory, explain_out_of_memory
from osiris.training.interrupt import Interrupt
from osiris.training.log import Log
from osiris.training.own import refuse_another_method
from osiris.training.results import Results, finished_metrics
from osiris.training.schedule import Episode, check_sizes, plan_episodes
from osiris.training.summing import SummingEngine
from osiris.training.trained_readout import TrainedReadout


@dataclass(frozen=True)
class Opening:
    """Which run to open, and how."""

    config: Config
    out: Path
    quiet: bool = False
    """Do not display progress."""
    new_source: bool = False
    """Continue although the source of the user's own terms has changed."""
    again: str | None = None
    """How to continue it after an interruption; default: `osiris train --resume`."""
    back: str | None = None
    """The command that takes an episode back."""
    plain: bool = False
    """Show no more than what is learned from, and the time left."""


def train(opening: Opening, benchmark: Benchmark | None = None, stop_after: int | None = None) -> RunMetrics | None:
    """Advance a run over the episodes of its benchmark; returns its metrics.

    `benchmark` replaces the one that the config names. `stop_after`: learn at most so many episodes; the others are
    left to a later call, and there are no metrics before that. With several processes, the first one writes, prints and
    returns the metrics; the others return None.
    """
    with opened(opening) as run:
        metrics = processes.on_first(finished_metrics, run.directory, run.known)
        if any(processes.agree(metrics is not None)):
            if metrics is not None:
                notice(f"{opening.out} is already finished. Remove the directory to run it again.")
            return metrics
        if benchmark is None and not run.config.data.benchmark:
            raise UserError(f"{opening.out} learns from one folder at a time: {next_episode(opening.out, run.known)}.")
        name = run.config.data.benchmark
        if benchmark is None and run.directory.config.exists() and not (is_known(name) or own_data(name)):
            raise UserError(
                f"{opening.out} learns from images that were given in Python (benchmark_from), which only your program "
                "has: call osiris.train again with the same arguments to continue."
            )
        run.prepare(
            lambda: (
                as_stream(benchmark, run.config.data)
                if benchmark
                else processes.in_turn(lambda: load_benchmark(run.config.data))
            )
        )
        run.start()
        for episode in run.coming(stop_after):
            run.advance(episode)
        return run.finish()


@contextmanager
def opened(opening: Opening) -> Iterator[Training]:
    """A run with its directory locked and its state read. An interruption or failure inside becomes an error whose
    message says how to continue."""
    with Interrupt() as interrupt, processes.started(), ExitStack() as stack:
        first, config, run = processes.rank() == 0, opening.config, None
        directory = RunDirectory(opening.out, first)
        stack.enter_context(writing(opening.out))
        try:
            with interrupt.at_once():
                with processes.together():
                    config.check()
                    method = named_method(config, directory)
                    stack.enter_context(directory)
                    config = directory.claim(config) if first else config
                    refuse_another_method(directory, config, method, opening.new_source)
                # The first process reads for all: they agree on one state, and need no common file system.
                state = processes.broadcast(processes.on_first(load_state, directory))
                if first and state is None and directory.has_learned and not directory.metrics.exists():
                    warn(f"{directory.path} has no checkpoint, so the run starts again from the beginning.")
                threads = processes.broadcast(config.engine.threads)  # those of the run directory
                config = replace(config, engine=replace(config.engine, threads=threads))
            run = Training(config, method, directory, interrupt, state, opening)
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
                if opening.back and run is not None and run.position.task > 0:
                    way_on = "Nothing of this episode was saved, so the state is that before it."
                    if run.way_back:
                        way_on = f"To leave this episode: {opening.back}"
            elif directory.config.exists():
                way_on = opening.again or f"Continue with: osiris train --resume {shlex.quote(str(opening.out))}"
                if opening.back and run is not None and run.way_back:
                    way_on += f" To go back instead: {opening.back}"
            else:
                way_on = "Nothing was saved yet: give the same command again."
            raise type(end)(f"{end} {way_on}") from None


def named_method(config: Config, directory: RunDirectory) -> Method:
    """The method that a config names."""
    try:
        method = resolve(config.method)
    except UserError:
        if directory.config.exists() and read_config(directory.path).method == config.method:
            raise UserError(
                f"{directory.path} learns by {config.method.method!r}, a method of your own: name it again, --method "
                "module:name, or call osiris.train again with the same arguments."
            ) from None
        raise
    config.check_names()
    return method


class Training:
    """An open run: where it stands, and how it advances."""

    benchmark: Benchmark
    engine: Engine | SummingEngine
    episodes: list[Episode]
    """The episodes that are learned, and those to come."""
    log: Log
    results: Results
    readout: TrainedReadout | None
    """Of a network that is trained."""
    known: Progress | None
    """progress.json; only the first process knows it."""
    way_back: bool
    """Whether the episode that would be taken back is the one that is learned, not an earlier one."""

    def __init__(
        self,
        config: Config,
        method: Method,
        directory: RunDirectory,
        interrupt: Interrupt,
        state: State | None,
        opening: Opening,
    ) -> None:
        self.config, self.method, self.directory, self.interrupt = config, method, directory, interrupt
        self.state, self.quiet, self.grows = state, opening.quiet, opening.back is not None
        self.plain = opening.plain
        self.known = processes.on_first(read_progress, directory) if state is None else state.progress
        self.position = Position() if state is None else copy.deepcopy(state.position)
        self.way_back = state is None or state.progress.coming
        self.saved = time.monotonic()
        self.closing = ExitStack()

    def prepare(self, load: Callable[[], Benchmark]) -> None:
        """Load the images, build the networks, and go to where the run stands. Nothing is written."""
        config, state = self.config, self.state
        with self.interrupt.at_once():
            with processes.together():
                self.device = open_device(config.engine.device, config.engine.tf32)
                prepare_host(config.engine, self.device)
            self.benchmark = benchmark = self._normalised(load())
            self.results = Results(config, self.directory, benchmark, self.device)
            with processes.together():
                self.episodes = plan_episodes(benchmark, self.method, config.learning)
                coming = [episode for episode in self.episodes if episode.images is not None]
                self.notices = [*benchmark.notices, *check_sizes(coming, self.method, config.learning)]
                self.notices += faster_precision(config.engine, self.device)
                known = None if state is None else state.progress
                architecture, planned = (None, None) if known is None else (known.architecture, known.planned)
                kind = Engine if self.method.sums is None else SummingEngine
                self.engine = kind(config, self.method, benchmark, self.device, architecture, planned)
                check_memory(self.engine, coming)
                self.readout = None
                if isinstance(self.engine, Engine) and config.encoder.readout not in (None, "start"):
                    self.readout = TrainedReadout(config, self.engine, benchmark)
                if state is not None:
                    self._restore(state)

    def start(self) -> None:
        """Write what belongs to the start of a run, and open its log."""
        config, state = self.config, self.state
        with self.interrupt.at_once():
            with processes.together():
                if self.directory.owner:
                    if state is not None and state.progress.coming:
                        where = f"task {self.position.task + 1} at step {self.position.step}"
                        notice(f"continuing {self.directory.path} in {where}")
                    notice(*self.notices)
                    if self.coming() and config.preset == "smoke":
                        notice(MEANINGLESS)
                    composition, world = composition_of(config, self.method), processes.world_size()
                    remove_unnamed(self.directory, None if state is None else read_progress(self.directory))
                    if state is None:
                        self.known = Progress(format=FORMAT, counter=0 if self.known is None else self.known.counter)
                    self.directory.record(config, composition, str(self.device), world)
            if not config.pretrained:  # cached for each benchmark and encoder
                baseline = processes.on_first(baseline_of, config, self.benchmark, self.device)
                self.results = replace(self.results, baseline=baseline)
            if config.pretrained and state is None:
                processes.on_first(self._write_weights, self.directory.start)
                self.results.evaluate(self.engine.networks.encoder, self.directory.start)
            if self.grows and state is not None and self.known is not None:
                processes.on_first(write_metrics, self.directory, self.known)  # a kill may have come before it
            self.results.repair(None if state is None else self.known, self.engine.networks.encoder)
        self.log = Log(config, self.directory, self.episodes, self.position)
        self.closing.callback(self.log.close)
        if self.coming():
            length = 0 if state is None else state.progress.saved[0].log
            self.log.open(self.method.name, length, self.position, self.quiet, self.plain)
        self.state = None  # it has served: the engine holds all of it now

    def coming(self, stop_after: int | None = None) -> list[Episode]:
        """The episodes that are not learned yet."""
        return self.episodes[self.position.task : stop_after]

    def advance(self, episode: Episode, accept: Accept | None = None) -> None:
        """Learn from one episode: its steps, its end, its weights, its evaluation. `accept`: see `Engine.end`."""
        settings, points = self.config.engine, self._points(episode)
        if accept is not None and self.position.step > 0 and self.engine.before is None:
            raise UserError("this episode was begun without --only-if-better: finish it without it.")
        self.engine.guarded = accept is not None
        self.log.meter.resume()
        for event in self._events(episode, points, accept):
            match event:
                case Stepped(step, result, at_point):
                    self.log.meter.add(result)
                    self.position.step, self.position.stage = step, "curve" if at_point else "train"
                    if step % settings.log_every == 0 or step == episode.steps:
                        self._log_steps(episode)
                    if (
                        isinstance(self.engine, Engine)
                        and episode.task
                        and at_multiple(step, settings.track_overfitting)
                    ):
                        self.log.overfitting(self.engine, episode, step)
                    self._save_if_due(episode)
                case Point(step):
                    self._log_steps(episode)
                    self._enter("curve")
                    self._evaluate(episode, self._final(episode), at_point=True)
                    self.position.stage = "train"
                    self.log.meter.resume()
                case Trained():
                    self._enter("end")
                case Ended():
                    self._enter("evaluate")
        encoder = self._final(episode)
        processes.on_first(self._write_weights, self.folder(episode), episode.task)
        self._evaluate(episode, encoder)
        self.engine.before = None
        self.position.task, self.position.step = episode.task + 1, 0
        self._enter("train")

    def _points(self, episode: Episode) -> Collection[int]:
        """The steps after which the encoder is evaluated before the end of an episode."""
        every = self.config.evaluation.evaluate_every
        if episode.past is not None and not every:
            return episode.points(self.config.evaluation.points)
        return range(every, episode.steps, every) if every else ()

    def _events(self, episode: Episode, points: Collection[int], accept: Accept | None) -> Iterator[Event]:
        with explain_out_of_memory(self.engine, self.episodes):
            yield from self.engine.learn(episode, self.position, points, self.interrupt.at_once, accept)

    def _final(self, episode: Episode) -> nn.Module:
        """The encoder that is evaluated and written."""
        if self.readout is None:
            return self.engine.networks.encoder
        with self.interrupt.at_once():
            return self.readout.made_of(episode, self.engine.memory)

    def finish(self) -> RunMetrics | None:
        """metrics.json, a function of the evaluations on disk; None while episodes are left."""
        self.log.summarise_collapses()
        if self.coming():
            return None
        return processes.on_first(self._write_metrics)

    def close(self) -> None:
        self.closing.close()

    # What happens around the steps

    def _log_steps(self, episode: Episode) -> None:
        self.log.steps(self.engine, episode, self.position.step)
        self.position.bad_steps = self.log.meter.bad_steps

    def _save_if_due(self, episode: Episode) -> None:
        """Save at intervals, and when a signal asks to stop. All processes decide together."""
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
        self.position.seconds = self.log.meter.seconds
        processes.on_first(self._write_state)
        self.way_back = True
        self.saved = time.monotonic()

    # Files

    def folder(self, episode: Episode) -> EpisodeFolder:
        return self.directory.episode(folder_name(episode.task, episode.content["name"]))

    def _write_state(self) -> None:
        self.directory.require_present()
        assert self.known is not None
        engine = self.engine
        progress = msgspec.structs.replace(
            self.known,
            episodes=known_episodes([episode.content for episode in self.episodes]),
            start=self.config.pretrained,
            settings=settings(self.config),
            planned=engine.planned,
            mean=self.benchmark.mean,
            std=self.benchmark.std,
            architecture=engine.architecture,
        )
        self.known = save_state(
            self.directory, progress, engine.state(), self.position, self.log.length, way_back=self.grows
        )

    def _write_metrics(self) -> RunMetrics | None:
        assert self.known is not None
        metrics = write_metrics(self.directory, self.known)
        if metrics is not None and metrics.harm:
            warn(metrics.harm)
        return metrics

    def _restore(self, state: State) -> None:
        """Continue from a state, if it belongs to this run and these images."""
        place, contents = self.directory.path, [episode.content for episode in self.episodes]
        known = state.progress
        other_run = differences(known.settings, settings(self.config))
        if other_run:
            raise UserError(
                f"the checkpoint in {self.directory.episodes} belongs to another run: {other_run}. Put the right "
                "one back, or start again in another directory."
            )
        more = [content["name"] for content in known.contents[len(contents) :]]
        if more and known.contents[: len(contents)] == contents:
            raise UserError(f"{place} has more tasks since: {', '.join(more)}; {next_episode(place, known)}.")
        grows = self.benchmark.learned > 0
        other_images = content_differences(known.contents, contents[: len(known.contents)] if grows else contents)
        if other_images:
            raise UserError(
                f"the images of {self.benchmark.name} have changed since this run was saved: "
                f"{'; '.join(other_images[:4])}. Restore them to continue, or start a new run with another --out."
            )
        try:
            if known.coming and state.position.step > self.episodes[state.position.task].steps:
                raise ValueError("its task has fewer steps")
            self.engine.restore(state.engine)
        except ValueError as error:
            raise UserError(f"the checkpoint in {self.directory.episodes} does not fit this run: {error}.") from None

    def _write_weights(self, folder: EpisodeFolder, task: int | None = None) -> None:
        """f, g and h after an episode, or at the start."""
        tensors, architecture = self.engine.task_tensors(), self.engine.architecture
        if self.readout is not None and task is not None:
            encoder = self.readout.summed.encoder.state_dict()
            tensors = {name: value for name, value in tensors.items() if not name.startswith("encoder.")}
            tensors |= {f"encoder.{name}": value for name, value in encoder.items()}
            architecture = self.readout.architecture
        metadata = {
            "encoder": to_dict(self.config.encoder),
            "architecture": architecture,
            "projector": to_dict(self.config.projector),
            "mean": self.benchmark.mean,
            "std": self.benchmark.std,
            "image_size": self.benchmark.train.images.shape[1],
            "task": task,
        }
        self.directory.require_present()
        save_tensors(folder.weights, tensors, metadata)

    def _evaluate(self, episode: Episode, encoder: nn.Module, at_point: bool = False) -> None:
        """Every number of the encoder as it is now, to disk and to the log."""
        step = self.position.step
        where = {"task": episode.task, "step": step, "total_step": self.log.meter.total(episode, step)}
        with self.interrupt.at_once():
            folder, budget = self.folder(episode), self._budget(episode, step)
            if at_point:
                numbers = self.results.evaluate_point(encoder, folder, where, budget)
            else:
                numbers = self.results.evaluate(encoder, folder, budget)
        if numbers is not None:
            self.log.evaluation(episode, where, numbers, len(self.benchmark.bank))

    def _budget(self, episode: Episode, step: int) -> Budget | None:
        """What a stream has cost so far."""
        if episode.past is None:
            return None
        before = len([point for point in self._points(episode) if point <= step])
        test = 0 if self.benchmark.test is None else len(self.benchmark.test)
        each = len(self.benchmark.bank) + test
        return self.engine.budget(episode, step, each * (before + (step == episode.steps)))

    def _normalised(self, benchmark: Benchmark) -> Benchmark:
        """The benchmark with the channel statistics that the encoder expects, if they are known. A continued run keeps
        its own."""
        if self.state is not None:
            return replace(benchmark, mean=self.state.progress.mean, std=self.state.progress.std)
        known = expected_normalisation(self.config)
        return benchmark if known is None else replace(benchmark, mean=known[0], std=known[1])


def at_multiple(step: int, every: int | None) -> bool:
    return every is not None and step % every == 0


def next_episode(out: Path, known: Progress | None) -> str:
    """The command that continues a run which grows by one folder at a time."""
    command = f"continue with osiris observe {shlex.quote(str(out))} FOLDER"
    if known is None or known.unfinished is None:
        return command
    return f"{command}, where FOLDER holds the images of {known.unfinished['name']}"
