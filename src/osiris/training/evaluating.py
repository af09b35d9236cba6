"""Evaluate what is saved: the checkpoints of a run, any other encoder, or features that were not learned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import nn

from osiris.config import Config, with_options
from osiris.console import notice, progress
from osiris.conversion import converted
from osiris.data.benchmark import Benchmark
from osiris.data.catalogue import IMAGENET_MEAN, IMAGENET_STD
from osiris.data.config import BenchmarkConfig
from osiris.data.images import ArrayImages
from osiris.data.load import load_benchmark
from osiris.devices import open_device
from osiris.errors import UserError, unknown
from osiris.evaluation.baselines import ENCODERS
from osiris.evaluation.config import ProtocolConfig
from osiris.evaluation.encoder_files import LoadedEncoder, given_encoder, load_checkpoint, load_encoder
from osiris.evaluation.evaluate import check_features, compare_arrays, evaluate_encoder
from osiris.evaluation.features import embed, embed_benchmark
from osiris.evaluation.fingerprint import json_digest, protocol_fingerprint
from osiris.evaluation.own_metrics import Metric
from osiris.evaluation.reference import read_reference, score_reference
from osiris.evaluation.scores import (
    Baseline,
    Compatibility,
    Fingerprint,
    ReferenceScores,
    Scores,
    read_measured,
    read_record,
    write_record,
)
from osiris.evaluation.versions import measure_compatibility
from osiris.files import load_tensors, require_writable
from osiris.models.external import is_public
from osiris.runs.directory import START, RunDirectory, read_config
from osiris.runs.lock import refuse_links_to_elsewhere
from osiris.runs.progress import Progress, consistent, episode_folder
from osiris.runs.records import Baselines, build_metrics, read_metrics, setting_of
from osiris.runs.run import task_name
from osiris.runs.state import digest
from osiris.runs.views import recorded_method
from osiris.training.build import baseline_of


@dataclass(frozen=True)
class Request:
    """What to evaluate: a run or checkpoint (`target`), another `encoder`, or a `baseline`; and on what."""

    target: Path | None = None
    encoder: str | nn.Module | None = None
    baseline: str | None = None
    arch: str | None = None
    prefix: str | None = None
    stem_padding: int | None = None
    """These three describe weights that do not describe themselves."""
    data: BenchmarkConfig = field(default_factory=lambda: BenchmarkConfig(benchmark=""))
    protocol: ProtocolConfig = field(default_factory=ProtocolConfig)
    out: Path | None = None
    device: str = "auto"
    threads: int | None = None


def request_for(target: Path | None, options: Mapping[str, Any], **others: Any) -> Request:
    """A request with options of the data and the protocol, whose defaults are those of the run that `target` is part
    of. The command line and the Python interface make it here."""
    folder = None if target is None else run_folder(target)
    base = Config(data=BenchmarkConfig(benchmark="")) if folder is None else read_config(folder)
    known = {*vars(base.data), *vars(base.evaluation)}
    for name in options:
        if name not in known:
            raise unknown("option", name, [*known, "device", "threads"])
    config = _without_unknown_metrics(with_options(base, options), asked="metrics" in options)
    others.setdefault("threads", config.engine.threads)
    return Request(target, data=config.data, protocol=config.evaluation, **others)


def _without_unknown_metrics(config: Config, asked: bool) -> Config:
    """A metric of the user's own that a run was measured with is measured again only if the user names it again."""
    known = Metric.kinds()
    missing = [name for name in config.evaluation.metrics if name.partition("(")[0] not in known]
    if asked or not missing:
        return config
    notice(f"{', '.join(missing)} is a metric of your own: to measure it too, name it with --metrics module:name.")
    kept = tuple(name for name in config.evaluation.metrics if name not in missing)
    return replace(config, evaluation=replace(config.evaluation, metrics=kept))


@dataclass(frozen=True)
class Evaluated:
    """The numbers of each encoder by name (`start`, `task-01`, ..., `encoder`), and where they are."""

    scores: dict[str, Scores]
    benchmark: str
    fingerprint: str
    out: Path


