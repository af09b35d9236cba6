"""Where the numbers of a run go. log.jsonl is the truth; everything else shows the same records.

A logger has two methods: `log(record)` and `close()`.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any, Protocol

from osiris.console import messages
from osiris.errors import UserError
from osiris.training.config import Config, to_dict


class Logger(Protocol):
    def log(self, record: dict[str, Any]) -> None: ...

    def close(self) -> None: ...


class JsonLines:
    """One line per record. `position` goes into checkpoints; a resumed run cuts the file back to it."""

    def __init__(self, path: Path, position: int = 0) -> None:
        self.file = path.open("a+b")
        # A crash of the machine may have lost the end of the log: never fill the gap, and keep whole lines only.
        self.file.seek(0)
        kept = self.file.read()[:position]
        self.file.truncate(kept.rfind(b"\n") + 1)
        self.file.seek(0, os.SEEK_END)

    @property
    def position(self) -> int:
        """The end of the log, which is on the disk when this returns."""
        self.file.flush()
        os.fsync(self.file.fileno())
        return self.file.tell()

    def log(self, record: dict[str, Any]) -> None:
        self.file.write((json.dumps(record, allow_nan=False) + "\n").encode())
        self.file.flush()

    def close(self) -> None:
        os.fsync(self.file.fileno())
        self.file.close()


def describe(record: dict[str, Any]) -> str:
    """`task 2/10 epoch 3/24 loss 3.14 (current 2.1, cross 1.0, past 1.1) 2100 images/s, 1 min 20 s left`"""
    terms = ", ".join(f"{name} {value:.3f}" for name, value in record["terms"].items())
    return (
        f"task {record['task']}/{record['tasks']} epoch {record['epoch']}/{record['epochs']} "
        f"loss {record['loss']:.3f} ({terms}) {record['images_per_second']:.0f} images/s, "
        f"{duration(record['seconds_left'])} left"
    )


def describe_evaluation(record: dict[str, Any]) -> str:
    shown = ", ".join(f"{name} {value:.1f}" for name, value in record["shown"].items())
    return f"after task {record['task']}/{record['tasks']}: {shown}"


def duration(seconds: float) -> str:
    seconds = int(seconds)
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60:02d} s"
    return f"{seconds // 3600} h {seconds % 3600 // 60:02d} min"


class PlainLines:
    """Without a terminal: a line every few seconds and after every task."""

    def __init__(self, title: str, every: float = 10.0) -> None:
        self.title, self.every, self.last = title, every, time.monotonic()

    def log(self, record: dict[str, Any]) -> None:
        if record["event"] == "evaluation":
            print(f"{self.title}: {describe_evaluation(record)}", file=sys.stderr, flush=True)
        elif record["event"] == "step" and time.monotonic() - self.last >= self.every:
            self.last = time.monotonic()
            print(f"{self.title}: {describe(record)}", file=sys.stderr, flush=True)

    def close(self) -> None: ...


class LiveView:
    """In a terminal: a bar for the whole run, one for the task, the terms by name, the newest metrics."""

    def __init__(self, title: str) -> None:
        from rich.markup import escape
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=28),
            TaskProgressColumn(),
            TextColumn("{task.fields[text]}"),
        )
        self.progress = Progress(*columns, console=messages)
        # A composed method's name has brackets, which are no markup.
        self.run = self.progress.add_task(f"[bold]{escape(title)}", total=1.0, text="starting")
        self.task = self.progress.add_task("task", total=1.0, text="")
        self.metrics = ""
        self.progress.start()

    def log(self, record: dict[str, Any]) -> None:
        if record["event"] == "evaluation":
            self.metrics = describe_evaluation(record)
            self.progress.update(self.run, text=self.metrics)
            self.progress.refresh()
        elif record["event"] == "step":
            terms = "  ".join(f"{name} {value:.3f}" for name, value in record["terms"].items())
            text = f"epoch {record['epoch']}/{record['epochs']}  {terms}  {record['images_per_second']:.0f} images/s"
            self.progress.update(
                self.task,
                description=f"task {record['task']}/{record['tasks']}",
                completed=record["task_progress"],
                text=text,
            )
            left = f"{duration(record['seconds_left'])} left"
            text = f"{left}  {self.metrics}" if self.metrics else left
            self.progress.update(self.run, completed=record["progress"], text=text)

    def close(self) -> None:
        self.progress.stop()


class TensorBoard:
    """RUN/tensorboard. A resumed run discards what lies beyond the checkpoint."""

    def __init__(self, folder: Path, start: int = 0) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise UserError("--tensorboard needs the extra: pip install 'osiris-ucl[tensorboard]'.") from None
        self.writer = SummaryWriter(str(folder / "tensorboard"), purge_step=start + 1 if start else None)

    def log(self, record: dict[str, Any]) -> None:
        for name, value in scalars(record).items():
            self.writer.add_scalar(name, value, record["total_step"])

    def close(self) -> None:
        self.writer.close()


class WeightsAndBiases:
    """RUN/wandb. The identity comes from the run directory, so a resumed run continues the same page."""

    def __init__(self, folder: Path, config: dict[str, Any], name: str) -> None:
        try:
            wandb = importlib.import_module("wandb")
        except ImportError:
            raise UserError("--wandb needs the extra: pip install 'osiris-ucl[wandb]'.") from None
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


def open_views(config: Config, method: str, folder: Path, quiet: bool, start: int) -> list[Logger]:
    """All but log.jsonl, as the config wants them; `start`: steps done before."""
    views: list[Logger] = []
    if config.engine.tensorboard:
        views.append(TensorBoard(folder, start))
    if config.engine.wandb:
        views.append(WeightsAndBiases(folder, to_dict(config), folder.name))
    if not quiet:
        title = f"{method} seed {config.seed}"
        views.append(LiveView(title) if messages.is_terminal else PlainLines(title))
    return views
