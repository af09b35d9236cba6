"""A grid of runs as data: methods x benchmarks x settings x seeds, and the directory that holds it."""

from __future__ import annotations

import fcntl
import itertools
import os
import re
import shlex
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from osiris.config import Config, to_dict, typed
from osiris.console import printable, warn
from osiris.data.catalogue import parse_name
from osiris.errors import UserError, unknown
from osiris.evaluation.scores import Scores, read_measured
from osiris.files import flat, read_json, write_json
from osiris.framework.composition import resolve
from osiris.own import MAY_BE_OWN, entries, named
from osiris.presets import configure
from osiris.runs.directory import RunDirectory
from osiris.runs.lock import refuse_links_to_elsewhere
from osiris.runs.progress import episode_folder, read_progress
from osiris.runs.records import RunMetrics, read_metrics

Settings = tuple[tuple[str, str], ...]
"""(option of `osiris train` with underscores, value as text): `(("memory_size", "200"),)`"""
LISTS = {name.rpartition(".")[2] for name, value in flat(to_dict(Config())).items() if isinstance(value, list)}
"""Options that take several values, such as `blocks`."""


@dataclass(frozen=True)
class GridRun:
    """One run of `osiris train`."""

    method: str
    benchmark: str
    seed: int
    preset: str
    settings: Settings = ()

    @property
    def name(self) -> str:
        """The folder of the run. Grids that need the same run share it."""
        settings = [f"{option}-{value}" for option, value in self.settings]
        parts = [self.benchmark, self.method.replace("/", "-"), *settings, self.preset, f"seed{self.seed}"]
        return re.sub(r"[^A-Za-z0-9.+_-]+", "-", "-".join(parts))

    @property
    def settings_text(self) -> str:
        """The settings in one line: `memory_size=200 norm=gn`."""
        return " ".join(f"{option}={value}" for option, value in self.settings)

    @property
    def title(self) -> str:
        """Benchmark, method and settings, safe to print to a terminal."""
        return printable(f"{self.benchmark} {self.method} {self.settings_text}".rstrip())

    @property
    def arguments(self) -> list[str]:
        """Of `osiris train` without --out, as they would be typed."""
        arguments = ["--method", self.method, "--benchmark", self.benchmark, "--preset", self.preset]
        arguments += ["--seed", str(self.seed)]
        for option, value in self.settings:
            flag = option.replace("_", "-")
            if value in ("true", "false"):
                arguments.append(f"--{flag}" if value == "true" else f"--no-{flag}")
            else:
                arguments += [f"--{flag}", *(value.split() if option in LISTS else [value])]
        return arguments

    @property
    def own(self) -> list[str]:
        """Options that a configuration file cannot hold, for the process that trains: what it must import, as the user
        typed it, and where it must log to."""
        named_here = entries({"method": self.method, **dict(self.settings)})
        pairs = [part for option, text in named_here.items() for part in (f"--{option}", text)]
        return pairs + [f"--{name}" for name in ("tensorboard", "wandb") if getattr(self.config.engine, name)]

    @cached_property
    def config(self) -> Config:
        settings = dict(self.settings)
        for name in ("method", "benchmark", "seed", "preset"):
            if name in settings:
                raise UserError(f"{name} cannot be a setting: the grid itself says which ones the runs have.")
        options = {option: text.split() if option in LISTS else text for option, text in settings.items()}
        given = named(typed(options | {"method": self.method, "seed": self.seed}))
        config = configure(self.benchmark, self.preset, given.pop("encoder", None), given)
        config.check()
        return config