def evaluate_saved(request: Request) -> Evaluated:
    """Results never overwrite those of a run; what is already in `out` of the same weights, data and protocol is not
    computed again."""
    check(request)
    if request.out is not None:
        require_writable(request.out)
    device = prepare(request)
    encoders = load_encoders(request)
    size = next((encoder.image_size for encoder in encoders.values()), None)
    if isinstance(request.encoder, str) and is_public(request.encoder):
        size = request.data.image_size or size  # the size of pretraining is a default, not a must
    benchmark = load_at_size(size, request.data)
    notice(*benchmark.notices)
    name = request.baseline
    if name is not None:
        encoders = {name: LoadedEncoder(ENCODERS[name](benchmark), {"baseline": name})}
    benchmark, description = normalised_for(next(iter(encoders.values())), benchmark)
    identity = protocol_fingerprint(benchmark, request.protocol, description)
    protocol = request.protocol
    computed = sorted(protocol.measured), protocol.keep_features, *protocol.metrics
    key = json_digest([identity.hash, benchmark.mean, benchmark.std, *computed])
    weights = {name: digest(one.module.state_dict()) for name, one in encoders.items()}
    out = request.out or default_out(request, key, weights)
    require_writable(out)
    scores = {
        name: evaluate_one(name, one, benchmark, protocol, device, out, json_digest([key, weights[name]]))
        for name, one in encoders.items()
    }
    if request.target is not None and name is not None:
        add_baseline(request, name, scores[name])
    elif request.target is not None and request.target.is_dir():
        write_metrics(request, benchmark, scores, identity, out, device)
    return Evaluated(scores, benchmark.name, identity.hash, out)


def evaluate_reference(request: Request, folder: Path) -> dict[str, ReferenceScores]:
    """The KNN of `observe --reference` on labelled images, of each encoder by name."""
    if (request.target is None) == (request.encoder is None) or request.baseline is not None:
        raise UserError("--reference measures a state, run or checkpoint, or --encoder; give one of them.")
    if request.data.benchmark and request.target is None:
        raise UserError("give --reference or --benchmark, not both.")
    device, encoders = prepare(request), load_encoders(request)
    size = request.data.image_size or next(encoder.image_size for encoder in encoders.values())
    if size is None:
        raise UserError("the file does not say the size of its images: give --image-size.")
    reference, scores = read_reference(folder, size), dict[str, ReferenceScores]()
    notice(*reference.notices)
    for name, encoder in encoders.items():
        images, module = ArrayImages(reference.images), encoder.module.eval().to(device)
        features = embed(module, images, encoder.mean or IMAGENET_MEAN, encoder.std or IMAGENET_STD, device).cpu()
        scores[name] = score_reference(reference, lambda _, known=features: known, next(iter(scores.values()), None))
    return scores


