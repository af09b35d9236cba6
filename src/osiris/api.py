"""The functions of the Python interface; `osiris/__init__.py` lists all public names."""

from __future__ import annotations

import glob
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from osiris.errors import UserError
from osiris.evaluation.runs import Run, load_runs
from osiris.files import read_json

if TYPE_CHECKING:
    from osiris.data.benchmark import Benchmark
    from osiris.framework.methods import Method
    from osiris.models.external import EncoderSource
    from osiris.report.tables import Table

    Runs = Sequence[Run | Path | str] | Run | Path | str
    """Runs, run directories, folders that hold some, or patterns such as `runs/*`."""


def train(
    method: str | Method = "osiris-d",
    benchmark: str | Benchmark = "tinyworld",
    *,
    preset: str | None = None,
    seed: int = 0,
    out: str | Path | None = None,
    encoder: EncoderSource | None = None,
    quiet: bool = True,
    **options: Any,
) -> Run:
    """Train one method on one benchmark; the same call again resumes an interrupted run or returns a finished one.

    Args:
        method: A name (`osiris list methods`) or a composition of terms, identified by its `name` (default: own).
        benchmark: A name (`osiris list benchmarks`, `folder:PATH`, ...) or the result of `benchmark_from`.
        preset: Where the defaults of all options come from (`osiris list presets`). Default: `paper` on a GPU, `fast`
            on a CPU.
        seed: Changes initialisation, augmentation and memory; the order of classes stays fixed.
        out: The run directory. Default: runs/BENCHMARK-METHOD-seedN.
        encoder: A name (`hf:facebook/dinov2-small`, `timm:NAME`, `resnet18`), or an encoder of your own: a module from
            normalised images [B, 3, H, W] to features [B, D], or a function that builds one. Default: the preset's.
        quiet: Do not display progress.
        **options: Every option of `osiris train`, with underscores: `epochs=8`, `memory_size=100`, `k=20`, `width=16`.

    Returns:
        The finished run: `run.metrics["class-agnostic"].A`, `run.encoder()`, `run.embed(images)`.
    """
    from osiris.commands.train import default_out
    from osiris.data.names import is_known
    from osiris.models.external import encoder_name
    from osiris.training.config import with_options
    from osiris.training.loop import train as train_config
    from osiris.training.presets import choose_preset, for_episodes
    from osiris.training.presets import preset as preset_config

    names: dict[str, Any] = {
        "method": method if isinstance(method, str) else own_name(method),
        "benchmark": benchmark if isinstance(benchmark, str) else benchmark.name,
    }
    if preset is None:
        preset, _ = choose_preset(options.get("device", "auto"))
    name = None if encoder is None else encoder_name(encoder)
    if not isinstance(benchmark, str):
        names["image_size"] = None  # its images have a size already
    own = not isinstance(benchmark, str) and not is_known(benchmark.name)
    defaults = preset_config(preset, "folder:" if own else names["benchmark"], name, options.get("objective"))
    if not isinstance(benchmark, str) and own:
        defaults = for_episodes(defaults, len(benchmark.training_indices(0)))
    config = with_options(defaults, names | options | {"seed": seed})
    folder = Path(out) if out is not None else default_out(config)
    own_method = None if isinstance(method, str) else replace(method, name=names["method"])
    if own_method is not None:
        refuse_another_composition(own_method, folder)
    own_benchmark = None if isinstance(benchmark, str) else benchmark
    metrics = train_config(config, folder, quiet, method=own_method, benchmark=own_benchmark)
    assert metrics is not None, "with several processes, use torchrun and the command line"
    return Run(folder, metrics)


def own_name(method: Method) -> str:
    """The name of a composition in tables and files; it must not pass for a method of the zoo."""
    from osiris.framework.composition import method_to_dict
    from osiris.framework.methods import ZOO

    if method.name in ZOO and method_to_dict(method) != method_to_dict(ZOO[method.name]):
        raise UserError(f"{method.name} is the name of a built-in method; use dataclasses.replace(method, name=...).")
    return method.name or "own"


def refuse_another_composition(method: Method, folder: Path) -> None:
    """Two compositions of one name must not share a run directory."""
    from osiris.framework.composition import method_to_dict

    path = folder / "config.json"
    if path.exists() and read_json(path)["composition"] != method_to_dict(method):
        raise UserError(f"{folder} already holds a run of another method named {method.name!r}. Choose another out.")


def load_run(path: str | Path) -> Run:
    """A finished run from its directory."""
    runs = load_runs([path])
    if len(runs) != 1:
        raise UserError(f"{path} holds {len(runs)} runs; use osiris.load_runs, or name one of them.")
    return runs[0]


def compare(
    runs: Runs,
    protocol: Literal["class-agnostic", "task-aware", "task-aware-masked"] = "class-agnostic",
    by: Literal["method", "run"] = "method",
    with_paper: bool = False,
) -> Table:
    """Finished runs in one table: mean and deviation over seeds, the best and second best marked, and tests.

    `table.text()`, `table.markdown()`, `table.latex()` and `table.csv()` give it as text. Runs that were measured
    under different protocols are refused.
    """
    from osiris.report.comparison import comparison_table

    return comparison_table(load_runs(paths_of(runs)), protocol, by, with_paper)


def report(runs: Runs, out: str | Path = "report", title: str | None = None, slow: bool = False) -> Path:
    """Write report.html with all figures and tables from finished runs; returns the path of the page."""
    from osiris.report.page import make_report

    return make_report(paths_of(runs), Path(out), title, slow)


def paths_of(runs: Runs) -> list[Path]:
    """The paths behind runs, paths and patterns."""
    paths: list[Path] = []
    for item in [runs] if isinstance(runs, Run | Path | str) else runs:
        if isinstance(item, Run):
            paths.append(item.path)
        elif Path(item).exists() or not glob.has_magic(str(item)):
            paths.append(Path(item))
        else:
            matches = sorted(glob.glob(str(item)))  # noqa: PTH207 (Path.glob refuses absolute patterns)
            if not matches:
                raise UserError(f"nothing matches {item}.")
            paths += map(Path, matches)
    return paths
