"""Which figures and tables stand on the page, and in which order."""

from __future__ import annotations

import html
from collections.abc import Sequence

from osiris.console import Ticker
from osiris.report import image_figures, study_tables, training_figures
from osiris.report.book import Book, Section
from osiris.report.images import find_images
from osiris.report.material import Study

LETTERS = {
    "A": "overall accuracy: the mean over all tasks of the final model's accuracy",
    "F": "forgetting: how far the accuracy on earlier tasks has fallen from its best (lower is better)",
    "K": "knowledge gain: what learning a task adds to the accuracy on it",
    "C": "cross-task consolidation: how well a KNN tells which task an image is from",
    "T": "forward transfer: accuracy on a task before it is learned, above the untrained encoder's",
}


def study_sections(book: Book, study: Study, ticker: Ticker) -> list[Section]:
    """All that the runs of a study allow."""
    makers = (results, training, tasks, data)
    sections = []
    for make in makers:
        sections += make(book, study)
        ticker.advance()
    return sections


def _section(study: Study, name: str, title: str, short: str, intro: str, blocks: list[str]) -> list[Section]:
    return [Section(f"{study.identifier}-{name}", title, short, intro, blocks)] if blocks else []


def results(book: Book, study: Study) -> list[Section]:
    if not study.labelled or not study.protocols:
        book.lacks(f"{study.benchmark}: {study.metrics.get('missing', 'the images have no labels')}.")
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


def training(book: Book, study: Study) -> list[Section]:
    blocks: list[str] = []
    if study.labelled and study.protocols:
        blocks += book.figure(training_figures.accuracy_through_training(study))
        if study.continual:
            blocks += book.figure(training_figures.trade_off(study, study.protocols[0]))
    blocks += book.figure(training_figures.loss_terms(study))
    intro = "What happens on the way: every vertical position is measured with the encoder as it was at that moment."
    return _section(study, "training", "Through training", "Training", intro, blocks)


def tasks(book: Book, study: Study) -> list[Section]:
    if not study.labelled or not study.continual:
        return []
    blocks = []
    for protocol in study.protocols:
        blocks += book.figure(training_figures.accuracy_matrices(study, protocol))
    blocks += book.figure(training_figures.every_task(study, study.protocols[0]))
    return _section(study, "tasks", "Task by task", "Tasks", "", blocks)


def data(book: Book, study: Study) -> list[Section]:
    source = find_images(study)
    if source.benchmark is None:
        book.lacks(f"{study.benchmark}: {source.reason}.")
        return []
    blocks = book.figure(image_figures.task_sheets(study, source)) + book.figure(image_figures.views(study, source))
    blocks += book.figure(image_figures.memory_sheets(study, source))
    return _section(study, "data", "The images", "Images", "", blocks)


def claims_section(book: Book, found: Sequence[Study]) -> list[Section]:
    return []


def made_section(book: Book, found: Sequence[Study]) -> Section:
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
