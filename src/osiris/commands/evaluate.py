"""`osiris evaluate`: the numbers of a run, of one checkpoint, or of anybody's encoder, on any benchmark."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from osiris.data.config import BenchmarkConfig
from osiris.errors import UserError
from osiris.evaluation.config import ProtocolConfig

if TYPE_CHECKING:
    import torch
    from torch import nn

    from osiris.data.benchmark import Benchmark
    from osiris.evaluation.metrics_file import Fingerprint, Scores


@dataclass(frozen=True)
class Args:
    """Evaluate a run directory, one checkpoint of it, or a foreign encoder. One pass over the data per checkpoint.

    Without --benchmark and protocol flags a run is evaluated as its own config says. Results never overwrite the run's
    own: they go to --out, and what is already there is not computed again.

    Examples:
      osiris evaluate runs/x --probe
      osiris evaluate runs/x/checkpoints/task-10.safetensors --benchmark structured-cifar100 --k 20
      osiris evaluate --encoder weights.safetensors --arch resnet18 --benchmark split-cifar100-20
      osiris evaluate --encoder my_package.models:load --benchmark tinyworld --k 10
    """

    target: Annotated[Path | None, tyro.conf.Positional] = None
    """A run directory or a task checkpoint (.safetensors)."""
    encoder: str | None = None
    """A foreign encoder: a file of weights, or package.module:function returning a module."""
    arch: str | None = None
    """Architecture of the foreign weights (resnet18); default: read off their shapes."""
    prefix: str | None = None
    """Prefix of the foreign weights' names, where several networks are in one file."""
    stem_padding: int | None = None
    """Padding of the foreign stem, where it is not the usual one."""
    data: BenchmarkConfig = field(default_factory=lambda: BenchmarkConfig(benchmark=""))
    protocol: ProtocolConfig = field(default_factory=ProtocolConfig)
    out: Path | None = None
    """Where the results go (default: RUN/evaluations/PROTOCOL, or evaluations/NAME)."""
    device: str = "auto"
    """auto, cpu, cuda, mps."""
    threads: int | None = None
    """CPU threads (default: as the run had, else all cores); they change the last bits."""


@dataclass(frozen=True)
class Subject:
    """One encoder to evaluate, under the name its results get."""

    name: str
    encoder: nn.Module
    description: dict[str, Any]
    """Part of the protocol fingerprint."""


def parse(argv: list[str]) -> Args:
    """A run's own config gives the defaults, so that `osiris evaluate RUN` repeats its protocol."""
    target = Path(argv[0]) if argv and not argv[0].startswith("-") else None
    default = Args()
    if target is not None:
        folder = target if target.is_dir() else target.parent.parent
        if (folder / "config.json").exists():
            from osiris.training.run_directory import read_config

            config = read_config(folder)
            default = replace(default, data=config.data, protocol=config.evaluation, threads=config.engine.threads)
        elif not target.exists():
            raise UserError(f"{target} does not exist; give a run directory or a checkpoint.")
    cli: type[Args] = tyro.conf.OmitArgPrefixes[Args]  # pyright: ignore[reportAssignmentType]
    return tyro.cli(cli, args=argv, prog="osiris evaluate", description=inspect.getdoc(Args), default=default)


def run(args: Args) -> int:
    import torch

    from osiris.console import console, notice
    from osiris.data.benchmarks import load_benchmark
    from osiris.evaluation.fingerprint import digest, fingerprint
    from osiris.training.engine import choose_device

    if (args.target is None) == (args.encoder is None):
        raise UserError("give either a run or checkpoint, or --encoder; see osiris evaluate --help.")
    if not args.data.benchmark:
        raise UserError("say on which data: --benchmark NAME (osiris list benchmarks).")
    if args.threads is not None:
        torch.set_num_threads(args.threads)
    device = choose_device(args.device)
    benchmark = load_benchmark(args.data)
    for text in benchmark.notices:
        notice(text)
    subjects = [_foreign(args)] if args.encoder is not None else _checkpoints(args)
    identity = fingerprint(benchmark, args.protocol, subjects[0].description)
    # What is computed besides the fingerprint's protocol is part of the folder's name, so that nothing stale is read.
    protocol = args.protocol
    asked = digest([identity.hash, sorted(protocol.protocols), protocol.probe, protocol.keep_features])
    out = args.out or _default_out(args, asked)
    numbers = [evaluate_one(subject, benchmark, args.protocol, device, out) for subject in subjects]
    if args.target is not None and args.target.is_dir():
        _summarise(args, benchmark, numbers, identity, out, device)
    console.print(_table(subjects, numbers, benchmark.name))
    console.print(f"protocol fingerprint {identity.hash}; results in {out}", highlight=False)
    return 0


