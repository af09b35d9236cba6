"""`osiris evaluate`: the numbers of a run, a checkpoint, any encoder, or a baseline, on any benchmark."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal

import tyro
from msgspec import Meta
from rich.markup import escape
from rich.table import Table

from osiris.commands import number
from osiris.commands.options import print_help, read_options, refuse_others
from osiris.console import console, printable, say
from osiris.conversion import options_of
from osiris.data.config import BenchmarkConfig
from osiris.errors import UserError
from osiris.evaluation.config import ProtocolConfig
from osiris.evaluation.evaluate import headline
from osiris.evaluation.reference import against
from osiris.evaluation.scores import Compatibility, ReferenceScores, Scores
from osiris.models.external import typed_encoder
from osiris.own import named
from osiris.runs.directory import RunDirectory, read_config
from osiris.runs.records import read_metrics
from osiris.runs.run import task_name
from osiris.training.evaluating import (
    Request,
    evaluate_compatibility,
    evaluate_reference,
    evaluate_saved,
    request_for,
    run_folder,
)


@dataclass(frozen=True)
class Own:
    """Options of the command itself."""

    target: Annotated[Path | None, tyro.conf.Positional] = None
    """A run directory or a task checkpoint (.safetensors)."""
    encoder: str | None = None
    """Another encoder: a file of weights, hf:NAME or timm:NAME, or package.module:function returning a module. The
    architecture is read from the metadata of an osiris checkpoint, or from the shapes of other weights. With a run
    whose encoder is your own: that one."""
    baseline: Literal["pixels", "pixels-centred", "patches"] | None = None
    """KNN without learning: on pixels, on pixels minus the channel means, or on whitened random patches."""
    arch: str | None = None
    """Architecture of the weights (resnet18, resnet34), to make sure that the file holds it."""
    prefix: str | None = None
    """Prefix of the names of the weights, if one file holds several networks."""
    stem_padding: Annotated[int, Meta(ge=0)] | None = None
    """Padding of the first convolution, if it is not the usual one."""
    reference: Path | None = None
    """Instead of a benchmark: a folder of labelled images, one subfolder per class. A KNN predicts the class of each
    from the others."""
    compatibility: bool = False
    """Instead of accuracies: search an index of the encoder after each task with queries of each later one, with its
    vectors as they are and after a linear map. Tables and reports of the run then show the recall."""
    out: Path | None = None
    """Where the results go; None means RUN/evaluations/PROTOCOL, or evaluations/NAME."""
    device: str = "auto"
    """auto, cpu, cuda, mps."""
    threads: Annotated[int, Meta(ge=1, le=4096)] | None = None
    """CPU threads; they change the last bits. None means those of the run, or all cores."""


@dataclass(frozen=True)
class Args(Own):
    """Evaluate a run directory, one checkpoint of it, any other encoder, or features that were not learned.

    Without --benchmark and protocol flags a run is evaluated as its own config says. Results never overwrite the run's
    own: they go to --out, and what is already there is not computed again.

    Examples:
      osiris evaluate runs/x --probe                     a linear probe, too; tables and reports of the run show it
      osiris evaluate runs/x --compatibility             can old vectors be searched with the new encoder?
      osiris evaluate state --reference labelled         KNN on your own labelled images: labelled/CLASS/image.jpg
      osiris evaluate runs/x/episodes/10-10/weights.safetensors --benchmark structured-cifar100 --k 20
      osiris evaluate --encoder weights.safetensors --arch resnet18 --benchmark split-cifar100-20
      osiris evaluate --encoder my_package.models:load --benchmark tinyworld --k 10
      osiris evaluate runs/x --baseline patches          on the run's data; reports of the run then show it
      osiris evaluate --baseline patches --benchmark split-cifar100-20 --bank-per-class 100 --test-per-class 50 --k 20
    """

    data: BenchmarkConfig = field(default_factory=lambda: BenchmarkConfig(benchmark=""))
    protocol: ProtocolConfig = field(default_factory=ProtocolConfig)


MEASURED = tuple(name for kind in (BenchmarkConfig, ProtocolConfig) for name in options_of(kind))
OF_ENCODERS = ("target", "encoder", "arch", "prefix", "stem_padding", "device", "threads")
ALONE = {
    "reference": (*OF_ENCODERS, "reference", "image_size"),
    "compatibility": (*OF_ENCODERS, "compatibility", "out", *options_of(BenchmarkConfig)),
}
"""What a kind of call takes, beside all that the others take."""


def parse(argv: list[str]) -> tuple[Own, Request, frozenset[str]]:
    """A run's own config gives the defaults, so that `osiris evaluate RUN` repeats its protocol."""
    given = read_options(Own, argv, "evaluate", ("target",), MEASURED)
    own = given.own
    others = {name: value for name, value in vars(own).items() if name not in ALONE and value is not None}
    request = request_for(
        own.target, named(given.options), **{name: others[name] for name in others if name != "target"}
    )
    if given.help:
        print_help(Args, "evaluate", Args(**vars(own), data=request.data, protocol=request.protocol))
    return own, request, given.names


