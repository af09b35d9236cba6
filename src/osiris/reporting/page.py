"""`make_report` turns run directories into report.html, with every figure and table as a file beside it.

The first functions say which figures and tables are on the page, and in which order: add a new figure to one of them.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import matplotlib

import osiris
from osiris.console import Ticker, progress, warn
from osiris.errors import UserError
from osiris.files import require_writable, write_text
from osiris.framework.tracing import one_thread
from osiris.reporting import comparison, cost_tables
from osiris.reporting.benchmark_images import StudyImages, find_images
from osiris.reporting.claims_section import claims_section, scale_of
from osiris.reporting.figure import theme
from osiris.reporting.figures import accuracy, episodes, images, representation, training
from osiris.reporting.studies import Study, below_start, seeds_of, studies
from osiris.reporting.style import SETTINGS
from osiris.reporting.writer import Item, ReportWriter, Section, render_template
from osiris.runs.directory import RunDirectory
from osiris.runs.run import load_runs

CHANCE_ADVICE = (
    "the encoder does not tell images apart better than one that gives every image the same embedding. Train for more "
    "epochs, raise the learning rate, or check that the images are not all alike."
)
PAGE, FOLDERS = "report.html", ("figures", "tables")
MARK = '<p class="kicker">osiris report</p>'
"""By this line an earlier report is known."""
USE_THE_START = "Use the start, or a lower --merge or --learning-rate."


def results(writer: ReportWriter, study: Study, source: StudyImages) -> Iterator[Item]:
    """Class-agnostic: the KNN chooses among all classes, so tasks must not overlap. Task-aware: it is told the task and
    chooses among its classes alone. All numbers are percent."""
    if worse := below_start(study.main, study.protocols[0]):
        yield render_template(
            "warning.html", head="Significantly worse than the start:", text=f"{worse}. {USE_THE_START}"
        )
    yield accuracy.overview(study)
    for protocol in study.protocols:
        yield protocol, comparison.main_table(study, protocol)
    yield render_template("letters.html", start=any(run.metrics.start is not None for run in study.main))


def unlabelled_results(writer: ReportWriter, study: Study, source: StudyImages) -> Iterator[Item]:
    """These images have no labels, so there is no accuracy. What the features show without labels is below."""
    yield episodes.told_apart(study)
    if source.benchmark is not None:
        yield images.nearest_images(study, source.benchmark)
    writer.lacks(f"{study.benchmark}: {study.metrics.missing or 'the images have no labels'}.")
    lost = [(run.label, study.task_title(task)) for run in study.runs for task in run.metrics.lost]
    for label, task in lost:
        writer.lacks(f"{label}, evaluation after {task}: it was damaged or missing when its images were gone.")


def observations(writer: ReportWriter, study: Study, source: StudyImages) -> Iterator[Item]:
    """Measured after each episode, on labelled images if there are any and on images that were learned."""
    if not episodes.states(study):
        return
    if worse := episodes.below_start_on_reference(study):
        yield render_template(
            "warning.html", head="Significantly worse than the start:", text=f"{worse}. {USE_THE_START}"
        )
    yield episodes.reference_accuracy(study)
    yield episodes.memory_movement(study)
    yield episodes.memory_neighbours(study)
    yield episodes.memory_images(study)
    if not any(run.observations.reference for run in study.runs):
        writer.lacks(f"{study.benchmark}, accuracy: labelled images, given by osiris observe --reference FOLDER.")
    if not (writer.out.parent / "map.html").is_file():
        writer.lacks(
            f"{study.benchmark}, a map of all images: osiris map STATE FOLDER, with --out map.html beside this page."
        )


def course(writer: ReportWriter, study: Study, source: StudyImages) -> Iterator[Item]:
    """Every point is measured with the encoder of that moment."""
    stuck = [run.label for run in study.main if run.steps_logged and training.at_chance(run)]
    if stuck:
        head = f"The loss of {', '.join(dict.fromkeys(stuck))} ended at chance:"
        yield render_template("warning.html", head=head, text=CHANCE_ADVICE)
    if study.protocols:
        yield accuracy.through_training(study)
        yield accuracy.trade_off(study)
    yield training.loss_terms(study)
    yield training.health_curves(study)


def tasks(writer: ReportWriter, study: Study, source: StudyImages) -> Iterator[Item]:
    for protocol in study.protocols:
        yield accuracy.matrices(study, protocol)
    if study.protocols:
        yield accuracy.every_task(study)
    if study.protocols and source.benchmark is not None:
        yield images.nearest_images(study, source.benchmark)


def ablations(writer: ReportWriter, study: Study, source: StudyImages) -> Iterator[Item]:
    if not study.protocols:
        return
    tables = {protocol: comparison.ablation_table(study, protocol) for protocol in study.protocols}
    bars = accuracy.normalisations(study)
    for protocol, table in tables.items():
        yield f"ablation-{protocol}", table
    if not any(tables.values()):
        parts = "osiris-d/shared-space, osiris-d/no-cross, osiris-d/no-past"
        writer.lacks(f"{study.benchmark}, ablation: runs of {parts}.")
    yield "environments", comparison.environment_table(study)
    yield bars
    if bars is None:
        runs = "runs of ft, cassle, lump, d1-only with --family resnet, --norm gn and --norm bn"
        writer.lacks(f"{study.benchmark}, BatchNorm against GroupNorm: {runs}.")


def memory_figures(writer: ReportWriter, study: Study, source: StudyImages) -> Iterator[Item]:
    if any(run.continual and run.uses_memory and not run.overfitting_logged for run in study.main):
        writer.lacks(f"{study.benchmark}, overfitting to the memory: runs with --track-overfitting N.")
    yield images.overfitting_curves(study)
    yield images.memory_shares(study)


def geometry(writer: ReportWriter, study: Study, source: StudyImages) -> Iterator[Item]:
    yield representation.similarity_matrices(study)
    yield representation.distributions(study)
    yield representation.feature_maps(study)
    yield accuracy.recall_matrices(study)


def costs(writer: ReportWriter, study: Study, source: StudyImages) -> Iterator[Item]:
    other = study.metrics.fingerprint.encoder.get("encoder")
    if other is not None:
        writer.lacks(
            f"{study.benchmark}: what methods store is not available for the encoder {other}, because it is counted "
            "for the encoders of osiris alone."
        )
    if study.protocols:
        sizes = cost_tables.storage_sizes(study)
        yield accuracy.storage(study, sizes)
        yield "cost", cost_tables.run_cost_table(study, sizes, study.protocols[0])


def data(writer: ReportWriter, study: Study, source: StudyImages) -> Iterator[Item]:
    if source.benchmark is not None:
        yield images.task_sheets(study, source.benchmark)
        yield images.views(study, source.benchmark)


SECTIONS = (
    ("results", "Results", "Results", results),
    ("observed", "Episode by episode", "Episodes", observations),
    ("training", "Through training", "Training", course),
    ("tasks", "Task by task", "Tasks", tasks),
    ("components", "Components", "Components", ablations),
    ("memory", "The memory", "Memory", memory_figures),
    ("geometry", "The representation", "Representation", geometry),
    ("costs", "What it costs", "Cost", costs),
    ("data", "The images", "Images", data),
)
"""(identifier, title, title in the contents, its figures and tables). The docstring of a function introduces its
section on the page."""


def study_sections(writer: ReportWriter, study: Study, ticker: Ticker) -> list[Section]:
    """The sections of a study for which its runs have the data."""
    source = find_images(study)
    if source.benchmark is None:
        writer.lacks(f"{study.benchmark}: {source.reason}.")
    sections = []
    for name, title, short, make in SECTIONS:
        make = unlabelled_results if make is results and not study.protocols else make
        blocks = writer.blocks(study, make(writer, study, source))
        if blocks:
            intro = " ".join((make.__doc__ or "").split())
            sections.append(Section(f"section-{study.identifier}-{name}", title, short, intro, blocks))
        ticker.advance()
    return sections


def commands_section(writer: ReportWriter, studies: Sequence[Study]) -> Section:
    """Every command, the machines, and what other runs would add."""
    runs = sorted((run for study in studies for run in study.runs), key=lambda run: run.number)
    names = ("osiris", "torch", "python", "processor", "cores", "device")
    first_starts = [run.environment[0] for run in runs if run.environment]
    machines = [" · ".join(f"{name} {entry.get(name, '?')}" for name in names) for entry in first_starts]
    commands = render_template(
        "commands.html", runs=runs, machines=list(dict.fromkeys(machines)), missing=writer.missing
    )
    intro = "The command of every run, by the number that figures refer to. "
    if all(run.repeatable for run in runs):
        intro += "The same command gives the same numbers; a state of `osiris observe` needs its folders in the same "
        intro += "order, one call each."
    else:
        intro += "Some were made in Python, or their environment.json is missing: what made them is not known in full, "
        intro += "so this page does not say that they can be repeated. For the others, the same command gives the same "
        intro += "numbers."
    return Section("made", "How this was made", "Commands", intro, [commands])


def make_report(run_paths: list[Path], out: Path, title: str | None = None) -> Path:
    """Write OUT/report.html, OUT/figures and OUT/tables from finished runs; returns the path of the page.

    Damaged runs are named and left out.
    """
    _check_place(out)
    runs = [run for run in load_runs(run_paths) if run.metrics.complete]
    if not runs:
        raise UserError("none of these runs has finished; a report needs at least one.")
    known, damaged = studies(runs)
    for line in damaged:
        warn(line)
    if not known:
        raise UserError(f"none of these runs can be read: {damaged[0]}")
    title = title or f"Continual learning on {' and '.join(sorted({study.benchmark for study in known}))}"
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".report-", dir=out) as new:
        with one_thread(), matplotlib.rc_context(fname=SETTINGS):
            sections = _sections(known, ReportWriter(Path(new)))
        html = render_template(
            "page.html",
            title=title,
            light=theme(dark=False),
            dark=theme(dark=True),
            studies=known,
            seeds=[seeds_of(study.main) for study in known],
            scales=[scale_of(study) for study in known],
            damaged=damaged,
            sections=sections,
            has_map=(out / "map.html").is_file(),
            version=osiris.__version__,
        )
        write_text(out / PAGE, html)
        for name in FOLDERS:  # those of an earlier report; everything else in the directory stays
            shutil.rmtree(out / name, ignore_errors=True)
            if (Path(new) / name).exists():
                (Path(new) / name).rename(out / name)
    return out / PAGE


def _sections(known: Sequence[Study], writer: ReportWriter) -> list[Section]:
    sections = []
    with progress("report", len(SECTIONS) * len(known) + 1) as ticker:
        for study in known:
            described = study.metrics.fingerprint.encoder
            width, name = described.get("width"), described.get("encoder")
            encoder = f", encoder {name}" if name else f", encoder of width {width}" if width else ""
            heading = study.identifier, f"{study.benchmark}: {study.task_count} tasks{encoder}"
            first, *others = study_sections(writer, study, ticker)
            sections += [replace(first, study=heading) if len(known) > 1 else first, *others]
        if any(study.protocols for study in known):  # the claims are about accuracies
            sections.append(claims_section(writer, known))
        sections.append(commands_section(writer, known))
        ticker.advance()
    return sections


def _check_place(out: Path) -> None:
    """Refuse an output directory that cannot be written, that is a run, that leads elsewhere by a link, or in which a
    report would replace files of others."""
    require_writable(out)
    if RunDirectory(out).metrics.exists() or RunDirectory(out).config.exists():
        raise UserError(f"{out} is a run directory; choose another --out, for example {out / 'report'}.")
    for name in FOLDERS:
        if (out / name).is_symlink():
            raise UserError(f"{out / name} is a link; remove it or choose another --out.")
    page = out / PAGE
    if page.is_file() and MARK in page.read_text(encoding="utf-8", errors="replace"):
        return
    others = [page, *(file for name in FOLDERS for file in (out / name).rglob("*"))]
    for file in (file for file in others if file.is_file()):
        raise UserError(
            f"{file} would be deleted, although {out} has no report.html of osiris: move it, or choose another --out."
        )
