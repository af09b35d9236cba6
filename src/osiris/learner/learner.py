"""Unlabelled images keep arriving: a run that is opened again with one more task each time.

    learner = osiris.Learner("state", method="osiris-d")
    learner.observe("photos/2026-11")
    features = learner.embed("new.jpg")

The state is a run directory. It holds the images of the memory, and never needs earlier images again.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import torch
from torch import Tensor
from torch.nn.functional import normalize

from osiris.console import notice
from osiris.data.benchmarks import episode_from
from osiris.data.folder import Listing
from osiris.errors import UserError
from osiris.evaluation.embedding import Embedder
from osiris.evaluation.metrics_file import Health, RunMetrics, read_metrics
from osiris.evaluation.observations import Observations, read_observations
from osiris.evaluation.runs import Run, files_by_task
from osiris.learner.episode import episode_size, extension, measure, memory_of
from osiris.learner.estimator import Estimator
from osiris.models.external import EncoderSource, encoder_name
from osiris.training import checkpoint
from osiris.training.config import Config, with_options
from osiris.training.devices import choose_device
from osiris.training.loop import EPISODES, Extension, train
from osiris.training.presets import describe, for_episodes, preset, with_encoder
from osiris.training.run_directory import RunDirectory, read_config

if TYPE_CHECKING:
    import numpy as np


class Status(TypedDict):
    """What `osiris status` prints."""

    episodes: list[tuple[str, int]]
    """(name, images) of each episode, in order."""
    unfinished: str | None
    """The name of an episode that was interrupted; observe it again to finish it."""
    memory: list[int]
    """Images in the memory by episode."""
    memory_size: int
    health: Health | None
    """Of the last finished episode."""
    observations: Observations
    """What each episode did to the features."""
    bytes: int
    """Size of the state on disk."""


class Learner(Estimator):
    """An encoder that learns from one episode of unlabelled images after another.

    Follows the conventions of scikit-learn: `partial_fit` is `observe`, `transform` is `embed`; works in a `Pipeline`.
    """

    def __init__(
        self,
        path: str | Path | None = None,
        method: str | None = None,
        preset: str | None = None,
        seed: int | None = None,
        encoder: EncoderSource | None = None,
        **options: Any,
    ) -> None:
        """Open the state in `path`, or create it with the first episode.

        Args:
            path: The state: a directory made by an earlier Learner or by `osiris train`, or a new one. Without it, the
                state is temporary and goes with this object.
            method: Default: osiris-d.
            preset: Where the defaults of all options come from (default: fast).
            seed: Changes initialisation, augmentation and memory (default: 0).
            encoder: As in `osiris.train`: `hf:NAME`, `timm:NAME`, a module, or a function that builds one. A state with
                an encoder of your own needs it again each time.
            **options: Every option of `osiris train`, with underscores: `epochs=20`, `memory_size=200`.

        A state that exists has its own settings; options that contradict it are refused by `observe`.
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
        name = self._encoder_name
        if (self.folder / "config.json").exists():
            config = read_config(self.folder)
            return with_options(config if name is None else with_encoder(config, name), options)
        config = preset(self.preset or "fast", "folder:", name, self.options.get("objective"))
        return with_options(for_episodes(config, episode_size(images)), {"benchmark": EPISODES} | options)

    def observe(
        self,
        images: Any,
        name: str | None = None,
        quiet: bool = True,
        keep_tasks: int | None = None,
        reference: str | Path | None = None,
    ) -> Learner:
        """Learn from one episode.

        To continue an interrupted call, repeat it.

        Args:
            images: A folder, a list of files, an array, a torch or Hugging Face data set.
            name: Of the episode. Default: that of the folder, or a number.
            quiet: Do not display progress.
            keep_tasks: Keep the weights of only this many latest episodes. Default: all.
            reference: A folder of labelled images, CLASS/image.jpg: KNN on them after every episode, also in later
                calls. They are not learned from.
        """
        config = self._configure(images)
        if not quiet and not (self.folder / "config.json").exists():
            notice(f"a new state, preset {config.preset}{describe(config)}.")
        if config.engine.track_overfitting is not None:
            raise UserError("track_overfitting needs the images of all episodes; leave it out.")

        def extend(state: dict[str, Any] | None) -> Extension:
            return extension(state, config, images, name)

        train(config, self.folder, quiet, extend=extend)
        self.measure(reference)
        if keep_tasks is not None:
            for file in list(files_by_task(self.folder / "checkpoints").values())[: -max(1, keep_tasks)]:
                (self.folder / "evaluation" / file.name).unlink(missing_ok=True)
                file.unlink()
        return self

    def measure(self, reference: str | Path | None = None) -> Observations:
        """How each episode moved the features of the memory's images, and KNN on labelled images if there are any.

        `reference`: see `observe`. Episodes whose weights are still there are measured too.
        """
        with RunDirectory(self.folder):
            device = choose_device(self.config.engine.device)
            measure(self.folder, self._state(), None if reference is None else Path(reference), device)
        return read_observations(self.folder)

    @property
    def run(self) -> Run:
        """The state as a finished run."""
        return Run(self.folder, self.metrics)

    def embed(self, images: Any) -> np.ndarray:
        """float32 [N, D]: the features of one image file, or of anything that `observe` takes."""
        return self._embedder()(images).features.numpy()

    def embed_files(self, place: str | Path) -> tuple[list[Path], np.ndarray, list[str]]:
        """(files, features, notices) of one image file or of all below a folder. Files that cannot be decoded are left
        out and named in the notices."""
        listing = Listing(Path(place)) if Path(place).is_dir() else None
        paths = [Path(place)] if listing is None else listing.paths()
        if not paths:
            raise UserError(f"{place} has no images.")
        embedded = self._embedder()(paths, strict=False)
        notices = [] if listing is None else listing.notices()
        return [paths[row] for row in embedded.rows], embedded.features.numpy(), notices + embedded.notices

    def search(
        self, place: str | Path, query: str | Path, count: int = 12
    ) -> tuple[list[tuple[Path, float]], list[str]]:
        """((file, cosine similarity) of the images below a folder that are nearest to the image `query`, notices)."""
        paths, features, notices = self.embed_files(place)
        bank, sought = (normalize(torch.from_numpy(one), dim=1) for one in (features, self.embed(query)))
        similarity, order = (sought @ bank.T)[0].sort(descending=True, stable=True)
        return [(paths[row], value) for row, value in zip(order[:count].tolist(), similarity.tolist())], notices

    def _embedder(self) -> Embedder:
        path, device = self.run.checkpoint(), choose_device(self.config.engine.device)
        return _open_embedder(path.absolute(), path.stat().st_mtime_ns, device)

    @property
    def metrics(self) -> RunMetrics:
        if not self.folder.exists():
            raise UserError(f"{self.folder} does not exist; give the directory of a state or run.")
        if not (self.folder / "metrics.json").exists():
            raise UserError(f"{self.folder} has not finished an episode yet; observe some images first.")
        return read_metrics(self.folder / "metrics.json")

    def status(self) -> Status:
        state = self._state()
        memory, contents, done = memory_of(state), state["data"], state["position"]["task"]
        files = [path for path in self.folder.rglob("*") if path.is_file()]
        return Status(
            episodes=[(content["name"], content["train"]) for content in contents],
            unfinished=contents[done]["name"] if done < len(contents) else None,
            memory=torch.bincount(memory["task"][: memory["filled"]], minlength=len(contents)).tolist(),
            memory_size=len(memory["task"]),
            health=self.metrics.evaluations[-1].health if (self.folder / "metrics.json").exists() else None,
            observations=read_observations(self.folder),
            bytes=sum(path.stat().st_size for path in files),
        )

    def forget(self, images: Sequence[str | Path]) -> int:
        """Remove images from the memory, given as files; returns how many it held. Each place is taken by a copy of
        another image. The weights keep what they have learned."""
        with RunDirectory(self.folder):
            state = self._state()
            memory = memory_of(state)
            pixels, filled = memory["images"], memory["filled"]
            wanted = episode_from(list(images), "forget", pixels.shape[-1]).train.images
            found = torch.zeros(filled, dtype=torch.bool)
            for image in wanted.take(torch.arange(len(wanted))):
                found |= (pixels[:filled] == image).flatten(1).all(1)
            others = (~found).nonzero().flatten()
            if not len(others):
                raise UserError("the memory would be empty; remove the whole state instead.")
            for slot in found.nonzero().flatten().tolist():
                other = int(others[slot % len(others)])
                for name, value in state["engine"]["model"].items():
                    if name.startswith("memory.") and isinstance(value, Tensor) and value.ndim > 0:
                        value[slot] = value[other]
            for _ in range(2):  # latest.pt and previous.pt
                checkpoint.save_state(self.folder / "checkpoints", state)
        return int(found.sum())

    def _state(self) -> dict[str, Any]:
        state = checkpoint.load_state(self.folder / "checkpoints")
        if state is None:
            raise UserError(f"{self.folder} has no checkpoint; observe some images first.")
        return state


@lru_cache(maxsize=2)
def _open_embedder(path: Path, written: int, device: torch.device) -> Embedder:
    """Kept between calls; `written` is the time of the file, so that newer weights are loaded again."""
    return Embedder(path, device)
