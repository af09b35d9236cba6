"""`osiris list`: methods (Table 1 with measurements), benchmarks, presets."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import tyro

from osiris.commands import parse_arguments
from osiris.data.catalogue import parse_name
from osiris.data.load import describe_benchmarks
from osiris.errors import UserError
from osiris.files import write_text
from osiris.models.config import EncoderConfig, ProjectorConfig
from osiris.presets import PRESETS, preset_config
from osiris.reporting.framework_tables import (
    about_table,
    benchmarks_table,
    cost_table,
    methods_table,
    presets_table,
    storage_table,
)
from osiris.reporting.tables import Table, show

TABLES = Path(__file__).parent / "methods.json"


@dataclass(frozen=True)
class Args:
    """List methods, benchmarks and presets.

    Examples:
      osiris list
      osiris list methods --cost
      osiris list methods --width 16 --blocks 1 1 1 1 --memory-size 60
      osiris list methods --format markdown
      osiris list presets --benchmark tinyworld
    """

    what: tyro.conf.Positional[Literal["all", "methods", "benchmarks", "presets"]] = "all"
    """What to list: all, methods, benchmarks or presets."""
    cost: bool = False
    """For methods: encoder passes for each image of X, counted by running one step of each method."""
    encoder: Annotated[EncoderConfig, tyro.conf.arg(name="")] = field(default_factory=EncoderConfig)
    projector: Annotated[ProjectorConfig, tyro.conf.arg(name="")] = field(default_factory=ProjectorConfig)
    memory_size: int = 500
    """Images in the memory, for the storage of methods."""
    image_size: int = 32
    """Their side in pixels."""
    benchmark: str = "split-cifar100-20"
    """Presets are shown for this one."""
    format: Literal["text", "markdown", "latex", "csv"] = "text"


def list_command(argv: list[str]) -> int:
    args = parse_arguments(Args, argv, "list")
    for flag, value, high in (("memory-size", args.memory_size, 10**9), ("image-size", args.image_size, 10**5)):
        if not 1 <= value <= high:
            raise UserError(f"--{flag} {value} is out of range; use a value from 1 to {high}.")
    parse_name(args.benchmark)
    tables = []
    if args.what in ("all", "methods"):
        tables += methods_tables(args)
    if args.what in ("all", "benchmarks"):
        tables.append(benchmarks_table(describe_benchmarks()))
    if args.what in ("all", "presets"):
        tables.append(presets_table({name: preset_config(name, args.benchmark) for name in PRESETS}))
    for number, table in enumerate(tables):
        if number:
            print()
        show(table, args.format)
    return 0


def methods_tables(args: Args) -> list[Table]:
    """Each method in a line, Table 1, the storage and, with --cost, the cost of methods.

    Measuring them takes seconds and needs torch, so the tables for the default options are part of the package. A test
    measures them again; when it fails because the methods have changed, write_tables() makes them anew.
    """
    usual = replace(args, what="all", cost=False, benchmark="", format="text") == Args(benchmark="")
    tables = msgspec.json.decode(TABLES.read_bytes(), type=list[Table]) if usual else measured_tables(args)
    return tables if args.cost else tables[:3]


def measured_tables(args: Args) -> list[Table]:
    from osiris.paper.table1 import all_facts  # imports torch

    rows = all_facts(args.encoder, args.projector, args.memory_size, args.image_size)
    about = f"width {args.encoder.width}, {args.memory_size} images of {args.image_size}x{args.image_size}"
    return [about_table(rows), methods_table(rows), storage_table(rows, about), cost_table(rows)]


def write_tables() -> None:
    """python -c "from osiris.commands.list import write_tables; write_tables()"."""
    write_text(TABLES, msgspec.json.encode(measured_tables(Args())).decode() + "\n")
