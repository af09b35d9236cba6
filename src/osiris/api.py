"""The functions of the Python interface; `osiris/__init__.py` lists all public names."""

from __future__ import annotations

import glob
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from torch import nn

from osiris.data.benchmark import Benchmark
from osiris.data.catalogue import is_known
from osiris.errors import UserError, unknown
from osiris.evaluation.scores import Compatibility, Scores
from osiris.files import read_json
from osiris.framework.composition import method_to_dict
from osiris.framework.methods import ZOO, Method
from osiris.models.external import EncoderSource, encoder_name
from osiris.presets import configure
from osiris.reporting.comparison import comparison_table
from osiris.reporting.page import make_report
from osiris.reporting.tables import Table
from osiris.runs.directory import RunDirectory, default_out, read_config
from osiris.runs.run import Run, load_runs
from osiris.training.evaluating import Request, evaluate_compatibility, evaluate_saved, run_folder
from osiris.training.run import Opening
from osiris.training.run import train as train_run

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
    own = not isinstance(benchmark, str) and not is_known(benchmark.name)
    given: dict[str, Any] = {"method": method if isinstance(method, str) else own_name(method)}
    if not isinstance(benchmark, str):
        given["image_size"] = None  # its images have a size already
    config = configure(
        benchmark if isinstance(benchmark, str) else benchmark.name,
        preset,
        None if encoder is None else encoder_name(encoder),
        given | options | {"seed": seed},
        len(benchmark.training_indices(0)) if own and not isinstance(benchmark, str) else None,
    )
    folder = Path(out) if out is not None else default_out(config)
    composed = None if isinstance(method, str) else replace(method, name=given["method"])
    if composed is not None:
        refuse_another_composition(composed, folder)
    typed = all(one is None or isinstance(one, str) for one in (benchmark, method, encoder))
    typed = typed and not (config.encoder.encoder or "").startswith("own:")
    again = None if typed else "Call osiris.train again with the same arguments to continue."
    opening = Opening(config, folder, composed, quiet, again=again)
    metrics = train_run(opening, None if isinstance(benchmark, str) else benchmark)
    assert metrics is not None, "with several processes, use torchrun and the command line"
    return Run(folder, metrics)


def evaluate(
    target: str | Path | Run | None = None,
    benchmark: str | None = None,
    *,
    encoder: str | nn.Module | None = None,
    baseline: Literal["pixels", "pixels-centred", "patches"] | None = None,
    out: str | Path | None = None,
    **options: Any,
) -> dict[str, Scores]:
    """The numbers of a run, of one checkpoint, of any encoder, or of features that were not learned.

    Args:
        target: A run, a run directory, or a task checkpoint.
        benchmark: A name (`osiris list benchmarks`, `folder:PATH`, ...). Default: that of the run.
        encoder: Instead of a target: a module from normalised images to features (with attributes `mean` and `std` if
            it has its own normalisation), a file of weights, `hf:NAME`, `timm:NAME` or `package.module:function`.
        baseline: Instead of an encoder: KNN on pixels, or on whitened random patches.
        out: Where the files go. Default: RUN/evaluations/PROTOCOL, or evaluations/NAME.
        **options: Options of `osiris evaluate`, with underscores: `k=20`, `image_size=96`, `probe=True`.

    Returns:
        Name -> its numbers: `start` and `task-01`, `task-02`, ... of a run, or `encoder`;
        `scores["encoder"].protocols["class-agnostic"].accuracy` is a list with one number per task.
    """
    return evaluate_saved(_request(target, benchmark, encoder, baseline, out, options)).scores


def compatibility(
    target: str | Path | Run, benchmark: str | None = None, *, out: str | Path | None = None, **options: Any
) -> Compatibility:
    """How well an index made with the encoder after task s serves queries of the encoder after task t, for all s < t.

    Args:
        target: A run or a run directory, with the weights after every task.
        benchmark: Other images than those of the run; they need `out`.
        out: Where compatibility.json goes. Default: `evaluation` of the run, where tables and reports find it.
        **options: Options of `osiris evaluate`, with underscores: `device="cpu"`, `bank_per_class=100`.

    Returns:
        `raw.recall[t][s]` and `mapped.recall[t][s]` in percent; `mapped.mean_recall` is the mean over all s < t.
    """
    return evaluate_compatibility(_request(target, benchmark, None, None, out, options))[0]


def _request(
    target: str | Path | Run | None,
    benchmark: str | None,
    encoder: str | nn.Module | None,
    baseline: str | None,
    out: str | Path | None,
    options: dict[str, Any],
) -> Request:
    """A run's own config gives the defaults."""
    place = target.path if isinstance(target, Run) else None if target is None else Path(target)
    request = Request(place, encoder, baseline, out=None if out is None else Path(out))
    folder = None if place is None else run_folder(place)
    if folder is not None:
        config = read_config(folder)
        request = replace(request, data=config.data, protocol=config.evaluation, threads=config.engine.threads)
    given = options | ({} if benchmark is None else {"benchmark": benchmark})
    parts: dict[str, Any] = {"data": request.data, "protocol": request.protocol}
    for name, value in given.items():
        section = next((key for key, part in parts.items() if hasattr(part, name)), None)
        if section is not None:
            parts[section] = replace(parts[section], **{name: value})
        elif name in ("arch", "prefix", "stem_padding", "device", "threads"):
            request = replace(request, **{name: value})
        else:
            raise unknown("option", name, [*vars(request.data), *vars(request.protocol), "device", "threads"])
    return replace(request, **parts)


def own_name(method: Method) -> str:
    """The name of a composition in tables and files; it must not pass for a method of the zoo."""
    if method.name in ZOO and method_to_dict(method) != method_to_dict(ZOO[method.name]):
        raise UserError(f"{method.name} is the name of a built-in method; use dataclasses.replace(method, name=...).")
    return method.name or "own"


def refuse_another_composition(method: Method, folder: Path) -> None:
    """Two compositions of one name must not share a run directory."""
    path = RunDirectory(folder).config
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
    against: str | None = None,
) -> Table:
    """Finished runs in one table: mean and deviation over seeds, the best and second best marked, and tests.

    `table.text()`, `table.markdown()`, `table.latex()` and `table.csv()` give it as text. Runs that were measured
    under different protocols are refused. The tests compare with the best row, or with the one named `against`.
    """
    return comparison_table(load_runs(paths_of(runs)), protocol, by, with_paper, against=against)


def report(runs: Runs, out: str | Path = "report", title: str | None = None) -> Path:
    """Write report.html with all figures and tables from finished runs; returns the path of the page."""
    return make_report(paths_of(runs), Path(out), title)


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
