"""Which figures and tables are on the page, and in which order. Add a new figure to one of these functions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from osiris.console import Ticker
from osiris.report import comparison, cost_tables
from osiris.report.benchmark_images import Source, find_images
from osiris.report.figures import accuracy, images, memory, observed, representation, training, unlabelled
from osiris.report.overfitting import overfitting_points
from osiris.report.studies import Study
from osiris.report.writer import Item, ReportWriter, Section, render


def results(writer: ReportWriter, study: Study, source: Source) -> Iterator[Item]:
    """Class-agnostic: the KNN chooses among all classes, so tasks must not overlap. Task-aware: it is told the task and
    chooses among its classes alone. All numbers are percent."""
    yield accuracy.overview(study)
    for protocol in study.protocols:
        yield protocol, comparison.main_table(study, protocol)
    yield render("letters.html")


def unlabelled_results(writer: ReportWriter, study: Study, source: Source) -> Iterator[Item]:
    """These images have no labels, so there is no accuracy. What the features show without labels is below."""
    yield unlabelled.episodes(study)
    yield unlabelled.neighbours(study, source)
    writer.lacks(f"{study.benchmark}: {study.metrics.missing or 'the images have no labels'}.")


def observations(writer: ReportWriter, study: Study, source: Source) -> Iterator[Item]:
    """Measured after each episode, on labelled images if there are any and on the images of the memory."""
    if not observed.states(study):
        return
    yield observed.reference(study)
    yield observed.movement(study)
    yield observed.memory_neighbours(study)
    yield observed.memory_images(study)
    if not any(run.observations.reference for run in study.runs):
        writer.lacks(f"{study.benchmark}, accuracy: labelled images, given by osiris observe --reference FOLDER.")


def course(writer: ReportWriter, study: Study, source: Source) -> Iterator[Item]:
    """Every point is measured with the encoder of that moment."""
    stuck = [run.label for run in study.main if run.steps_logged and training.at_chance(run)]
    if stuck:
        yield render("warning.html", labels=list(dict.fromkeys(stuck)))
    if study.protocols:
        yield accuracy.through_training(study)
        yield accuracy.method_by_method(study)
        yield accuracy.trade_off(study)
    yield training.loss_terms(study)
    yield training.health(study)


def tasks(writer: ReportWriter, study: Study, source: Source) -> Iterator[Item]:
    for protocol in study.protocols:
        yield accuracy.matrices(study, protocol)
    if study.protocols:
        yield accuracy.every_task(study)
        yield accuracy.forgotten_classes(study, source)
        yield images.neighbours(study, source)


def ablations(writer: ReportWriter, study: Study, source: Source) -> Iterator[Item]:
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
        runs = "runs of ft, cassle, lump, d1-only with --norm bn"
        writer.lacks(f"{study.benchmark}, BatchNorm against GroupNorm: {runs}.")


def memory_figures(writer: ReportWriter, study: Study, source: Source) -> Iterator[Item]:
    measured, missing = overfitting_points(study, source, writer.out / ".cache", writer.slow)
    writer.measured[study.identifier] = measured
    if missing:
        writer.lacks(f"{study.benchmark}: {missing}.")
    yield memory.overfitting(study, measured)
    yield memory.shares(study)
    yield memory.images(study, source)
    if not study.metrics.labelled:
        yield unlabelled.drift(study, source)


def geometry(writer: ReportWriter, study: Study, source: Source) -> Iterator[Item]:
    yield representation.class_similarity(study)
    yield representation.distributions(study)
    yield representation.feature_maps(study)
    yield representation.class_maps(study, source)


def costs(writer: ReportWriter, study: Study, source: Source) -> Iterator[Item]:
    other = study.metrics.fingerprint.encoder.get("encoder")
    if other is not None:
        writer.lacks(
            f"{study.benchmark}: what methods store is not available for the encoder {other}, because it is counted "
            "for the encoders of osiris alone."
        )
    if study.protocols:
        sizes = cost_tables.storage_sizes(study)
        yield accuracy.storage(study, sizes)
        yield "storage-table", cost_tables.storage_table(study, sizes)
        yield "cost", cost_tables.cost_table(study, study.protocols[0])


def data(writer: ReportWriter, study: Study, source: Source) -> Iterator[Item]:
    yield images.task_sheets(study, source)
    yield images.views(study, source)
    if not study.metrics.labelled:
        yield unlabelled.duplicates(study, source)


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
    """Everything that the runs of a study allow."""
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
    commands = render("commands.html", runs=runs, machines=list(dict.fromkeys(machines)), missing=writer.missing)
    intro = "The command of every run, by the number that figures refer to. The same command gives the same numbers."
    return Section("made", "How this was made", "Commands", intro, [commands])
