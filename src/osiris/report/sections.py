"""Which figures and tables stand on the page, and in which order."""

from __future__ import annotations

import html
from collections.abc import Sequence

from osiris.console import Ticker
from osiris.report import cost_tables, overfitting, study_tables
from osiris.report.figures import analysis_figures, geometry_figures, image_figures, training_figures
from osiris.report.images import Source, find_images
from osiris.report.studies import Study
from osiris.report.writer import ReportWriter, Section

LETTERS = {
    "A": "overall accuracy: the mean over all tasks of the final model's accuracy",
    "F": "forgetting: how far the accuracy on earlier tasks has fallen from its best (lower is better)",
    "K": "knowledge gain: what learning a task adds to the accuracy on it",
    "C": "cross-task consolidation: how well a KNN tells which task an image is from",
    "T": "forward transfer: accuracy on a task before it is learned, above the untrained encoder's",
}


def study_sections(book: ReportWriter, study: Study, ticker: Ticker) -> list[Section]:
    """All that the runs of a study allow."""
    source = find_images(study)
    if source.benchmark is None:
        book.lacks(f"{study.benchmark}: {source.reason}.")
    sections = []
    for make in (results, training, tasks, components, memory, geometry, costs, data):
        sections += make(book, study, source)
        ticker.advance()
    return sections


def _section(study: Study, name: str, title: str, short: str, intro: str, blocks: list[str]) -> list[Section]:
    return [Section(f"section-{study.identifier}-{name}", title, short, intro, blocks)] if blocks else []


def results(book: ReportWriter, study: Study, source: Source) -> list[Section]:
    if not study.labelled or not study.protocols:
        book.lacks(f"{study.benchmark}: {study.metrics.missing or 'the images have no labels'}.")
        return []
    blocks = book.figure(training_figures.overview(study))
    for protocol in study.protocols:
        blocks += book.table(study_tables.main_table(study, protocol), f"{study.identifier}-{protocol}")
    terms = "".join(f"<dt>{name}</dt><dd>{html.escape(text)}</dd>" for name, text in LETTERS.items())
    blocks.append(f'<dl class="terms">{terms}</dl>')
    intro = (
        "Class-agnostic: the KNN chooses among all classes, so it matters that tasks do not overlap. Task-aware: it is "
        "told the task and chooses among its classes alone. All numbers are percent."
    )
    return _section(study, "results", "Results", "Results", intro, blocks)


def training(book: ReportWriter, study: Study, source: Source) -> list[Section]:
    blocks: list[str] = []
    if study.labelled and study.protocols:
        blocks += book.figure(training_figures.accuracy_through_training(study))
        if study.continual:
            blocks += book.figure(training_figures.trade_off(study, study.protocols[0]))
    blocks += book.figure(training_figures.loss_terms(study))
    blocks += book.figure(analysis_figures.health(study))
    intro = "What happens on the way: every vertical position is measured with the encoder as it was at that moment."
    return _section(study, "training", "Through training", "Training", intro, blocks)


def tasks(book: ReportWriter, study: Study, source: Source) -> list[Section]:
    if not study.labelled or not study.continual:
        return []
    blocks = []
    for protocol in study.protocols:
        blocks += book.figure(training_figures.accuracy_matrices(study, protocol))
    blocks += book.figure(training_figures.every_task(study, study.protocols[0]))
    blocks += book.figure(analysis_figures.forgotten_classes(study, study.protocols[0], source))
    if source.benchmark is not None:
        blocks += book.figure(image_figures.neighbours(study, source))
    return _section(study, "tasks", "Task by task", "Tasks", "", blocks)


