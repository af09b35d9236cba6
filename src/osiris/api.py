"""The functions of the Python interface; `osiris/__init__.py` lists all public names."""

from __future__ import annotations

import glob
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from torch import nn

from osiris.data.benchmark import Benchmark
from osiris.data.catalogue import is_known
from osiris.errors import UserError
from osiris.evaluation.config import Protocol
from osiris.evaluation.differences import Varying
from osiris.evaluation.scores import Compatibility, Scores
from osiris.framework.methods import Method
from osiris.invocation import recorded
from osiris.models.external import EncoderSource, encoder_name
from osiris.own import named
from osiris.presets import configure
from osiris.reporting.comparison import comparison_table
from osiris.reporting.page import make_report
from osiris.reporting.tables import Table
from osiris.runs.directory import default_out
from osiris.runs.run import Run, load_runs
from osiris.training.evaluating import Request, evaluate_compatibility, evaluate_saved, request_for
from osiris.training.run import Opening
from osiris.training.run import train as train_run

Runs = Sequence[Run | Path | str] | Run | Path | str
"""Runs, run directories, folders that hold some, or patterns such as `runs/*`."""


@recorded("osiris.train")
def train(
    method: str | Method = "osiris-d",
    benchmark: str | Benchmark = "tinyworld",
    *,
    preset: str | None = None,
    seed: int = 0,
    out: str | Path | None = None,
    encoder: EncoderSource | None = None,
    quiet: bool = True,
    new_source: bool = False,
    **options: Any,
) -> Run:
    """Train one method on one benchmark; the same call again resumes an interrupted run or returns a finished one.

    Args:
        method: A name (`osiris list methods`), `module:name`, or a composition of terms, identified by its `name`
            (default: own).
        benchmark: A name (`osiris list benchmarks`, `folder:PATH`, ...) or the result of `benchmark_from`.
        preset: Where the defaults of all options come from (`osiris list presets`). Default: `paper` on a GPU, `fast`
            on a CPU.
        seed: Changes initialisation, augmentation and memory; the order of classes stays fixed.
        out: The run directory. Default: runs/BENCHMARK-METHOD-seedN.
        encoder: A name (`hf:facebook/dinov2-small`, `timm:NAME`, `resnet18`), or an encoder of your own: a module from
            normalised images [B, 3, H, W] to features [B, D], or a function that builds one. Default: the preset's.
        quiet: Do not display progress.
        new_source: Continue a run although the source of your own terms or objective has changed.
        **options: Every option of `osiris train`, with underscores: `epochs=8`, `memory_size=100`, `k=20`, `width=16`.

    Returns:
        The finished run: `run.metrics["class-agnostic"].A`, `run.encoder()`, `run.embed(images)`.
    """
    own = not isinstance(benchmark, str) and not is_known(benchmark.name)
    given: dict[str, Any] = {"method": method}
    if not isinstance(benchmark, str):
        given["image_size"] = None  # its images have a size already
    config = configure(
        benchmark if isinstance(benchmark, str) else benchmark.name,
        preset,
        None if encoder is None else encoder_name(encoder),
        named(given | options | {"seed": seed}),
        len(benchmark.training_indices(0)) if own and not isinstance(benchmark, str) else None,
    )
    folder = Path(out) if out is not None else default_out(config)
    typed = all(one is None or isinstance(one, str) for one in (benchmark, method, encoder))
    typed = typed and not (config.encoder.encoder or "").startswith("own:")
    again = None if typed else "Call osiris.train again with the same arguments to continue."
    opening = Opening(config, folder, quiet, new_source, again)
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
    place = target.path if isinstance(target, Run) else None if target is None else Path(target)
    given = options | ({} if benchmark is None else {"benchmark": benchmark})
    others = {
        name: given.pop(name) for name in ("arch", "prefix", "stem_padding", "device", "threads") if name in given
    }
    return request_for(
        place, named(given), encoder=encoder, baseline=baseline, out=None if out is None else Path(out), **others
    )


def load_run(path: str | Path) -> Run:
    """A finished run from its directory."""
    runs = load_runs([path])
    if len(runs) != 1:
        raise UserError(f"{path} holds {len(runs)} runs; use osiris.load_runs, or name one of them.")
    return runs[0]


def compare(
    runs: Runs,
    protocol: Protocol = "class-agnostic",
    by: Literal["method", "run"] = "method",
    with_paper: bool = False,
    against: str | None = None,
    varying: Varying | None = None,
) -> Table:
    """Finished runs in one table: mean and deviation over seeds, the best and second best marked, and tests.

    `table.text()`, `table.markdown()`, `table.latex()` and `table.csv()` give it as text. Runs that were measured
    under different protocols are refused. The tests compare with the best row, or with the one named `against`;
    `varying` says what its interval and p are about ("seeds", "images" or "both"; default: seeds, if there are two).
    """
    return comparison_table(load_runs(paths_of(runs)), protocol, by, with_paper, against=against, varying=varying)


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