def evaluate_compatibility(request: Request) -> tuple[Compatibility, Path]:
    """The encoders after all tasks of a run, each against the later ones: (the numbers, their file). The file is in the
    run if its own data is used, else in `out`. They are computed from the weights at every call."""
    check(request)
    path = _compatibility_file(request)
    require_writable(path.parent)
    device = prepare(request)
    encoders = {name: one for name, one in load_encoders(request).items() if name != "start"}
    expected = [task_name(task) for task in range(len(encoders))]
    if len(encoders) < 2 or list(encoders) != expected:
        raise UserError(
            "compatibility compares the encoders after all tasks, of which there must be two or more: "
            f"{request.target} has the weights of {', '.join(encoders)}."
        )
    first = encoders[expected[0]]
    benchmark, _ = normalised_for(first, load_at_size(first.image_size, request.data))
    notice(*benchmark.notices)
    images = len(benchmark.bank) + (0 if benchmark.test is None else len(benchmark.test))
    versions = []
    for name, encoder in encoders.items():
        with progress(f"embedding with {name}", images) as ticker:
            versions.append(embed_benchmark(encoder.module.to(device), benchmark, device, ticker))
        check_features(versions[-1], benchmark)
    with progress("pairs of encoders", len(versions) * (len(versions) - 1) // 2) as ticker:
        record = measure_compatibility(versions, benchmark, ticker)
    write_record(path, record)
    return record, path


def _compatibility_file(request: Request) -> Path:
    """The file that the numbers are written to."""
    run = request.target
    if run is None or not run.is_dir() or request.baseline is not None:
        raise UserError("--compatibility compares the encoders of a run: give its directory, and no --baseline.")
    if request.out is not None:
        return request.out / RunDirectory(run).compatibility.name
    if not is_data_of(run, request.data):
        raise UserError("this is not the data that the run was evaluated on: give a folder for the numbers with --out.")
    refuse_links_to_elsewhere(run)
    return RunDirectory(run).compatibility


def is_data_of(run: Path, data: BenchmarkConfig) -> bool:
    """Whether this is the data that the run was evaluated on, wherever it is stored."""
    own = read_config(run).data
    return replace(data, data_dir=own.data_dir) == own


def is_sequence_of(run: Path, data: BenchmarkConfig, identity: Fingerprint) -> bool:
    """Whether these are the tasks that the run learned, in their order: otherwise F, K and T mean nothing."""
    own, path = read_config(run).data, RunDirectory(run).metrics
    if path.exists() and read_metrics(path).fingerprint.split == identity.split:
        return True  # the same images and tasks, wherever they are stored
    order = ("benchmark", "class_order", "shuffle_tasks", "label_column", "episode_column")
    return all(getattr(data, name) == getattr(own, name) for name in order)


def prepare(request: Request) -> torch.device:
    if request.threads is not None:
        torch.set_num_threads(request.threads)
    return open_device(request.device)


def run_folder(target: Path) -> Path | None:
    """The run directory of a target; None for a checkpoint that was copied elsewhere."""
    if not target.exists():
        raise UserError(f"{target} does not exist; give a run directory or a checkpoint.")
    if target.is_dir():
        if RunDirectory(target).config.exists():
            return target
        runs = sorted(path.parent for path in target.glob("*/config.json"))
        if runs:
            raise UserError(f"{target} is a folder of {len(runs)} runs; evaluate one of them, such as {runs[0]}.")
        raise UserError(f"{target} is not a run directory: it has no config.json.")
    folder = target.parent.parent.parent
    return folder if RunDirectory(folder).config.exists() else None


def check(request: Request) -> None:
    given = sum(choice is not None for choice in (request.target, request.encoder, request.baseline))
    of_run = (
        request.target is not None
        and request.target.is_dir()
        and request.baseline is not None
        and request.encoder is None
    )
    if given != 1 and not of_run:
        raise UserError("give one of: a run or checkpoint, --encoder, --baseline; see osiris evaluate --help.")
    if not request.data.benchmark and request.target is not None:
        raise UserError(
            "this state learns from one folder at a time: give labelled images with --reference FOLDER, or other data "
            "with --benchmark NAME."
        )
    if not request.data.benchmark:
        raise UserError("choose the data with --benchmark NAME (see osiris list benchmarks).")
    described = (request.arch, request.prefix, request.stem_padding)
    if request.encoder is None and any(value is not None for value in described):
        raise UserError("--arch, --prefix and --stem-padding describe the file of --encoder; leave them out here.")


def load_encoders(request: Request) -> dict[str, LoadedEncoder]:
    """The task checkpoints of a run in order, the one that was named, or the encoder; before any image is loaded."""

    if isinstance(request.encoder, nn.Module):
        return {"encoder": given_encoder(request.encoder)}
    if request.encoder is not None:
        return {"encoder": load_encoder(request.encoder, request.arch, request.prefix, request.stem_padding)}
    if request.target is None or request.baseline is not None:
        return {}
    paths = _checkpoints(request.target) if request.target.is_dir() else {_name_of(request.target): request.target}
    return {name: load_checkpoint(path) for name, path in paths.items()}


def _checkpoints(run: Path) -> dict[str, Path]:
    """The weights of a run by the names of their encoders: `start`, `task-01`, ..."""
    directory = RunDirectory(run)

    def read(progress: Progress | None) -> dict[str, Path]:
        if progress is None:
            return {}
        learned = {task_name(task): episode_folder(directory, progress, task) for task in range(progress.finished)}
        paths = {name: folder.weights for name, folder in learned.items() if folder.weights.exists()}
        return ({"start": directory.start.weights} if progress.start else {}) | paths

    paths = consistent(directory, read)
    if not set(paths) - {"start"}:
        raise UserError(f"{run} has no task checkpoints yet; they are written after each task.")
    return paths


def _name_of(checkpoint: Path) -> str:
    """`task-03` for the weights in the folder of the third episode of a run; otherwise as its file."""
    folder = checkpoint.parent.name
    if run_folder(checkpoint) is None or not folder[:2].isdecimal():
        return checkpoint.stem
    return "start" if folder == START else task_name(int(folder.partition("-")[0]) - 1)


def add_baseline(request: Request, name: str, scores: Scores) -> None:
    """Keep the accuracies in baselines.json of the run, where reports find them, if its own data and protocol gave
    them."""
    run = request.target
    assert run is not None
    own, path = read_config(run).evaluation, RunDirectory(run).baselines
    measured = [(one.k, one.temperature) for one in (own, request.protocol)]
    if not is_data_of(run, request.data) or measured[0] != measured[1]:
        notice(f"{run} has other data or another protocol: its reports will not show these numbers of {name}.")
        return
    before = read_record(path, Baselines).baselines if path.exists() else {}
    accuracies = before[name].protocols if name in before else {}
    accuracies = accuracies | {protocol: one.accuracy for protocol, one in scores.protocols.items()}
    measured = Baseline(protocols=accuracies, task_level=scores.task_level.accuracy)
    write_record(path, Baselines(baselines=before | {name: measured}))


def load_at_size(size: int | None, data: BenchmarkConfig) -> Benchmark:
    """The benchmark with images of the size that the encoder was trained on, if its file says so."""
    if size is not None and data.image_size not in (None, size):
        raise UserError(f"--image-size {data.image_size}: this encoder was trained on images of {size} pixels.")
    benchmark = load_benchmark(data)
    if size is None or benchmark.bank.images.shape[1:] == (size, size):
        return benchmark
    return load_benchmark(converted(vars(data) | {"image_size": size}, BenchmarkConfig))


def normalised_for(encoder: LoadedEncoder, benchmark: Benchmark) -> tuple[Benchmark, dict[str, Any]]:
    """(the benchmark with the encoder's own channel statistics, the encoder's description for the fingerprint)"""
    if encoder.mean is None or encoder.std is None or (encoder.mean, encoder.std) == (benchmark.mean, benchmark.std):
        return benchmark, encoder.description
    pretrained = "encoder" in encoder.description  # whose normalisation follows from its name
    statistics = {} if pretrained else {"mean": list(encoder.mean), "std": list(encoder.std)}
    description = encoder.description | statistics
    return replace(benchmark, mean=encoder.mean, std=encoder.std), description


def evaluate_one(
    name: str,
    encoder: LoadedEncoder,
    benchmark: Benchmark,
    protocol: ProtocolConfig,
    device: torch.device,
    out: Path,
    key: str,
) -> Scores:
    """Numbers of one encoder; taken from `out` if those of this `key` are there. A module
    of the user's own is always evaluated: neither its name nor its weights tell whether its code has changed."""
    path = out / f"{name}.safetensors"
    known = read_measured(path).numbers if path.exists() else None
    if known is not None and known.key is None:
        raise UserError(f"{path} was not written by this version of osiris evaluate: choose another --out.")
    if known is not None and known.key == key and "entry" not in encoder.description:
        return known
    module = encoder.module.to(device)
    total = len(benchmark.bank) + (0 if benchmark.test is None else len(benchmark.test))
    with progress(f"embedding with {name}", total) as ticker:
        evaluation = evaluate_encoder(module, benchmark, protocol, device, ticker)
    assert evaluation is not None
    evaluation = replace(evaluation, numbers=msgspec.structs.replace(evaluation.numbers, key=key))
    evaluation.save(path, keep_features=protocol.keep_features)
    return evaluation.numbers


def write_metrics(
    request: Request,
    benchmark: Benchmark,
    scores: dict[str, Scores],
    identity: Fingerprint,
    out: Path,
    device: torch.device,
) -> None:
    """metrics.json beside the evaluations of a whole run, in the same form as the run's own."""
    assert request.target is not None
    config = replace(read_config(request.target), evaluation=request.protocol)
    (method, learns), start = recorded_method(RunDirectory(request.target)), scores.get("start")
    tasks = [one for name, one in scores.items() if name != "start"]
    in_order = learns == "continual" and is_sequence_of(request.target, request.data, identity)
    continual = in_order and len(tasks) == benchmark.task_count
    baseline = None if start is not None else baseline_of(config, benchmark, device)
    used, last = tasks if continual else tasks[-1:], next(reversed(scores))
    setting = setting_of(benchmark, identity, baseline and baseline.protocols)
    compared = {}
    if start is not None and benchmark.labelled:
        before, after = (load_tensors(out / f"{name}.safetensors")[0] for name in ("start", last))
        compared = {name: compare_arrays(before, after, name, benchmark.task_count) for name in scores[last].protocols}
    metrics = build_metrics(method, setting, config.seed, used, continual, start=start, against_start=compared)
    complete = not in_order or last == task_name(benchmark.task_count - 1)
    write_record(RunDirectory(out).metrics, msgspec.structs.replace(metrics, complete=complete))


def default_out(request: Request, key: str, weights: dict[str, str]) -> Path:
    benchmark = "".join(letter if letter.isalnum() else "-" for letter in request.data.benchmark)
    if request.target is None:
        named = request.encoder if isinstance(request.encoder, str) else "encoder"
        name = request.baseline or f"{Path(named).stem.replace(':', '-')}-{weights['encoder'][:8]}"
        return Path("evaluations") / f"{name}-{benchmark}-{key}"
    return RunDirectory(run_folder(request.target) or request.target.parent).evaluations / f"{benchmark}-{key}"
