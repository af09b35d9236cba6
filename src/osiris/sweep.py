"""Several runs side by side on this machine: one process each, watched through their log.jsonl.

A run that is finished is left alone and an interrupted one continues, so the same call again completes what is missing.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from osiris.console import Display
from osiris.errors import UserError
from osiris.training.loggers import describe, describe_evaluation


@dataclass
class Job:
    """`osiris train ARGUMENTS --out OUT`, and what is known of its progress."""

    title: str
    arguments: list[str]
    out: Path
    process: subprocess.Popen[bytes] | None = None
    position: int = 0
    step: dict[str, Any] = field(default_factory=dict)
    evaluation: dict[str, Any] = field(default_factory=dict)

    @property
    def finished(self) -> bool:
        return (self.out / "metrics.json").exists()

    def start(self) -> None:
        self.out.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "osiris", "train", *self.arguments, "--out", str(self.out), "--quiet"]
        errors = self.out.parent / f".{self.out.name}.stderr"
        with errors.open("wb") as file:
            self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=file)

    def read_log(self) -> list[dict[str, Any]]:
        """New whole lines of its log."""
        path = self.out / "log.jsonl"
        if not path.exists():
            return []
        with path.open("rb") as file:
            file.seek(min(self.position, path.stat().st_size))
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self.position += len(whole)
        records = [json.loads(line) for line in whole.splitlines()]
        for record in records:
            if record["event"] == "step":
                self.step = record
            elif record["event"] == "evaluation":
                self.evaluation = record
        return records

    def failure(self) -> str | None:
        """After its end: why it failed, in its own words."""
        assert self.process is not None
        errors = self.out.parent / f".{self.out.name}.stderr"
        code = self.process.returncode
        if code == 75:  # it was asked to stop, and so are we
            raise KeyboardInterrupt
        if code != 0:
            words = errors.read_text(errors="replace").strip().splitlines()
            return f"{self.title} failed (exit code {code}): {words[-1] if words else 'no message'}"
        errors.unlink(missing_ok=True)
        return None


def run_jobs(jobs: list[Job], workers: int | None = None) -> None:
    """Run the jobs, at most `workers` at a time (default: one per core), with live progress. Ctrl-C stops them all.

    A job that fails does not stop the others; what failed is said at the end.
    """
    failures: list[str | None] = []
    workers = max(1, workers or os.cpu_count() or 1)
    waiting, running = [job for job in jobs if not job.finished], []
    display = Display(every=15)
    for job in jobs:
        display.show(job.title, float(job.finished), "finished before" if job.finished else "waiting")
    try:
        while waiting or running:
            while waiting and len(running) < workers:
                running.append(waiting.pop(0))
                running[-1].start()
            time.sleep(0.25)
            for job in list(running):
                _show(display, job, job.read_log())
                assert job.process is not None
                if job.process.poll() is not None:
                    _show(display, job, job.read_log())
                    running.remove(job)
                    failures.append(job.failure())
    finally:
        display.close()
        for job in running:  # after an error or Ctrl-C: each saves its state and stops
            assert job.process is not None
            job.process.terminate()
        for job in running:
            assert job.process is not None
            job.process.wait()
    said = [text for text in failures if text]
    if said:
        raise UserError("\n".join(said))


def _show(display: Display, job: Job, records: list[dict[str, Any]]) -> None:
    """One row per run: its progress, and a line after every task."""
    for record in records:
        if record["event"] == "evaluation":
            display.show(job.title, None, describe_evaluation(record), line=True)
    if job.finished:
        display.show(job.title, 1.0, describe_evaluation(job.evaluation) if job.evaluation else "finished")
    elif records and job.step:
        display.show(job.title, job.step["progress"], describe(job.step))
