"""`osiris evaluate`: the numbers of a run, a checkpoint, any encoder, or a baseline, on any benchmark."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro
from rich.table import Table

from osiris.commands import parse_arguments
from osiris.console import console, notice, progress, say
from osiris.data.config import BenchmarkConfig
from osiris.errors import UserError
from osiris.evaluation.config import ProtocolConfig
from osiris.files import require_writable

if TYPE_CHECKING:
    import torch

    from osiris.data.benchmark import Benchmark
    from osiris.evaluation.encoder_files import LoadedEncoder
    from osiris.evaluation.metrics_file import Fingerprint, Scores


@dataclass(frozen=True)
class Args:
    """Evaluate a run directory, one checkpoint of it, any other encoder, or features that were not learned.

    Without --benchmark and protocol flags a run is evaluated as its own config says. Results never overwrite the run's
    own: they go to --out, and what is already there is not computed again.

    Examples:
      osiris evaluate runs/x --probe
      osiris evaluate runs/x/checkpoints/task-10.safetensors --benchmark structured-cifar100 --k 20
      osiris evaluate --encoder weights.safetensors --arch resnet18 --benchmark split-cifar100-20
      osiris evaluate --encoder my_package.models:load --benchmark tinyworld --k 10
      osiris evaluate runs/x --baseline patches          on the run's data; reports of the run then show it
      osiris evaluate --baseline patches --benchmark split-cifar100-20 --bank-per-class 100 --test-per-class 50 --k 20
    """

    target: Annotated[Path | None, tyro.conf.Positional] = None
    """A run directory or a task checkpoint (.safetensors)."""
    encoder: str | None = None
    """Another encoder: a file of weights, hf:NAME or timm:NAME, or package.module:function returning a module. The
    architecture is read from the metadata of an osiris checkpoint, or from the shapes of other weights."""
    baseline: Literal["pixels", "pixels-centred", "patches"] | None = None
    """KNN without learning: on pixels, on pixels minus the channel means, or on whitened random patches."""
    arch: str | None = None
    """Architecture of the weights (resnet18, resnet34), to make sure that the file holds it."""
    prefix: str | None = None
    """Prefix of the names of the weights, if one file holds several networks."""
    stem_padding: int | None = None
    """Padding of the first convolution, if it is not the usual one."""
    data: BenchmarkConfig = field(default_factory=lambda: BenchmarkConfig(benchmark=""))
    protocol: ProtocolConfig = field(default_factory=ProtocolConfig)
    out: Path | None = None
    """Where the results go; None means RUN/evaluations/PROTOCOL, or evaluations/NAME."""
    device: str = "auto"
    """auto, cpu, cuda, mps."""
    threads: int | None = None
    """CPU threads; they change the last bits. None means those of the run, or all cores."""


def parse(argv: list[str]) -> Args:
    """A run's own config gives the defaults, so that `osiris evaluate RUN` repeats its protocol."""
    default = Args()
    first = bool(argv) and not argv[0].startswith("-")
    target = Path(argv[0]) if first else parse_arguments(Args, argv, "evaluate", default).target
    if target is not None:
        folder = run_folder(target)
        if folder is not None:
            from osiris.training.run_directory import read_config

            config = read_config(folder)
            default = replace(default, data=config.data, protocol=config.evaluation, threads=config.engine.threads)
    return parse_arguments(Args, argv, "evaluate", default)


def run_folder(target: Path) -> Path | None:
    """The run directory of a target; None for a checkpoint that was copied elsewhere."""
    if not target.exists():
        raise UserError(f"{target} does not exist; give a run directory or a checkpoint.")
    if target.is_dir():
        if (target / "config.json").exists():
            return target
        runs = sorted(path.parent for path in target.glob("*/config.json"))
        if runs:
            raise UserError(f"{target} is a folder of {len(runs)} runs; evaluate one of them, such as {runs[0]}.")
        raise UserError(f"{target} is not a run directory: it has no config.json.")
    folder = target.parent.parent
    return folder if (folder / "config.json").exists() else None