@dataclass(frozen=True)
class Grid:
    """Every combination of methods, benchmarks, settings and seeds."""

    methods: tuple[str, ...]
    benchmarks: tuple[str, ...] = ("tinyworld",)
    seeds: tuple[int, ...] = (0, 1, 2)
    preset: str = "fast"
    settings: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Option of `osiris train` -> values"""

    def runs(self) -> list[GridRun]:
        """Seed after seed, so that an interrupted sweep has whole seeds."""
        combinations = list(itertools.product(*([(name, value) for value in v] for name, v in self.settings.items())))
        return [
            GridRun(method, benchmark, seed, self.preset, settings)
            for seed in self.seeds
            for benchmark in self.benchmarks
            for settings in combinations
            for method in self.methods
        ]

    def check(self) -> None:
        """Check every run, so that a mistake is reported before the first run starts."""
        for values, what in ((self.methods, "method"), (self.benchmarks, "benchmark"), (self.seeds, "seed")):
            if not values or len(set(values)) < len(values):
                raise UserError(f"give at least one {what}, each only once.")
        for name, values in self.settings.items():
            if not values:
                raise UserError(f"give at least one value for {name}.")
        for benchmark in self.benchmarks:
            parse_name(benchmark)
        for run in replace(self, seeds=self.seeds[:1]).runs():
            resolve(run.config.method)


def read_grids(path: Path) -> list[Grid]:
    """From a TOML file: keys at the top are defaults of every [[grid]]; without [[grid]] the file is one grid."""
    try:
        record = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:  # ValueError: not UTF-8, or not TOML
        raise UserError(f"cannot read the grid {path}: {error}") from None
    parts = record.pop("grid", [{}])
    if not isinstance(parts, list) or not all(isinstance(part, dict) for part in parts):
        raise UserError(f"{path}: `grid` is not a list of tables; write each one below a line [[grid]].")
    if not all(isinstance(part.get("set", {}), dict) for part in (record, *parts)):
        raise UserError(f"{path}: `set` is not a table; write, for example, set = {{memory_size = [200, 500]}}.")
    return [_from_record(record | part | {"set": record.get("set", {}) | part.get("set", {})}, path) for part in parts]


def _from_record(record: dict[str, Any], path: Path) -> Grid:
    known = ("methods", "benchmarks", "seeds", "preset", "set")
    for name in record:
        if name not in known:
            raise unknown(f"key in {path}", name, known)
    values = {name: value if isinstance(value, list) else [value] for name, value in record["set"].items()}
    settings = {name: tuple(map(as_text, each)) for name, each in values.items()}
    texts = [("method", str(name)) for name in record.get("methods", ())]
    for option, text in [*texts, *((name, text) for name in MAY_BE_OWN for text in settings.get(name, ()))]:
        if entries({option: text}):
            raise UserError(f"{path}: {text} names code, which a file must not. Use --methods and --set.")
    try:
        return msgspec.convert(record | {"settings": settings}, Grid)
    except msgspec.ValidationError as error:
        raise UserError(f'{path}: {error}. Write, for example, methods = ["ft", "osiris-d"].') from None


def as_text(value: object) -> str:
    """A setting as `osiris train` takes it: `200`, `true`, `1 1 1 1`."""
    if isinstance(value, (list, tuple)):
        return " ".join(map(as_text, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def parse_settings(texts: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """`memory_size=200,500` (or memory-size) -> {"memory_size": ("200", "500")}"""
    settings: dict[str, tuple[str, ...]] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        if not equals or not values:
            raise UserError(
                f"--set {text}: write NAME=VALUE or NAME=VALUE,VALUE, for example --set memory_size=200,500."
            )
        name = name.strip().replace("-", "_")
        if name in settings:
            raise UserError(f"--set names {name} twice; write --set {name}=VALUE,VALUE.")
        settings[name] = tuple(value.strip() for value in values.split(","))
    return settings


class GridDirectory:
    """GRID/grid.json (the runs), GRID/configs/NAME.json (what a run is started with), GRID/runs/NAME,
    GRID/attempts/NAME.jsonl (starts and ends of a run)."""

    def __init__(self, path: Path, runs: Sequence[GridRun] = (), stop_after: int | None = None) -> None:
        """`stop_after`: the tasks after which runs count as finished (a search); all of them by default."""
        self.path, self.runs, self.stop_after = path, list(runs), stop_after

    @staticmethod
    def read(path: Path) -> GridDirectory:
        try:
            return GridDirectory(path, msgspec.convert(read_json(path / "grid.json")["runs"], list[GridRun]))
        except FileNotFoundError:
            raise UserError(
                f"{path} is not a grid: it has no grid.json. `osiris sweep --out {path}` makes one."
            ) from None
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            reason = printable(str(error)[:100])
            raise UserError(
                f"{path / 'grid.json'} is damaged ({reason}); the command of the sweep writes it again."
            ) from None

    def add(self, runs: Sequence[GridRun]) -> None:
        """Write the plan. Runs that an earlier command put into this grid stay."""
        refuse_links_to_elsewhere(self.path)
        try:
            with self._alone():
                self.runs = list(dict.fromkeys([*self._earlier(), *runs]))
                self._refuse_shared_folders()
                write_json(self.path / "grid.json", {"runs": [asdict(run) for run in self.runs]})
        except OSError as error:
            raise UserError(f"cannot write to {self.path}: {error.strerror}. Choose another --out.") from None

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Of two sweeps that start at once, one waits for the other, so that the plan has the runs of both."""
        self.path.mkdir(parents=True, exist_ok=True)
        handle = os.open(self.path, os.O_RDONLY)
        try:
            with suppress(OSError):  # a file system without locks
                fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)

    def _refuse_shared_folders(self) -> None:
        by_name: dict[str, GridRun] = {}
        for run in self.runs:
            if by_name.setdefault(run.name, run) != run:
                raise UserError(
                    f"two different runs would share the folder {run.name}; use another --out for one of them."
                )

    def refresh(self) -> None:
        """Take in the runs that other commands have put into this grid in the meantime."""
        self.runs = list(dict.fromkeys([*self.runs, *self._earlier()]))

    def _earlier(self) -> list[GridRun]:
        if not (self.path / "grid.json").exists():
            return []
        try:
            return GridDirectory.read(self.path).runs
        except UserError as error:
            warn(f"{error} Runs of other commands are no longer in the grid; their folders stay in {self.path}/runs.")
            return []

    def write_configs(self, runs: Iterable[GridRun]) -> None:
        """The complete settings of each run, from the grid: whatever the files held before."""
        for run in runs:
            command = shlex.join(["osiris", "train", *run.arguments])
            write_json(self.config(run), {"command": command, "config": to_dict(run.config)})

    def config(self, run: GridRun) -> Path:
        return self.path / "configs" / f"{run.name}.json"

    def folder(self, run: GridRun) -> Path:
        return self.path / "runs" / run.name

    def files(self, run: GridRun) -> RunDirectory:
        return RunDirectory(self.folder(run))

    def finished(self, run: GridRun) -> bool:
        enough = self.stop_after is not None and self.scores(run, self.stop_after) is not None
        return enough or self.metrics(run) is not None

    def metrics(self, run: GridRun) -> RunMetrics | None:
        """None if the run is not finished, or if its metrics.json is damaged: training then writes it again."""
        try:
            return read_metrics(self.files(run).metrics)
        except (UserError, OSError, RecursionError):
            return None

    def scores(self, run: GridRun, tasks: int) -> Scores | None:
        """The scores after this many tasks; None if they are missing or damaged."""
        files = self.files(run)
        try:
            progress = read_progress(files)
            if progress is None or progress.finished < tasks:
                return None
            return read_measured(episode_folder(files, progress, tasks - 1).evaluation).numbers
        except (UserError, OSError, RecursionError):
            return None
