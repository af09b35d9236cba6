"""A grid of runs as data: methods x benchmarks x settings x seeds, and the directory that holds it."""

from __future__ import annotations

import itertools
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, get_args, get_type_hints

from osiris.errors import UserError, unknown
from osiris.files import read_json, write_json
from osiris.training.config import Config
from osiris.training.presets import preset

Settings = tuple[tuple[str, str], ...]
"""(option of `osiris train` with underscores, value as text): `(("memory_size", "200"),)`"""


@dataclass(frozen=True)
class GridRun:
    """One call of `osiris train`."""

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
    def title(self) -> str:
        return " ".join([self.benchmark, self.method, *(f"{name}={value}" for name, value in self.settings)])

    @property
    def arguments(self) -> list[str]:
        """Of `osiris train`, without --out."""
        arguments = ["--method", self.method, "--benchmark", self.benchmark, "--preset", self.preset]
        arguments += ["--seed", str(self.seed)]
        for option, value in self.settings:
            flag = option.replace("_", "-")
            if value in ("true", "false"):
                arguments.append(f"--{flag}" if value == "true" else f"--no-{flag}")
            else:
                arguments += [f"--{flag}", *value.split()]
        return arguments

    @cached_property
    def config(self) -> Config:
        settings = dict(self.settings)
        config = preset(self.preset, self.benchmark, settings.get("encoder"), settings.get("objective"))
        config = replace(config, seed=self.seed)
        for option, value in (("method", self.method), *self.settings):
            config = config if option == "encoder" else with_option(config, option, value)
        config.check()
        return config


def with_option(config: Config, option: str, text: str) -> Config:
    """The config with one option of `osiris train`, given as text, replaced."""
    import msgspec

    known: list[str] = []
    for section in fields(config):
        part: Any = getattr(config, section.name)
        hints = get_type_hints(type(part)) if is_dataclass(part) else {}
        known += hints
        if option not in hints:
            continue
        hint, value = hints[option], text.split() if " " in text else text
        if Path in (hint, *get_args(hint)):
            value, hint = Path(text), Path
        try:
            converted = value if hint is Path else msgspec.convert(value, hint, strict=False)
        except msgspec.ValidationError as error:
            raise UserError(f"{option}={text}: {error}.") from None
        changed: Any = replace(part, **{option: converted})  # pyright: ignore[reportArgumentType]
        return replace(config, **{section.name: changed})
    raise unknown("setting", option, known)


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
        """Refuse a grid of which a run could not start, before any run starts."""
        from osiris.framework.composition import resolve

        for values, what in ((self.methods, "method"), (self.benchmarks, "benchmark"), (self.seeds, "seed")):
            if not values or len(set(values)) < len(values):
                raise UserError(f"give at least one {what}, each only once.")
        for run in Grid(self.methods, self.benchmarks, self.seeds[:1], self.preset, self.settings).runs():
            resolve(run.config.method)


def read_grids(path: Path) -> list[Grid]:
    """From a TOML file: keys at the top are defaults of every [[grid]]; without [[grid]] the file is one grid."""
    try:
        record = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise UserError(f"cannot read the grid {path}: {error}") from None
    parts = record.pop("grid", [{}])
    return [_from_record(record | part | {"set": record.get("set", {}) | part.get("set", {})}, path) for part in parts]


def _from_record(record: dict[str, Any], path: Path) -> Grid:
    known = ("methods", "benchmarks", "seeds", "preset", "set")
    for name in record:
        if name not in known:
            raise unknown(f"key in {path}", name, known)
    if "methods" not in record:
        raise UserError(f'{path} names no methods; add, for example, methods = ["ft", "osiris-d"].')
    lists = {name: tuple(record[name]) for name in ("methods", "benchmarks", "seeds") if name in record}
    settings = {name: tuple(map(as_text, _as_list(value))) for name, value in record["set"].items()}
    return Grid(**lists, **({"preset": record["preset"]} if "preset" in record else {}), settings=settings)


def as_text(value: object) -> str:
    """A setting as `osiris train` takes it: `200`, `true`, `1 1 1 1`."""
    if isinstance(value, (list, tuple)):
        return " ".join(map(as_text, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _as_list(value: object) -> Sequence[object]:
    return value if isinstance(value, (list, tuple)) else [value]


def parse_settings(texts: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """`memory_size=200,500` (or memory-size) -> {"memory_size": ("200", "500")}"""
    settings = {}
    for text in texts:
        name, equals, values = text.partition("=")
        if not equals or not values:
            raise UserError(
                f"--set {text}: write NAME=VALUE or NAME=VALUE,VALUE, for example --set memory_size=200,500."
            )
        settings[name.strip().replace("-", "_")] = tuple(value.strip() for value in values.split(","))
    return settings


class GridDirectory:
    """GRID/grid.json (the runs), GRID/runs/NAME, GRID/attempts/NAME.jsonl (starts and ends of a run)."""

    def __init__(self, path: Path, runs: Sequence[GridRun] = (), stop_after: int | None = None) -> None:
        """`stop_after`: the tasks after which runs count as finished (a search); all of them by default."""
        self.path, self.runs, self.stop_after = path, list(runs), stop_after

    @staticmethod
    def read(path: Path) -> GridDirectory:
        try:
            records = read_json(path / "grid.json")["runs"]
            return GridDirectory(path, [_run(record) for record in records])
        except FileNotFoundError:
            raise UserError(
                f"{path} is not a grid: it has no grid.json. `osiris sweep --out {path}` makes one."
            ) from None
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(
                f"{path / 'grid.json'} is damaged ({error}); give the command of the sweep again."
            ) from None

    def add(self, runs: Sequence[GridRun]) -> None:
        """Write the plan. Runs that an earlier command put into this grid stay."""
        earlier = GridDirectory.read(self.path).runs if (self.path / "grid.json").exists() else []
        self.runs = list(dict.fromkeys([*earlier, *runs]))
        by_name: dict[str, GridRun] = {}
        for run in self.runs:
            if by_name.setdefault(run.name, run) != run:
                raise UserError(
                    f"two different runs would share the folder {run.name}; use another --out for one of them."
                )
        records = [{item.name: getattr(run, item.name) for item in fields(run)} for run in self.runs]
        try:
            write_json(self.path / "grid.json", {"runs": records})
        except OSError as error:
            raise UserError(f"cannot write to {self.path}: {error.strerror}. Choose another --out.") from None

    def folder(self, run: GridRun) -> Path:
        return self.path / "runs" / run.name

    def finished(self, run: GridRun) -> bool:
        folder = self.folder(run)
        enough = self.stop_after is not None and (folder / "evaluation" / f"task-{self.stop_after:02d}.json").exists()
        return enough or (folder / "metrics.json").exists()


def _run(record: dict[str, Any]) -> GridRun:
    settings = tuple((str(option), str(value)) for option, value in record.pop("settings"))
    return GridRun(**record, settings=settings)