def run(args: Args) -> int:
    import torch

    from osiris.evaluation.baselines import ENCODERS
    from osiris.evaluation.encoder_files import LoadedEncoder
    from osiris.evaluation.fingerprint import digest, fingerprint
    from osiris.models.external import is_pretrained
    from osiris.training.devices import choose_device

    check(args)
    if args.out is not None:
        require_writable(args.out)
    if args.threads is not None:
        torch.set_num_threads(args.threads)
    device = choose_device(args.device)
    encoders = load_encoders(args)
    size = next((encoder.image_size for encoder in encoders.values()), None)
    if args.encoder is not None and is_pretrained(args.encoder):
        size = args.data.image_size or size  # the size of pretraining is a default, not a must
    benchmark = load_at_size(size, args.data)
    notice(*benchmark.notices)
    if args.baseline is not None:
        encoders = {args.baseline: LoadedEncoder(ENCODERS[args.baseline](benchmark), {"baseline": args.baseline})}
    benchmark, description = normalised_for(next(iter(encoders.values())), benchmark)
    identity = fingerprint(benchmark, args.protocol, description)
    # What is computed besides the fingerprint's protocol is part of the folder's name, so that nothing stale is read.
    protocol = args.protocol
    request = digest([identity.hash, sorted(protocol.protocols), protocol.probe, protocol.keep_features])
    out = args.out or default_out(args, request)
    require_writable(out)
    scores = [evaluate_one(name, one, benchmark, protocol, device, out) for name, one in encoders.items()]
    if args.target is not None and args.baseline is not None:
        add_baseline(args.target, args.baseline, scores[0])
    elif args.target is not None and args.target.is_dir():
        write_metrics(args, benchmark, scores, identity, out, device)
    console.print(table(list(encoders), scores, benchmark.name))
    say(f"protocol fingerprint {identity.hash}; results in {out}")
    return 0


def check(args: Args) -> None:
    given = sum(choice is not None for choice in (args.target, args.encoder, args.baseline))
    of_run = args.target is not None and args.target.is_dir() and args.baseline is not None and args.encoder is None
    if given != 1 and not of_run:
        raise UserError("give one of: a run or checkpoint, --encoder, --baseline; see osiris evaluate --help.")
    if not args.data.benchmark:
        raise UserError("choose the data with --benchmark NAME (see osiris list benchmarks).")
    described = (args.arch, args.prefix, args.stem_padding)
    if args.encoder is None and any(value is not None for value in described):
        raise UserError("--arch, --prefix and --stem-padding describe the file of --encoder; leave them out here.")


def load_encoders(args: Args) -> dict[str, LoadedEncoder]:
    """The task checkpoints of a run in order, the one that was named, or the encoder; before any image is loaded."""
    from osiris.evaluation.encoder_files import load_checkpoint, load_encoder

    if args.encoder is not None:
        return {"encoder": load_encoder(args.encoder, args.arch, args.prefix, args.stem_padding)}
    if args.target is None or args.baseline is not None:
        return {}
    folder = args.target / "checkpoints"
    paths = sorted(folder.glob("task-*.safetensors")) if args.target.is_dir() else [args.target]
    if not paths:
        raise UserError(f"{args.target} has no task checkpoints yet; they are written after each task.")
    return {path.stem: load_checkpoint(path) for path in paths}


def add_baseline(run: Path, name: str, scores: Scores) -> None:
    """Keep the accuracies in baselines.json of the run, where reports find them."""
    from osiris.evaluation.metrics_file import Baseline, Baselines, read_record, write_record

    path = run / "baselines.json"
    before = read_record(path, Baselines).baselines if path.exists() else {}
    accuracies = {protocol: one.accuracy for protocol, one in scores.protocols.items()}
    measured = Baseline(protocols=accuracies, task_level=scores.task_level.accuracy)
    write_record(path, Baselines(baselines=before | {name: measured}))


