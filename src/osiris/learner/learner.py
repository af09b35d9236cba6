"""Unlabelled images keep arriving: a run that is opened again with one more task each time.

    learner = osiris.Learner("state", method="osiris-d")
    learner.observe("photos/2026-11")
    features = learner.embed("new.jpg")

The state is a run directory. It holds the images of the memory, and never needs earlier images again.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from stat import S_ISREG
from typing import Any, TypedDict

import torch
from markupsafe import Markup

from osiris import processes
from osiris.config import Config
from osiris.console import duration, notice, warn
from osiris.data.images import UndecodableImage, decode_all
from osiris.data.load import episode_source
from osiris.devices import open_device
from osiris.errors import UserError
from osiris.evaluation.health import fixed_subset
from osiris.evaluation.reference import Reference, labelled_files
from osiris.evaluation.scores import Health
from osiris.files import cache_directory, load_metadata, save_tensors
from osiris.framework.config import BY_SUMS
from osiris.framework.methods import Method
from osiris.index.status import IndexStatus
from osiris.invocation import recorded
from osiris.learner.collection import Collection
from osiris.learner.episodes import Learned, check_folder, episode_size, next_benchmark
from osiris.learner.observations import MOST_IMAGES, NEEDS_REFERENCE, Guard, Readouts, measure, open_reference, verdict
from osiris.learner.sums import by_sums, forget_images, readouts_of, summed_of
from osiris.learner.undo import go_back, nothing_left_if_refused
from osiris.models.external import EncoderSource, encoder_name
from osiris.own import named
from osiris.presets import configure, describe
from osiris.runs.directory import RunDirectory, differences, read_config, settings
from osiris.runs.progress import Progress, consistent, episode_folder, read_progress, remove_unnamed
from osiris.runs.records import Observations, RunMetrics
from osiris.runs.run import Run, open_run
from osiris.runs.state import State, load_state, rewrite_states
from osiris.runs.views import current_metrics, observations_of
from osiris.training.estimate import estimate_embedding, estimate_seconds
from osiris.training.run import Opening, Training, opened
from osiris.training.schedule import Episode
from osiris.training.summing import SummingEngine


class Status(TypedDict):
    """What `osiris status` prints."""

    episodes: list[tuple[str, int]]
    """(name, images) of each episode that was begun, or comes next, in order."""
    unfinished: str | None
    """The name of an episode that was interrupted."""
    planned: int
    """Episodes that the run will have; more may follow."""
    way_on: str
    """How to finish it."""
    memory: list[int]
    """Images in the memory by episode."""
    memory_size: int
    health: Health | None
    """Of the last finished episode."""
    observations: Observations
    """What each episode did to the features."""
    index: IndexStatus | None
    bytes: int
    """Size of the state on disk."""


class Learner(Collection):
    """An encoder that learns from one episode of unlabelled images after another.

    Follows the conventions of scikit-learn: `partial_fit` is `observe`, `transform` is `embed`; works in a `Pipeline`.
    """

    def __init__(
        self,
        path: str | Path | None = None,
        method: str | Method | None = None,
        preset: str | None = None,
        seed: int | None = None,
        encoder: EncoderSource | None = None,
        **options: Any,
    ) -> None:
        """Open the state in `path`, or create it with the first episode.

        Args:
            path: The state: a directory made by an earlier Learner or by `osiris train`, or a new one. Without it, the
                state is temporary and goes with this object.
            method: A name, `module:name`, or a composition of terms. Default: osiris-d.
            preset: Where the defaults of all options come from (default: fast).
            seed: Changes initialisation, augmentation and memory (default: 0).
            encoder: As in `osiris.train`: `hf:NAME`, `timm:NAME`, a module, or a function that builds one. A state with
                an encoder of your own needs it again each time.
            **options: Every option of `osiris train`, with underscores: `epochs=20`, `memory_size=200`.

        A state that exists has its own settings; arguments that contradict them are refused by `observe`.
        """
        super().__init__()
        self.path, self.method, self.preset, self.seed = path, method, preset, seed
        self.encoder, self.options = encoder, options

    @cached_property
    def _encoder_name(self) -> str | None:
        """A module is copied when it gets its name."""
        return None if self.encoder is None else encoder_name(self.encoder)

    @property
    def config(self) -> Config:
        """That of the state, or of the preset, with the options of this learner."""
        return self._configure()

    def _configure(self, images: Any = None) -> Config:
        """`images`: the first episode, whose size decides about the memory and the epochs of a new state."""
        given = {"method": self.method, "seed": self.seed}
        options = {name: value for name, value in given.items() if value is not None} | self.options
        if self._files.config.exists():
            config, name = read_config(self.folder), self._encoder_name
            return configure(None, self.preset, name, named(options), base=config)
        return configure("", self.preset or "fast", self._encoder_name, named(options), episode_size(images))

    @recorded("osiris.Learner.observe")
    def observe(
        self,
        images: Any,
        name: str | None = None,
        quiet: bool = True,
        keep_tasks: int | None = None,
        reference: str | Path | None = None,
        only_if_better: bool = False,
        new_reference: bool = False,
        new_source: bool = False,
        verbose: bool = True,
    ) -> Learner:
        """Learn from one episode.

        To continue an interrupted call, repeat it. Images that were learned under the same name before are not learned
        again.

        Args:
            images: A folder, a list of files, an array, a torch or Hugging Face data set.
            name: Of the episode. Default: that of the folder, or a number.
            quiet: Do not display progress.
            keep_tasks: Keep the weights of only this many latest episodes. Default: all.
            reference: A folder of labelled images, CLASS/image.jpg: KNN on them after every episode, also in later
                calls. They are not learned from.
            only_if_better: Keep the encoder from before the episode if the labelled images get significantly worse with
                the new one (the memory takes the images all the same). Their accuracy is then not an unbiased test
                any more.
            new_reference: The labelled images differ from those of earlier calls, and replace them.
            new_source: Continue although the source of your own terms or objective has changed.
            verbose: With progress: also the terms of the loss, the speed and the health of the features.
        """
        labelled, new = None if reference is None else Path(reference), not self._files.config.exists()
        check_folder(self.folder, images, name)
        self._check_reference(images, labelled, only_if_better)
        self._refuse_lost_checkpoint()
        config = self._configure(images)
        if not new:
            self._refuse_other_settings(config)
        if config.engine.track_overfitting is not None:
            raise UserError("track_overfitting needs the images of all episodes; leave it out.")
        again, back = "Give the same command again.", f"osiris undo {shlex.quote(str(self.folder))}"
        opening = Opening(config, self.folder, quiet, new_source, again, back, plain=not verbose)
        with opened(opening) as run, nothing_left_if_refused(run.directory):
            refuse_what_cannot_grow(run)
            directory, known = run.directory, None if run.state is None else run.state.progress
            try:
                run.prepare(lambda: next_benchmark(known, images, name, config.data))
            except Learned as learned:
                notice(str(learned))
                return self
            with run.interrupt.at_once():
                size = run.benchmark.train.images.shape[-1]
                opened_images = processes.on_first(open_reference, directory, known, labelled, size, new_reference)
                processes.on_first(keep_apart, opened_images, run.coming())
            guard = Guard(run, opened_images) if only_if_better else None
            if new and not quiet:
                processes.on_first(introduce, config)
            run.start()
            if run.coming() and not quiet:
                processes.on_first(announce, run, opened_images, new, verbose)
            for episode in run.coming():
                run.advance(episode, guard)
            run.finish()
            with run.interrupt.at_once():
                readouts = processes.on_first(other_readouts, run) if opened_images and opened_images[0] else None
                at_hand = images_at_hand(run)
                frozen = run.method.sums is not None
                processes.on_first(measure, directory, at_hand, run.known, opened_images, run.device, frozen, readouts)
            if keep_tasks is not None:
                processes.on_first(forget_weights, directory, run.known, keep_tasks)
        return self

    def _check_reference(self, images: Any, labelled: Path | None, needed: bool) -> None:
        """Refuse what can be refused before anything is written. `needed`: a state must have labelled images."""
        if labelled is None:
            if needed and not self._files.config.exists():
                raise UserError(NEEDS_REFERENCE)
            return
        labelled_files(labelled)
        if isinstance(images, str | Path) and Path(images).resolve() == labelled.resolve():
            raise UserError(f"{images} is the folder of --reference: learning from it would spoil the test.")

    def _refuse_lost_checkpoint(self) -> None:
        """Without it, episodes would be learned from the beginning, beside the weights of earlier ones."""
        files, progress = self._files, self._progress
        states = [] if progress is None else [files.episodes / one.file for one in progress.states]
        if (progress is None and files.has_learned) or (states and not any(state.exists() for state in states)):
            gone = states[0] if states else files.progress
            raise UserError(
                f"{self.folder} has learned, but its checkpoint is gone: put {gone} back, or start a new state "
                "elsewhere."
            )

    @property
    def _progress(self) -> Progress | None:
        return read_progress(self._files)

    def _refuse_other_settings(self, config: Config) -> None:
        there, here, way_on = settings(read_config(self.folder)), settings(config), "start a new state elsewhere"
        known = self._progress
        if not self._files.has_learned:
            return  # nothing was saved under them
        if there["data.image_size"] != here["data.image_size"] and known is not None and known.saved:
            size = known.image_size  # the config has None if the first episode decided
            raise UserError(
                f"the images of {self.folder} have {size} x {size} pixels, and new ones are scaled to that: leave out "
                f"--image-size, or {way_on}."
            )
        if changed := differences(there, here):
            raise UserError(f"{self.folder} has other settings: {changed}. Leave out what differs, or {way_on}.")

    def undo(self) -> str:
        """Go back to the state before the last episode, finished or interrupted, once; returns its name."""
        with self._files as directory:
            self._refuse_lost_checkpoint()
            began, progress = directory.config.exists() and not self.config.data.benchmark, self._progress
            if began and (progress is None or not progress.saved):  # nothing was saved yet
                directory.clear()
                return "the first episode"
            if progress is None:
                raise self._nothing()
            return go_back(directory, progress)

    def verdict(self) -> str:
        """What is known about the last episode: whether the encoder got better, and from what to what."""
        return verdict(observations_of(self._files, self._progress))

    def last_verdict(self) -> str:
        """The verdict with the name of its episode, for a terminal."""
        return f"after {self.metrics.task_names[-1]}: {self.verdict()}"

    def _repr_html_(self) -> str:
        """In a notebook: the verdict and what each episode did."""
        if not self._files.metrics.exists():
            return Markup("<p>{}: nothing is learned yet.</p>").format(repr(self))
        text = f"{len(self.metrics.task_names)} episodes; {self.verdict()}"
        return str(Markup("<p><b>{}</b>: {}</p>").format(self.folder.name, text)) + self.run._repr_html_()

    def measure(self, reference: str | Path | None = None, new_reference: bool = False) -> Observations:
        """How each episode moved the features of the memory's images, and KNN on labelled images if there are any.

        `reference`, `new_reference`: see `observe`. Episodes whose weights are still there are measured too.
        """
        with self._files as directory:
            state, device = self._state(), open_device(self.config.engine.device, self.config.engine.tf32)
            folder, images = None if reference is None else Path(reference), state.memory.images
            opened_images = open_reference(directory, state.progress, folder, images.shape[-1], new_reference)
            readouts, frozen = None, by_sums(directory)
            if opened_images[0] is not None and state.progress.finished and frozen:
                last = episode_folder(directory, state.progress, state.progress.finished - 1)
                summed = summed_of(directory, last.weights, state.engine["constants"])
                readouts = readouts_of(summed, summed.from_tensors(state.engine["sums"]["total"]))
            return measure(directory, images, state.progress, opened_images, device, frozen, readouts)

    @property
    def run(self) -> Run:
        """The state as a finished run."""
        self._refuse_unfinished()
        return open_run(self.folder)

    @property
    def metrics(self) -> RunMetrics:
        self._refuse_unfinished()
        return consistent(self._files, lambda progress: current_metrics(self._files, progress))

    def _refuse_unfinished(self) -> None:
        if not self.folder.exists():
            raise UserError(f"{self.folder} does not exist; give the directory of a state or run.")
        if not self._finished(self._progress):
            raise UserError(f"{self.folder} has not finished an episode yet; observe some images first.")

    def _finished(self, progress: Progress | None) -> bool:
        """Whether there are metrics: a run of osiris train has them at its end."""
        if progress is None:
            return self._files.metrics.exists()
        return progress.finished > 0 and (not progress.coming or self._files.metrics.exists())

    def status(self) -> Status:
        return consistent(self._files, self._status)

    def _status(self, known: Progress | None) -> Status:
        if known is None or not known.saved:
            self._refuse_lost_checkpoint()
            raise self._nothing()
        episodes = known.contents[: known.finished + 1]  # a run of osiris train knows the later ones too
        shown, held = shlex.quote(str(self.folder)), known.saved[0].memory
        by_train = bool(self.config.data.benchmark) and known.finished < known.planned
        finished = self._finished(known)
        return Status(
            episodes=[(content["name"], content["train"]) for content in episodes],
            unfinished=None if known.unfinished is None else known.unfinished["name"],
            planned=known.planned,
            way_on=f"osiris train --resume {shown}" if by_train else f"osiris observe {shown} FOLDER",
            memory=[*held, *[0] * (len(episodes) - len(held))],
            memory_size=known.memory_size,
            health=current_metrics(self._files, known).evaluations[-1].health if finished else None,
            observations=observations_of(self._files, known),
            index=self.index_status() if finished else None,
            bytes=_size(self.folder),
        )

    def forget(self, images: Sequence[str | Path]) -> int:
        """Remove images from the memory and from the index, given as files; returns how many the memory held. Each
        place in it is taken by a copy of another image, in every state on disk. The weights keep what they have
        learned. Files that do not exist any more can only be removed from the index."""
        if known := self._forget_indexed([Path(image) for image in images]):
            notice(f"{known} file(s) were removed from the index.")
            images = [image for image in images if Path(image).expanduser().exists()]
            if not images:
                return 0
        with self._files as directory:
            state = self._state()
            remove_unnamed(directory, state.progress)  # a call that was killed may have left a state with the images
            size = state.progress.image_size
            table = episode_source(list(images), "forget")[0].read_table()
            wanted = list[torch.Tensor]()
            for row, image in enumerate(decode_all(table.read, len(table), size)):  # not into the cache
                if isinstance(image, UndecodableImage):
                    raise UserError(f"{table.describe(row)} cannot be looked for in the memory: {image}.")
                wanted.append(torch.from_numpy(image))
            if by_sums(directory):
                return forget_images(directory, wanted) if wanted else 0

            def found(one: State) -> torch.Tensor:
                held = one.memory.images
                same = [(held == image).flatten(1).all(1) for image in wanted]
                return torch.stack(same).any(0) if same else torch.zeros(len(held), dtype=torch.bool)

            def forget(one: State) -> bool:
                slots = found(one)
                if not slots.all():
                    one.forget(slots)
                return not slots.all()

            count = int(found(state).sum())
            if count == len(state.memory.images):
                raise UserError("the memory would be empty; remove the whole state instead.")
            rewrite_states(directory, forget)
        notice(
            f"copies of images that were learned from may remain in the cache, {cache_directory()}: `osiris data "
            "--clean` removes them."
        )
        return count

    def _state(self) -> State:
        state = load_state(self._files)
        if state is None:
            self._refuse_lost_checkpoint()
            raise self._nothing()
        return state

    def _nothing(self) -> UserError:
        reason = "has no checkpoint; observe some images first" if self.folder.exists() else "does not exist"
        return UserError(f"{self.folder} {reason}.")


def _size(folder: Path) -> int:
    """Bytes on disk. Files may go meanwhile."""
    found = dict[int, int]()
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):
            status = path.stat()
            if S_ISREG(status.st_mode):
                found[status.st_ino] = status.st_size  # hard links count once
    return sum(found.values())


def keep_apart(labelled: tuple[Reference | None, str | None], episodes: Sequence[Episode]) -> None:
    """Refuse to learn from the labelled images alone, and say how many of them are among the images of an episode.
    Images that are not decoded yet are not compared. `labelled`: see `open_reference`."""
    if labelled[0] is None:
        return
    known = {image.tobytes() for image in labelled[0].images}
    for episode in episodes:
        images = episode.images
        if images is None or not images.decoded:
            continue
        parts = (images.take(part) for part in torch.arange(len(images)).split(256))
        found = sum(image.numpy().tobytes() in known for part in parts for image in part)
        among = f"{found} of the {len(images)} images of {episode.content['name']} are labelled images of --reference"
        if found == len(images):
            raise UserError(f"{among}: learning from them would spoil the test. Give other images.")
        if found:
            warn(f"{among}: they are learned from too, so their accuracy is not an unbiased test.")


def images_at_hand(run: Training) -> torch.Tensor:
    """Those of the memory, uint8 [N, 3, H, W]; of a method without one, some of the last episode."""
    memory, last = run.engine.memory, run.episodes[-1].images
    if memory.filled or last is None:
        return memory.images[: memory.filled].cpu()
    return last.take(fixed_subset(len(last), MOST_IMAGES))


def other_readouts(run: Training) -> Readouts | None:
    """Of the sums of all episodes, to be compared on labelled images."""
    return readouts_of(run.engine.summed, run.engine.total) if isinstance(run.engine, SummingEngine) else None


def refuse_what_cannot_grow(run: Training) -> None:
    if run.method.learns != "continual":
        raise UserError(f"{run.method.name} learns from all images at once, so it cannot learn from one more episode.")
    if run.method.memory == "quota":
        raise UserError("the memory quota needs a known number of tasks; use --memory-policy equal.")


def introduce(config: Config) -> None:
    """The settings of a new state."""
    if config.method.method == "readout":
        notice(
            "a new state. The network stays as it is: what is learned is how to weigh its layers, in one pass over the "
            "images, none of which is kept. To train the network instead: --method osiris-d."
        )
    elif config.method.method in BY_SUMS:
        notice("a new state, learned by sums in one pass over the images.")
    else:
        notice(f"a new state, preset {config.preset}{describe(config)}.")
    if (config.encoder.encoder or "").startswith("own:") and not config.pretrained:
        notice("the encoder counts as untrained; if it has learned before, add --pretrained.")


def announce(run: Training, labelled: tuple[Reference | None, str | None], new: bool, verbose: bool) -> None:
    """What an episode is, before its first step; `labelled`: see `open_reference`."""
    episode, side = run.coming()[0], run.benchmark.train.images.shape[-1]
    chosen = "" if run.config.data.image_size is not None else " (the median of this folder; --image-size changes it)"
    images = f"{episode.content['name']}: {episode.count} images"
    if new or verbose:
        images += f" of {side} x {side} pixels{chosen}"
    if verbose:
        images += f", {episode.steps} steps"
    evaluated = len(run.benchmark.bank) + len(run.benchmark.test or ()) + len(labelled[0].images if labelled[0] else ())
    seconds = estimate_seconds(run.engine, episode) + estimate_embedding(run.engine, 2 * evaluated)  # start and end
    expected = duration(max(1.0, seconds))
    notice(f"{images}: about {expected} on {run.device}, with the evaluation.")


def forget_weights(directory: RunDirectory, progress: Progress, keep: int) -> None:
    """Remove the weights of all but the latest episodes, and the arrays that were evaluated with them. What
    `osiris undo` goes back to stays, and so do numbers, observations and moments."""
    folders = [episode_folder(directory, progress, task) for task in range(progress.finished)]
    back = None if progress.back is None else folders[progress.back.position.episode]
    for folder in [one for one in folders if one.weights.exists()][: -max(1, keep)]:
        if folder == back:
            continue
        with suppress(UserError):  # damaged: it stays as it is
            save_tensors(folder.evaluation, {}, load_metadata(folder.evaluation))
        folder.weights.unlink()
