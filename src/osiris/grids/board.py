"""A board of results, made of run directories and of files of numbers alone. What cannot be compared (another
benchmark, protocol or fingerprint) stands in different tables."""

from __future__ import annotations

import csv
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import osiris
from osiris.config import to_dict
from osiris.conversion import options_of
from osiris.data.config import BenchmarkConfig
from osiris.errors import UserError
from osiris.evaluation.config import METRICS, PROTOCOLS, ProtocolConfig, instrument
from osiris.evaluation.statistics import Sample, mark, mean, samples_of
from osiris.files import flat
from osiris.framework.config import BY_SUMS
from osiris.models.config import EncoderConfig
from osiris.paper import published
from osiris.presets import configure
from osiris.reporting.figure import theme
from osiris.reporting.studies import comparable, with_variants
from osiris.reporting.style import base_name, order_of
from osiris.reporting.tables import Column, Number, Table
from osiris.reporting.writer import render_template
from osiris.runs.directory import MAY_CHANGE, read_config
from osiris.runs.run import Run
from osiris.runs.untrusted import harmless, safe_name
from osiris.training.verify import Checked

Place = tuple[str, str, str, str]
"""Benchmark, protocol, what is comparable (a digest or a name), and how the table says it."""
WORDS: dict[Checked | str, str] = {
    "weights": "evaluated again from the weights",
    "evaluations": "agrees with the evaluations in the run",
    "numbers": "numbers alone: they agree with their own matrix",
    "file": "numbers of a file",
    "paper": "published",
}
MEASURED = {name for kind in (BenchmarkConfig, ProtocolConfig, EncoderConfig) for name in options_of(kind)}
"""Options that change what is measured, not how it is learned."""


@dataclass
class Entry:
    """A row: one method with its settings, over seeds."""

    method: str
    numbers: dict[int, dict[str, float | None]] = field(default_factory=dict)
    """Seed -> metrics; of published numbers, none."""
    samples: dict[str, Sample] = field(default_factory=dict)
    seeds: int = 0
    images: list[float] = field(default_factory=list)
    """Training images seen in each run, with repetitions."""
    minutes: list[float] = field(default_factory=list)
    memory: int | None = None
    """Images kept."""
    checked: str = "numbers"
    command: str = ""

    def row(self) -> tuple[dict[str, Sample], tuple[str | Number, ...]]:
        samples = self.samples or samples_of(self.numbers)
        images = mean(self.images)
        return samples, (
            str(self.seeds or len(self.numbers)),
            Number(images and images / 1000, decimals=0),
            Number(mean(self.minutes), decimals=1),
            "" if self.memory is None else str(self.memory),
            self.checked,
            self.command,
        )