def evaluate_command(argv: list[str]) -> int:
    own, request, names = parse(argv)
    if own.target is not None and own.encoder is not None and own.encoder != (name := typed_encoder(own.encoder)):
        run = run_folder(own.target)
        if run is not None and read_config(run).encoder.encoder == name:
            request = replace(request, encoder=None)  # the run's own encoder, which is known now
    if own.compatibility and own.reference is not None:
        raise UserError("give --compatibility or --reference, not both.")
    for kind in [name for name in ALONE if name in names]:
        refuse_others(names, ALONE[kind], f"with --{kind}")
    if own.compatibility:
        measured, path = evaluate_compatibility(request)
        console.print(compatibility_matrix(measured), compatibility_means(measured))
        say(f"results in {path}")
        return 0
    if own.reference is not None:
        console.print(
            reference_table(evaluate_reference(request, own.reference), own.reference, episode_names(request))
        )
        return 0
    done = evaluate_saved(request)
    console.print(table(done.scores, done.benchmark))
    say(f"protocol fingerprint {done.fingerprint}; results in {done.out}")
    return 0


def episode_names(request: Request) -> dict[str, str]:
    """Of a state or run, by the name of their weights: `task-01` -> `2026-11`."""
    run = None if request.target is None else run_folder(request.target)
    path = None if run is None else RunDirectory(run).metrics
    if path is None or not path.exists():
        return {}
    return {task_name(task): name for task, name in enumerate(read_metrics(path).task_names)}


def reference_table(scores: dict[str, ReferenceScores], folder: Path, names: dict[str, str]) -> Table:
    """`names`: of episodes, by the name of their weights."""
    begin, first = next(iter(scores.items()))
    title = f"{folder}: {first.images} images, {len(first.classes)} classes, percent"
    result = Table("encoder", title=escape(printable(title)))
    result.add_column("KNN accuracy", justify="right")
    result.add_column("95% interval", justify="right")
    result.add_column(f"change from {escape(printable(names.get(begin, begin)))}", justify="right")
    result.add_row("chance", number(first.chance), "", "")
    result.add_row("pixels", number(first.pixels), "", "")
    for name, one in scores.items():
        change = "" if one is first else str(against(first, one) or "")
        interval = " to ".join(map(number, one.interval))
        result.add_row(escape(printable(names.get(name, name))), number(one.accuracy), interval, change)
    return result


def compatibility_matrix(measured: Compatibility) -> Table:
    result = Table(
        "task t", title=f"Recall@{measured.k}, raw / mapped: queries after task t, index after task s, percent"
    )
    for task in range(1, len(measured.same_class)):
        result.add_column(f"s = {task}", justify="right")
    for task, rows in enumerate(zip(measured.raw.recall, measured.mapped.recall), 1):
        if task > 1:
            result.add_row(str(task), *(f"{raw:.0f} / {mapped:.0f}" for raw, mapped in zip(*rows)))
    return result


def compatibility_means(measured: Compatibility) -> Table:
    result = Table("index", title=f"Means over all pairs, percent ({measured.conditions})")
    for column in (f"Recall@{measured.k}", f"same class among the {measured.k}"):
        result.add_column(column, justify="right")
    for name, one in (("raw", measured.raw), ("mapped", measured.mapped)):
        result.add_row(name, number(one.mean_recall), number(one.mean_same_class))
    result.add_row("embedded again", "100 by definition", number(measured.mean_same_class))
    return result


def table(scores: dict[str, Scores], benchmark: str) -> Table:
    scores_table = Table("encoder", title=escape(printable(f"{benchmark}, accuracy, percent")))
    rows = [headline(entry) for entry in scores.values()]
    for column in rows[-1]:
        heading = column.removeprefix("accuracy (").removesuffix(")")
        heading = heading.replace("-", "-\n") if len(rows[-1]) > 4 else heading  # for 80 columns
        scores_table.add_column(heading, justify="right")
    for name, row in zip(scores, rows):
        scores_table.add_row(name, *(number(row[column]) for column in rows[-1]))
    return scores_table