def components(book: ReportWriter, study: Study, source: Source) -> list[Section]:
    """Ablations, environments, normalisation."""
    if not study.labelled or not study.protocols:
        return []
    blocks: list[str] = []
    for protocol in study.protocols:
        blocks += book.table(study_tables.ablation_table(study, protocol), f"{study.identifier}-ablation-{protocol}")
    if not blocks:
        book.lacks(f"{study.benchmark}, ablation: runs of osiris-d/shared-space, osiris-d/no-cross, osiris-d/no-past.")
    blocks += book.table(study_tables.environment_table(study), f"{study.identifier}-environments")
    bars = book.figure(analysis_figures.norm_bars(study, study.protocols[0]))
    if not bars:
        book.lacks(f"{study.benchmark}, BatchNorm against GroupNorm: runs of ft, cassle, lump, d1-only with --norm bn.")
    return _section(study, "components", "Components", "Components", "", blocks + bars)


def memory(book: ReportWriter, study: Study, source: Source) -> list[Section]:
    """Overfitting to the memory, and what it holds."""
    measured, missing = overfitting.overfitting_points(study, source, book.out / ".cache", book.slow)
    book.measured[study.identifier] = measured
    if missing:
        book.lacks(f"{study.benchmark}: {missing}.")
    blocks = book.figure(analysis_figures.overfitting(study, measured))
    blocks += book.figure(analysis_figures.memory_shares(study))
    if source.benchmark is not None:
        blocks += book.figure(image_figures.memory_sheets(study, source))
    return _section(study, "memory", "The memory", "Memory", "", blocks)


def geometry(book: ReportWriter, study: Study, source: Source) -> list[Section]:
    blocks: list[str] = []
    if study.labelled:
        blocks += book.figure(geometry_figures.class_similarity(study))
        blocks += book.figure(geometry_figures.distributions(study))
        blocks += book.figure(geometry_figures.feature_maps(study))
        blocks += book.figure(geometry_figures.class_maps(study))
    return _section(study, "geometry", "The representation", "Representation", "", blocks)


def costs(book: ReportWriter, study: Study, source: Source) -> list[Section]:
    """Storage and time beside accuracy."""
    if not study.labelled or not study.protocols:
        return []
    sizes = cost_tables.storage_sizes(study)
    blocks = book.figure(analysis_figures.storage(study, study.protocols[0], sizes))
    blocks += book.table(cost_tables.storage_table(study, sizes), f"{study.identifier}-storage-table")
    blocks += book.table(cost_tables.cost_table(study, study.protocols[0]), f"{study.identifier}-cost")
    return _section(study, "costs", "What it costs", "Cost", "", blocks)


def data(book: ReportWriter, study: Study, source: Source) -> list[Section]:
    if source.benchmark is None:
        return []
    blocks = book.figure(image_figures.task_sheets(study, source)) + book.figure(image_figures.views(study, source))
    return _section(study, "data", "The images", "Images", "", blocks)


def made_section(book: ReportWriter, found: Sequence[Study]) -> Section:
    """Every command, the machine, and what other runs would add."""
    rows = []
    for study in found:
        for item in study.runs:
            starts = f" (continued {len(item.environment) - 1} times)" if len(item.environment) > 1 else ""
            rows.append((item.number, f"<code>{html.escape(item.command)}</code>{starts}"))
    commands = "".join(f'<li id="run-{number}" value="{number}">{text}</li>' for number, text in sorted(rows))
    blocks = [f'<ol class="commands">{commands}</ol>', _machine(found)]
    if book.missing:
        items = "".join(f"<li>{html.escape(line)}</li>" for line in book.missing)
        blocks.append(f'<h3>What other runs would add</h3><ul class="missing">{items}</ul>')
    intro = "The command of every run, by the number that the figures give. The same command gives the same numbers."
    return Section("made", "How this was made", "Commands", intro, blocks)


def _machine(found: Sequence[Study]) -> str:
    lines = []
    for study in found:
        for item in study.runs:
            for entry in item.environment[:1]:
                parts = (
                    f"osiris {entry.get('osiris', '?')}",
                    f"torch {entry.get('torch', '?')}",
                    f"Python {entry.get('python', '?')}",
                    f"{entry.get('processor', '?')}, {entry.get('cores', '?')} cores",
                    f"device {entry.get('device', '?')}",
                )
                line = " · ".join(parts)
                if line not in lines:
                    lines.append(line)
    return "".join(f'<p class="notes">{html.escape(line)}</p>' for line in lines)
