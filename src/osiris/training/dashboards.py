"""Views that show the records of log.jsonl: on the terminal, in TensorBoard, and in Weights & Biases.

A logger has two methods: `log(record)` and `close()`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from osiris.config import Config, to_dict
from osiris.console import Display, duration
from osiris.errors import import_extra


class Logger(Protocol):
    def log(self, record: dict[str, Any]) -> None: ...

    def close(self) -> None: ...


class ProgressView:
    """Shows a row for the run with the time left and the newest metrics, and one for the task. Without a
    terminal, lines such as
    `task 2/10 epoch 3/24 loss 3.14 (current 2.1, cross 1.0, past 1.1) 2100 images/s, 1 min 20 s left`."""

    def __init__(self, title: str) -> None:
        self.title, self.metrics, self.display = title, "", Display()
        self.display.show(title, 0.0, "starting", line=True)

    def log(self, record: dict[str, Any]) -> None:
        task = f"task {record['task']}/{record['tasks']}" if "tasks" in record else ""
        if record["event"] == "evaluation":
            shown = ", ".join(f"{name} {value:.1f}" for name, value in record["shown"].items())
            self.metrics = f"after {task}: {shown}"
            self.display.show(self.title, None, self.metrics, line=True)
        if record["event"] != "step":
            return
        seconds, speed = record["seconds_left"], f"{record['images_per_second']:.0f} images/s"
        left = "estimating the time left" if seconds is None else f"{duration(seconds)} left"
        epoch = f"epoch {record['epoch']}/{record['epochs']}"
        terms = [f"{name} {value:.3f}" for name, value in record["terms"].items()]
        if self.display.live is None:
            loss = "" if record["loss"] is None else f"loss {record['loss']:.3f} ({', '.join(terms)}) "
            text = f"{task} {epoch} {loss}{speed}, {left}"
            self.display.show(self.title, record["progress"], text)
        else:
            self.display.show(self.title, record["progress"], f"{left}  {self.metrics}")
            self.display.show(task, record["task_progress"], f"{epoch}  {'  '.join(terms)}  {speed}")

    def close(self) -> None:
        self.display.close()


class EpisodeView:
    """Of `osiris observe`: what is learned from, and the time left. All else is in log.jsonl."""

    def __init__(self, names: Sequence[str]) -> None:
        """`names`: of all episodes."""
        self.names, self.display = names, Display()

    def log(self, record: dict[str, Any]) -> None:
        if record["event"] == "step":
            seconds = record["seconds_left"]
            share = record["task_progress"]
            left = "estimating the time left" if seconds is None else f"{duration(seconds)} left"
            left = "measuring what came of it" if share >= 1 else left
            text = left if self.display.live is not None else f"{share:.0%}, {left}"
            self.display.show(f"learning from {self.names[record['task'] - 1]}", share, text)

    def close(self) -> None:
        self.display.close()


class TensorBoard:
    """RUN/tensorboard. A resumed run discards the points after its checkpoint."""

    def __init__(self, folder: Path, start: int = 0) -> None:
        tensorboard = import_extra("torch.utils.tensorboard", "--tensorboard", "tensorboard")
        start_after = start + 1 if start else None
        self.writer = tensorboard.SummaryWriter(str(folder / "tensorboard"), purge_step=start_after)

    def log(self, record: dict[str, Any]) -> None:
        for name, value in scalars(record).items():
            self.writer.add_scalar(name, value, record["total_step"])

    def close(self) -> None:
        self.writer.close()


class WeightsAndBiases:
    """RUN/wandb. The id is derived from the run directory, so that a resumed run continues the same page."""

    def __init__(self, folder: Path, config: dict[str, Any], name: str) -> None:
        wandb = import_extra("wandb", "--wandb", "wandb")
        identity = hashlib.blake2b(str(folder.resolve()).encode(), digest_size=8).hexdigest()
        self.run = wandb.init(project="osiris", name=name, dir=str(folder), config=config, id=identity, resume="allow")

    def log(self, record: dict[str, Any]) -> None:
        numbers = scalars(record)
        if numbers:
            self.run.log(numbers, step=record["total_step"])

    def close(self) -> None:
        self.run.finish()


def scalars(record: dict[str, Any]) -> dict[str, float]:
    """The numbers of a record under the names that dashboards show."""
    if record["event"] == "evaluation":
        return {f"evaluation/{name}": value for name, value in record["shown"].items()}
    if record["event"] == "overfitting":
        return {f"overfitting/{space}": values["relative"] for space, values in record["spaces"].items()}
    if record["event"] != "step":
        return {}
    plain = {name: record[name] for name in ("loss", "learning_rate", "images_per_second", "gradient_norm")}
    return {f"train/{name}": value for name, value in (plain | record["terms"]).items() if value is not None}


def open_views(
    config: Config, method: str, folder: Path, quiet: bool, start: int, episodes: Sequence[str] | None = None
) -> list[Logger]:
    """All loggers but log.jsonl, as the config says; `start`: steps done before. `episodes`: names of the episodes of
    somebody who wants to know no more than what is learned from."""
    views: list[Logger] = []
    if config.engine.tensorboard:
        views.append(TensorBoard(folder, start))
    if config.engine.wandb:
        views.append(WeightsAndBiases(folder, to_dict(config), folder.name))
    if not quiet:
        views.append(ProgressView(f"{method} seed {config.seed}") if episodes is None else EpisodeView(episodes))
    return views
