"""A run of a second: three tasks, eighteen steps, everything that a long run has. And how to compare two of them."""

import json
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from osiris.config import Config, EngineConfig, LearningConfig
from osiris.data.benchmark import Benchmark, Split, TaskContent
from osiris.data.images import ArrayImages
from osiris.evaluation.config import ProtocolConfig
from osiris.evaluation.scores import Measured, Scores, write_record
from osiris.files import save_tensors
from osiris.framework.config import MethodConfig
from osiris.models.config import EncoderConfig, ProjectorConfig
from osiris.runs.directory import EpisodeFolder, RunDirectory
from osiris.runs.progress import FORMAT, Position, Progress, Saved, episode_folder, known_episodes, read_progress
from osiris.runs.records import RunMetrics
from osiris.runs.state import State, digest, read_state
from osiris.training import run as training_run
from osiris.training.engine import Engine, StepResult
from osiris.training.run import Opening
from osiris.training.schedule import Episode
from osiris.training.summing import SummingEngine

TASKS, CLASSES, PER_CLASS, SIZE = 3, 2, 14, 16
BATCH = 12
"""28 images a task: batches of 12, 12 and 4, so that shares of two processes and of Y are uneven or tiny."""


def pictures(per_class: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(images [N, 3, H, W], labels, tasks): coarse blobs around a colour of their class."""
    random = np.random.default_rng(seed)
    labels = np.arange(TASKS * CLASSES).repeat(per_class)
    colours = np.random.default_rng(0).uniform(60, 200, (TASKS * CLASSES, 3, 1, 1))
    coarse = colours[labels] + random.normal(0, 50, (len(labels), 3, 4, 4))
    images = np.kron(coarse, np.ones((1, 1, SIZE // 4, SIZE // 4))).clip(0, 255).astype(np.uint8)
    return images, labels, labels // CLASSES


def benchmark() -> Benchmark:
    def split(per_class: int, seed: int) -> Split:
        images, labels, tasks = pictures(per_class, seed)
        return Split(ArrayImages(images), torch.from_numpy(tasks), torch.from_numpy(labels))

    train, test = split(PER_CLASS, 1), split(4, 2)
    names = tuple(f"class {label}" for label in range(TASKS * CLASSES))
    tasks = tuple(tuple(range(task * CLASSES, (task + 1) * CLASSES)) for task in range(TASKS))
    return Benchmark("tiny", train, train, test, names, tasks, (0.5, 0.5, 0.5), (0.25, 0.25, 0.25))


def config(method: str = "osiris-d", norm: str = "gn", **engine: Any) -> Config:
    return Config(
        preset="smoke",
        method=MethodConfig(method),
        encoder=EncoderConfig(width=8, blocks=(1, 1, 1, 1), norm=norm, stem_stride=2),  # pyright: ignore
        projector=ProjectorConfig(projector_hidden=16, projector_output=8),
        learning=LearningConfig(epochs=2, batch_size=BATCH, memory_size=12, learning_rate=0.05),
        evaluation=ProtocolConfig(k=3, random_encoders=1),
        engine=EngineConfig(device="cpu", **{"threads": 1, "log_every": 2, **engine}),
    )


def with_learning(base: Config, **changes: Any) -> Config:
    return replace(base, learning=replace(base.learning, **changes))


def train(
    settings: Config, out: Path, data: Benchmark | None = None, stop_after: int | None = None, **opening: Any
) -> RunMetrics | None:
    """On the tiny benchmark."""
    return training_run.train(Opening(settings, out, quiet=True, **opening), data or benchmark(), stop_after)


@contextmanager
def asked_to_stop(task: int, step: int, engine: type[Engine] | type[SummingEngine] = Engine) -> Iterator[None]:
    """SIGTERM arrives at this step of a run inside."""
    do: Callable[..., StepResult] = engine.step

    def stopping(self: Engine | SummingEngine, phase: Episode, number: int) -> StepResult:
        if (phase.task, number) == (task, step):
            signal.raise_signal(signal.SIGTERM)
        return do(self, phase, number)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "step", stopping)
        yield


def write_arrays(path: Path) -> str:
    """The same images as a file; returns the benchmark's name on the command line."""
    (images, labels, tasks), (others, other_labels, other_tasks) = pictures(PER_CLASS, 1), pictures(4, 2)
    np.savez(
        path,
        images=images.transpose(0, 2, 3, 1),
        labels=labels,
        episodes=tasks,
        test_images=others.transpose(0, 2, 3, 1),
        test_labels=other_labels,
        test_episodes=other_tasks,
    )
    return f"arrays:{path}"


def arguments(name: str, out: Path, method: str = "osiris-d", *more: str) -> list[str]:
    """`osiris train` of `config()`, as typed."""
    fixed = "--preset smoke --width 4 --projector-hidden 16 --projector-output 8 --epochs 2 --memory-size 12 --k 3"
    fixed += f" --batch-size {BATCH} --learning-rate 0.05 --log-every 2 --threads 1 --random-encoders 1 --device cpu"
    return ["train", "--method", method, "--benchmark", name, "--out", str(out), *fixed.split(), "--quiet", *more]


def contents(run: Path) -> dict[str, bytes]:
    """Every file of a run whose bytes must not depend on what happened to it."""
    files = [path for path in (run / "episodes").rglob("*") if path.is_file() and path.suffix != ".pt"]
    return {str(path.relative_to(run)): path.read_bytes() for path in (*files, run / "metrics.json")}


def progress_of(run: Path) -> Progress:
    progress = read_progress(RunDirectory(run))
    assert progress is not None
    return progress


def episode(run: Path, task: int) -> EpisodeFolder:
    """The files of a task, counted from 1 as in their names; 0 is the start."""
    directory = RunDirectory(run)
    return directory.start if task == 0 else episode_folder(directory, progress_of(run), task - 1)


def newest(run: Path) -> Path:
    """The file of the newest state."""
    return run / "episodes" / progress_of(run).saved[0].file


def pretend_evaluated(run: Path, tasks: int, numbers: Scores) -> Path:
    """What a run that has learned so many tasks says about itself, and its evaluation after the last of them."""
    contents = [TaskContent(name=str(task + 1), train=9, test=9, order="") for task in range(tasks)]
    episodes = known_episodes(contents)
    position, file = Position(task=tasks), f"{episodes[-1].folder}/state-000001.pt"
    saved = Saved(file=file, digest="0" * 32, position=position, log=0, memory=[])
    (run / "episodes").mkdir(parents=True, exist_ok=True)
    write_record(run / "progress.json", Progress(format=FORMAT, episodes=episodes, saved=[saved], counter=1))
    path = episode(run, tasks).evaluation
    save_tensors(path, {}, Measured(numbers=numbers).plain())
    return path


def read_newest(run: Path) -> State:
    progress = progress_of(run)
    return State(read_state(RunDirectory(run), progress.saved[0], progress), progress)


def last_state(run: Path) -> tuple[str, dict[str, Any]]:
    """(checksum of networks, terms, memory and optimiser; position) of the newest checkpoint."""
    state = read_newest(run)
    position = {key: value for key, value in vars(state.position).items() if key != "seconds"}
    return digest(state.engine), position


def log(run: Path, event: str = "step") -> list[dict[str, Any]]:
    """Lines of the log without what depends on the clock."""
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    clock = ("seconds", "seconds_left", "images_per_second", "peak_memory_mb")
    return [{key: value for key, value in line.items() if key not in clock} for line in lines if line["event"] == event]


def assert_same_run(one: Path, other: Path) -> None:
    first, second = contents(one), contents(other)
    assert first.keys() == second.keys()
    assert [name for name in first if first[name] != second[name]] == []
    assert last_state(one) == last_state(other)
    assert_only_what_is_named(other)


def assert_only_what_is_named(run: Path) -> None:
    """No other states, no other folders, nothing that a kill has left behind."""
    progress = progress_of(run)
    assert list(run.rglob("*.tmp")) == []
    assert {folder.name for folder in (run / "episodes").iterdir()} == set(progress.folders)
    states = {str(path.relative_to(run / "episodes")) for path in (run / "episodes").rglob("*.pt")}
    assert states == {one.file for one in progress.states}