def of_runs(runs: Sequence[Run], checked: dict[Path, Checked]) -> dict[Place, list[Entry]]:
    """Rows of run directories. Of two runs of the same method, settings and seed the first counts."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(comparable(run.metrics), []).append(run)
    tables: dict[Place, dict[str, Entry]] = {}
    for key, members in groups.items():
        about = members[0].metrics.fingerprint
        said = (
            f"fingerprint {about.hash}, k = {about.k}, bank of {about.bank_images:,}, {about.test_images:,} test images"
        )
        for run in with_variants(members):
            for protocol, numbers in run.metrics.protocols.items():
                table = tables.setdefault((run.metrics.benchmark, protocol, key, said), {})
                entry = table.setdefault(run.label + ("" if run.norm == "gn" else " (bn)"), Entry(run.label))
                if run.seed in entry.numbers:
                    continue
                entry.numbers[run.seed] = numbers.values()
                _add_budget(entry, run)
                entry.checked = _weaker(entry.checked if len(entry.numbers) > 1 else "weights", checked[run.path])
                entry.command = entry.command or command_of(run)
    return {place: list(table.values()) for place, table in tables.items()}


def command_of(run: Run) -> str:
    """The call that makes the run. One that was started from a file of a grid is written out."""
    if "--config" not in run.command.split():
        return run.command
    try:
        config = read_config(run.path)
        kept = {"method": config.method.method, "seed": config.seed}
        usual = configure(config.data.benchmark, config.preset, config.encoder.encoder, kept)
    except UserError:
        return run.command
    words = ["osiris", "train", "--method", config.method.method, "--benchmark", config.data.benchmark]
    words += ["--preset", config.preset, "--seed", str(config.seed)]
    theirs = {name.rpartition(".")[2]: value for name, value in flat(to_dict(usual)).items()}
    for name, value in ((name.rpartition(".")[2], value) for name, value in flat(to_dict(config)).items()):
        if value != theirs.get(name) and name not in (*MAY_CHANGE, "threads"):
            flag = name.replace("_", "-")
            if isinstance(value, bool):
                words.append(f"--{flag}" if value else f"--no-{flag}")
            else:
                words += [f"--{flag}", *map(str, value if isinstance(value, list) else [value])]
    return shlex.join(words)


def _weaker(one: str, other: str) -> str:
    order = ["numbers", "evaluations", "weights"]
    return min(one, other, key=order.index)


def _add_budget(entry: Entry, run: Run) -> None:
    logged, batch, kept = (
        run.steps_logged,
        run.config.get("learning.batch_size"),
        run.config.get("learning.memory_size"),
    )
    if run.config.get("method.method") in BY_SUMS:
        entry.images.append(run.metrics.fingerprint.train_images)
    elif logged and isinstance(batch, int):
        entry.images.append(sum(run.steps.values()) * batch)
    if logged and logged[-1].seconds is not None:
        entry.minutes.append(logged[-1].seconds / 60)
    if isinstance(kept, int):
        entry.memory = kept if run.uses_memory and run.continual else 0


def of_file(path: Path) -> dict[Place, list[Entry]]:
    """Rows of a results.csv of `osiris sweep`, such as docs/results/runs.csv."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows: list[dict[str, Any]] = harmless(list(csv.DictReader(file)))
        tables: dict[Place, dict[str, Entry]] = {}
        for row in rows:
            if row["state"] != "done" or not row["protocol"]:
                continue
            if row["protocol"] not in PROTOCOLS:
                raise ValueError(f"unknown protocol {row['protocol']}")
            settings = row["settings"].split()
            measured = [one for one in settings if one.partition("=")[0] in MEASURED]
            variant = ", ".join(one for one in settings if one not in measured)
            said = ", ".join([f"preset {row['preset']}", *measured, f"numbers of {path.name}"])
            table = tables.setdefault((row["benchmark"], row["protocol"], said, said), {})
            label = row["method"] + (f" ({variant})" if variant else "")
            entry = table.setdefault(label, Entry(label, checked="file", command=_command(row, settings)))
            entry.numbers[int(row["seed"])] = {one: float(row[one]) if row[one] else None for one in METRICS}
    except (OSError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{path} is not a results.csv of osiris sweep ({type(error).__name__}: {error}).") from None
    return {place: list(table.values()) for place, table in tables.items()}


def _command(row: dict[str, str], settings: Sequence[str]) -> str:
    """As it would be typed for the first seed."""
    words = ["osiris", "train", "--method", row["method"], "--benchmark", row["benchmark"], "--preset", row["preset"]]
    for setting in settings:
        name, _, value = setting.partition("=")
        words += [f"--{name.replace('_', '-')}", value]
    return shlex.join([*words, "--seed", row["seed"]])


def of_paper() -> dict[Place, list[Entry]]:
    """The published numbers."""
    said = f"as published: {published.published_settings()}"
    tables = {}
    for protocol in published.protocols():
        for benchmark in published.benchmarks():
            entries = [
                Entry(name, samples=dict(samples), seeds=3, checked="paper", command=_paper_command(benchmark, name))
                for name, samples in published.published(benchmark, protocol).items()
            ]
            tables[benchmark, protocol, "paper", said] = entries
    return tables


def _paper_command(benchmark: str, method: str) -> str:
    return shlex.join(["osiris", "train", "--method", method, "--benchmark", benchmark, "--preset", "paper"])


def board_tables(parts: Iterable[dict[Place, list[Entry]]]) -> list[Table]:
    """One table for each place, those of one benchmark together."""
    places: dict[Place, list[Entry]] = {}
    for part in parts:
        for place, entries in part.items():
            places.setdefault(place, []).extend(entries)
    order = [*PROTOCOLS]
    names = sorted(places, key=lambda place: (place[0], order.index(place[1]), place[2] == "paper", place[3]))  # pyright: ignore
    return [_table(place, places[place]) for place in names]


def _table(place: Place, entries: list[Entry]) -> Table:
    benchmark, protocol, _, said = place
    rows = [(entry.method, *entry.row()) for entry in entries]
    rows.sort(key=lambda row: (-row[1]["A"].mean if "A" in row[1] else 0.0, order_of(row[0])))
    columns = [Column(name, "lower" if name == "F" else "higher") for name in METRICS]
    marks = {}
    for column in columns:
        ranked = [column.name in samples and not _is_reference(name) for name, samples, _ in rows]
        values = [row[1][column.name].mean if one else None for row, one in zip(rows, ranked)]
        marks[column.name] = mark(values, column.better == "higher")
    cells = []
    for at, (name, samples, others) in enumerate(rows):
        numbers = [
            Number(samples[one].mean, samples[one].deviation, marks[one][at]) if one in samples else Number(None)
            for one in METRICS
        ]
        cells.append((name, *numbers, *others))
    used = {one for row in cells for one in row[-2:-1]}
    notes = [f"{name}: {WORDS[name]}" for name in WORDS if name in used]
    names = ("method", *columns, "seeds", "images (1,000)", "minutes", "memory", "checked", "command of one seed")
    kept = [at for at in range(len(names)) if any(_says(row[at]) for row in cells)]
    title = f"{benchmark}, {instrument(protocol)} ({said})"
    return Table.of(title, [names[at] for at in kept], [tuple(row[at] for at in kept) for row in cells], *notes)


def _is_reference(method: str) -> bool:
    """Not continual learning, and not ranked."""
    return base_name(method).split("/")[0] in published.REFERENCES


def _says(cell: str | Number) -> bool:
    return bool(cell) if isinstance(cell, str) else cell.mean is not None


def board_page(tables: Sequence[Table], title: str, form: str) -> str:
    """All tables as Markdown, or as one HTML page that loads nothing."""
    about = (
        "Percent, mean ± sample deviation over seeds. Rows of different tables cannot be compared: other images, "
        "another protocol, k or bank. Images: training images seen, with repetitions. Minutes: of the run, with its "
        "evaluations, on its own machine. Memory: images kept."
    )
    if form == "md":
        return "\n".join([f"# {title}", "", about, "", *(table.markdown() for table in tables)])
    blocks = [
        render_template(
            "table.html",
            table=table,
            name=f"{at}-{safe_name(table.title)}",
            files={"csv": table.csv(), "md": table.markdown()},
        )
        for at, table in enumerate(tables)
    ]
    return str(
        render_template(
            "board.html",
            title=title,
            about=about,
            blocks=blocks,
            light=theme(dark=False),
            dark=theme(dark=True),
            version=osiris.__version__,
        )
    )
