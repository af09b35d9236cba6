"""Which figures and tables stand on the page, and in which order. A new figure is added to one of these lists."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from osiris.console import Ticker
from osiris.report import cost_tables, study_tables
from osiris.report.benchmark_images import Source, find_images
from osiris.report.figures import accuracy, components, images, memory, representation, training, unlabelled
from osiris.report.overfitting import overfitting_points
from osiris.report.studies import Study
from osiris.report.writer import ReportWriter, Section, render

LETTERS = {
    "A": "overall accuracy: the mean over all tasks of the final model's accuracy",
    "F": "forgetting: how far the accuracy on earlier tasks has fallen from its best (lower is better)",
    "K": "knowledge gain: what learning a task adds to the accuracy on it",
    "C": "cross-task consolidation: how well a KNN tells which task an image is from",
    "T": "forward transfer: accuracy on a task before it is learned, above the untrained encoder's",
}


def study_sections(writer: ReportWriter, study: Study, ticker: Ticker) -> list[Section]:
    """Everything that the runs of a study allow."""
    source = find_images(study)
    if source.benchmark is None:
        writer.lacks(f"{study.benchmark}: {source.reason}.")
    sections = []
    for make in SECTIONS:
        section = make(writer, study, source)
        sections += [section] if section.blocks else []
        ticker.advance()
    return sections


def _section(study: Study, name: str, title: str, short: str, blocks: list[Markup], intro: str = "") -> Section:
    return Section(f"section-{study.identifier}-{name}", title, short, intro, blocks)


def results(writer: ReportWriter, study: Study, source: Source) -> Section:
    blocks: list[Markup] = []
    if study.protocols:
        blocks += writer.figure(accuracy.overview(study))
        for protocol in study.protocols:
            blocks += writer.table(study_tables.main_table(study, protocol), f"{study.identifier}-{protocol}")
        blocks.append(render("letters.html", letters=LETTERS))
    else:
        blocks += writer.figure(unlabelled.episodes(study))
        blocks += writer.figure(unlabelled.neighbours(study, source))
        writer.lacks(f"{study.benchmark}: {study.metrics.missing or 'the images have no labels'}.")
    intro = (
        "Class-agnostic: the KNN chooses among all classes, so it matters that tasks do not overlap. Task-aware: it is "
        "told the task and chooses among its classes alone. All numbers are percent."
    )
    without = "These images have no labels, so there is no accuracy. What the features show without labels is below."
    return _section(study, "results", "Results", "Results", blocks, intro if study.protocols else without)


def course(writer: ReportWriter, study: Study, source: Source) -> Section:
    blocks: list[Markup] = []
    stuck = [run for run in study.main if run.steps_logged and training.at_chance(run)]
    if stuck:
        blocks.append(render("warning.html", labels=list(dict.fromkeys(run.label for run in stuck))))
    if study.protocols:
        blocks += writer.figure(accuracy.through_training(study))
        blocks += writer.figure(accuracy.method_by_method(study))
        blocks += writer.figure(accuracy.trade_off(study))
    blocks += writer.figure(training.loss_terms(study))
    blocks += writer.figure(training.health(study))
    intro = "Every point is measured with the encoder as it was at that moment."
    return _section(study, "training", "Through training", "Training", blocks, intro)


def tasks(writer: ReportWriter, study: Study, source: Source) -> Section:
    blocks: list[Markup] = []
    if study.protocols:
        for protocol in study.protocols:
            blocks += writer.figure(accuracy.matrices(study, protocol))
        blocks += writer.figure(accuracy.every_task(study))
        blocks += writer.figure(accuracy.forgotten_classes(study, source))
        blocks += writer.figure(images.neighbours(study, source))
    return _section(study, "tasks", "Task by task", "Tasks", blocks)


def ablations(writer: ReportWriter, study: Study, source: Source) -> Section:
    """Ablations, environments, normalisation."""
    blocks: list[Markup] = []
    if not study.protocols:
        return _section(study, "components", "Components", "Components", blocks)
    for protocol in study.protocols:
        blocks += writer.table(study_tables.ablation_table(study, protocol), f"{study.identifier}-ablation-{protocol}")
    if not blocks:
        writer.lacks(
            f"{study.benchmark}, ablation: runs of osiris-d/shared-space, osiris-d/no-cross, osiris-d/no-past."
        )
    blocks += writer.table(study_tables.environment_table(study), f"{study.identifier}-environments")
    bars = writer.figure(components.normalisations(study))
    if not bars:
        writer.lacks(
            f"{study.benchmark}, BatchNorm against GroupNorm: runs of ft, cassle, lump, d1-only with --norm bn."
        )
    return _section(study, "components", "Components", "Components", blocks + bars)


def memory_section(writer: ReportWriter, study: Study, source: Source) -> Section:
    """Overfitting to the memory, and what it holds."""
    measured, missing = overfitting_points(study, source, writer.out / ".cache", writer.slow)
    writer.measured[study.identifier] = measured
    if missing:
        writer.lacks(f"{study.benchmark}: {missing}.")
    blocks = writer.figure(memory.overfitting(study, measured))
    blocks += writer.figure(memory.shares(study))
    blocks += writer.figure(memory.images(study, source))
    if not study.labelled:
        blocks += writer.figure(unlabelled.drift(study, source))
    return _section(study, "memory", "The memory", "Memory", blocks)


def geometry(writer: ReportWriter, study: Study, source: Source) -> Section:
    blocks = writer.figure(representation.class_similarity(study))
    blocks += writer.figure(representation.distributions(study))
    blocks += writer.figure(representation.feature_maps(study))
    blocks += writer.figure(representation.class_maps(study, source))
    return _section(study, "geometry", "The representation", "Representation", blocks)


def costs(writer: ReportWriter, study: Study, source: Source) -> Section:
    """Storage and time beside accuracy."""
    blocks: list[Markup] = []
    if study.protocols:
        sizes = cost_tables.storage_sizes(study)
        blocks += writer.figure(components.storage(study, sizes))
        blocks += writer.table(cost_tables.storage_table(study, sizes), f"{study.identifier}-storage-table")
        blocks += writer.table(cost_tables.cost_table(study, study.protocols[0]), f"{study.identifier}-cost")
    return _section(study, "costs", "What it costs", "Cost", blocks)


def data(writer: ReportWriter, study: Study, source: Source) -> Section:
    blocks = writer.figure(images.task_sheets(study, source)) + writer.figure(images.views(study, source))
    if not study.labelled:
        blocks += writer.figure(unlabelled.duplicates(study, source))
    return _section(study, "data", "The images", "Images", blocks)


SECTIONS = (results, course, tasks, ablations, memory_section, geometry, costs, data)
"""Of every study, in the order of the page."""


def commands_section(writer: ReportWriter, studies: Sequence[Study]) -> Section:
    """Every command, the machines, and what other runs would add."""
    runs = sorted((run for study in studies for run in study.runs), key=lambda run: run.number)
    machines = dict.fromkeys(_machine(run.environment[0]) for run in runs if run.environment)
    blocks = [render("commands.html", runs=runs, machines=list(machines), missing=writer.missing)]
    intro = "The command of every run, by the number that figures refer to. The same command gives the same numbers."
    return Section("made", "How this was made", "Commands", intro, blocks)


def _machine(entry: dict) -> str:
    names = ("osiris", "torch", "python", "processor", "cores", "device")
    return " · ".join(f"{name} {entry.get(name, '?')}" for name in names)