def load_at_size(size: int | None, data: BenchmarkConfig) -> Benchmark:
    """With images of the size that the encoder was trained on, if its file says so."""
    from osiris.data.benchmarks import load_benchmark

    if size is not None and data.image_size not in (None, size):
        raise UserError(f"--image-size {data.image_size}: this encoder was trained on images of {size} pixels.")
    benchmark = load_benchmark(data)
    if size is None or benchmark.bank.images.shape[1:] == (size, size):
        return benchmark
    return load_benchmark(replace(data, image_size=size))


def normalised_for(encoder: LoadedEncoder, benchmark: Benchmark) -> tuple[Benchmark, dict[str, Any]]:
    """(the benchmark with the encoder's own channel statistics, the encoder's description for the fingerprint)"""
    if encoder.mean is None or encoder.std is None or (encoder.mean, encoder.std) == (benchmark.mean, benchmark.std):
        return benchmark, encoder.description
    pretrained = "encoder" in encoder.description  # whose normalisation follows from its name
    statistics = {} if pretrained else {"mean": list(encoder.mean), "std": list(encoder.std)}
    description = encoder.description | statistics
    return replace(benchmark, mean=encoder.mean, std=encoder.std), description


def evaluate_one(
    name: str, encoder: LoadedEncoder, benchmark: Benchmark, protocol: ProtocolConfig, device: torch.device, out: Path
) -> Scores:
    """Numbers of one encoder; taken from `out` if they are there (their file is written last)."""
    from osiris.evaluation.evaluate import evaluate_features
    from osiris.evaluation.features import embed_benchmark
    from osiris.evaluation.health import embed_two_views
    from osiris.evaluation.metrics_file import Scores, read_record
    from osiris.training.run_files import write_evaluation

    path = out / f"{name}.json"
    if path.exists():
        return read_record(path, Scores)
    module = encoder.module.to(device)
    total = len(benchmark.bank) + (0 if benchmark.test is None else len(benchmark.test))
    with progress(f"embedding with {name}", total) as ticker:
        features = embed_benchmark(module, benchmark, device, ticker=ticker)
    evaluation = evaluate_features(features, benchmark, protocol, embed_two_views(module, benchmark, device))
    write_evaluation(out, name, features, evaluation, protocol.keep_features)
    return evaluation.numbers


def write_metrics(
    args: Args, benchmark: Benchmark, scores: list[Scores], identity: Fingerprint, out: Path, device: torch.device
) -> None:
    """metrics.json beside the evaluations of a whole run, in the same form as the run's own."""
    from osiris.evaluation.metrics_file import build_metrics, write_record
    from osiris.framework.composition import resolve
    from osiris.training.run_directory import read_config
    from osiris.training.run_files import baseline_of

    assert args.target is not None
    config = replace(read_config(args.target), evaluation=args.protocol)
    method = resolve(config.method)
    continual = method.stream == "continual" and len(scores) == benchmark.task_count
    baseline = baseline_of(config, benchmark, device, out)
    untrained, used = baseline and baseline.protocols, scores if continual else scores[-1:]
    metrics = build_metrics(method.name, benchmark, config.seed, used, untrained, identity, continual)
    write_record(out / "metrics.json", metrics)


def default_out(args: Args, identity: str) -> Path:
    benchmark = "".join(letter if letter.isalnum() else "-" for letter in args.data.benchmark)
    if args.target is None:
        name = args.baseline or Path(args.encoder or "encoder").stem.replace(":", "-")
        return Path("evaluations") / f"{name}-{benchmark}-{identity}"
    return (run_folder(args.target) or args.target.parent) / "evaluations" / f"{benchmark}-{identity}"


def table(names: list[str], scores: list[Scores], benchmark: str) -> Table:

    from osiris.commands import number
    from osiris.evaluation.statistics import mean
    from osiris.training.run_files import headline

    scores_table = Table("encoder", title=f"{benchmark}, percent")
    rows = []
    for entry in scores:
        probes = {f"linear probe ({name})": mean(probe.accuracy) for name, probe in entry.probe.items()}
        rows.append(headline(entry) | probes)
    for column in rows[-1]:
        scores_table.add_column(column, justify="right")
    for name, row in zip(names, rows):
        scores_table.add_row(name, *(number(row[column]) for column in rows[-1]))
    return scores_table