def evaluate_one(
    subject: Subject, benchmark: Benchmark, protocol: ProtocolConfig, device: torch.device, out: Path
) -> Scores:
    """Numbers of one encoder; taken from `out` when they are there (their file is written last)."""
    from osiris.console import progress
    from osiris.evaluation.evaluate import evaluate_features
    from osiris.evaluation.features import embed_benchmark
    from osiris.evaluation.health import embed_two_views
    from osiris.evaluation.metrics_file import Scores, read_record
    from osiris.training.evaluating import write_evaluation

    path = out / f"{subject.name}.json"
    if path.exists():
        return read_record(path, Scores)
    total = len(benchmark.bank) + (0 if benchmark.test is None else len(benchmark.test))
    with progress(f"embedding with {subject.name}", total) as ticker:
        features = embed_benchmark(subject.encoder.to(device), benchmark, device, ticker=ticker)
    views = embed_two_views(subject.encoder, benchmark, device)
    evaluation = evaluate_features(features, benchmark, protocol, views)
    write_evaluation(out, subject.name, features, evaluation, protocol.keep_features)
    return evaluation.numbers


def _foreign(args: Args) -> Subject:
    from osiris.evaluation.encoder_files import load_foreign

    assert args.encoder is not None
    encoder, description = load_foreign(args.encoder, args.arch, args.prefix, args.stem_padding)
    return Subject("encoder", encoder, description)


def _checkpoints(args: Args) -> list[Subject]:
    """The task checkpoints of a run in order, or the one that was named."""
    from osiris.models import EncoderConfig, build_encoder
    from osiris.training.checkpoint import load_tensors
    from osiris.training.config import from_dict

    assert args.target is not None
    folder = args.target / "checkpoints"
    paths = sorted(folder.glob("task-*.safetensors")) if args.target.is_dir() else [args.target]
    if not paths:
        raise UserError(f"{args.target} has no task checkpoints yet; they are written after each task.")
    subjects = []
    for path in paths:
        tensors, metadata = load_tensors(path)
        if "encoder" not in metadata:
            raise UserError(f"{path} is no osiris checkpoint; for foreign weights use --encoder {path}.")
        encoder = build_encoder(from_dict(metadata["encoder"], EncoderConfig))
        state = {name.removeprefix("encoder."): value for name, value in tensors.items() if name.startswith("encoder.")}
        encoder.load_state_dict(state)
        subjects.append(Subject(path.stem, encoder, metadata["encoder"]))
    return subjects


def _summarise(
    args: Args,
    benchmark: Benchmark,
    numbers: list[Scores],
    identity: Fingerprint,
    out: Path,
    device: torch.device,
) -> None:
    """metrics.json beside the evaluations of a whole run, in the same form as the run's own."""
    from osiris.evaluation.metrics_file import build_metrics, write_record
    from osiris.framework.composition import resolve
    from osiris.training.evaluating import baseline_of
    from osiris.training.run_directory import read_config

    assert args.target is not None
    config = replace(read_config(args.target), evaluation=args.protocol)
    method = resolve(config.method)
    continual = method.stream == "continual" and len(numbers) == benchmark.task_count
    kept = numbers if continual else numbers[-1:]
    baseline = baseline_of(config, benchmark, device)
    untrained = baseline and baseline.protocols
    metrics = build_metrics(method.name, benchmark, config.seed, kept, untrained, identity, continual)
    write_record(out / "metrics.json", metrics)


def _default_out(args: Args, identity: str) -> Path:
    if args.target is None:
        name = Path(args.encoder or "encoder").stem.replace(":", "-")
        return Path("evaluations") / f"{name}-{args.data.benchmark}-{identity}"
    folder = args.target if args.target.is_dir() else args.target.parent.parent
    return folder / "evaluations" / f"{args.data.benchmark}-{identity}"


def _table(subjects: list[Subject], numbers: list[Scores], benchmark: str) -> Any:
    from rich.table import Table

    from osiris.commands.show import number
    from osiris.evaluation.metrics_file import mean_present
    from osiris.training.evaluating import shown

    table = Table(title=f"{benchmark}, percent")
    table.add_column("encoder")
    names = list(shown(numbers[-1]))
    for name in names:
        table.add_column(name, justify="right")
    probes = list(numbers[-1].probe)
    for name in probes:
        table.add_column(f"linear probe ({name})", justify="right")
    for subject, entry in zip(subjects, numbers):
        values = shown(entry)
        cells = [number(values[name]) for name in names]
        cells += [number(mean_present(entry.probe[name].accuracy)) for name in probes]
        table.add_row(subject.name, *cells)
    return table
