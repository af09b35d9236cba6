"""The page: `make_report` turns run directories into report.html, with every figure and table as files beside it."""

from __future__ import annotations

import html
import shutil
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

import osiris
from osiris.console import progress
from osiris.errors import UserError
from osiris.evaluation.runs import load_runs
from osiris.evaluation.statistics import deviation, mean
from osiris.files import write_text
from osiris.framework.tracing import one_thread
from osiris.report import markup, svg
from osiris.report.claims_section import claims_section, scale_of
from osiris.report.sections import made_section, study_sections
from osiris.report.studies import Study, StudyRun, seeds_of, studies
from osiris.report.style import METHODS, order_of, style_of
from osiris.report.tables import Number
from osiris.report.writer import Chapter, ReportWriter


def make_report(run_paths: list[Path], out: Path, title: str | None = None, slow: bool = False) -> Path:
    """Write DIR/report.html, DIR/figures and DIR/tables from finished runs; returns the path of the page.

    `slow`: also what takes minutes, such as overfitting measured on the checkpoints of large encoders.
    """
    runs = [run for run in load_runs(run_paths) if run.complete]
    if not runs:
        raise UserError("none of these runs has finished; a report needs at least one.")
    found = studies(runs)
    _prepare(out)
    with one_thread():
        chapters = _chapters(found, ReportWriter(out, slow))
    page = out / "report.html"
    write_text(page, _page(title or _title(found), found, chapters))
    return page


def _chapters(found: Sequence[Study], book: ReportWriter) -> list[Chapter]:
    chapters = []
    total = sum(STEPS for _ in found) + 1
    with progress("report", total) as ticker:
        for study in found:
            heading = f"{study.benchmark}: {_scale(study)}" if len(found) > 1 else ""
            chapters.append(Chapter(study.identifier, heading, study_sections(book, study, ticker)))
        closing = [*claims_section(book, found), made_section(book, found)]
        chapters.append(Chapter("about", "", closing))
        ticker.advance()
    return chapters


STEPS = 8
"""Ticks of the progress display per study (see `study_sections`)."""


def _prepare(out: Path) -> None:
    """Earlier figures and tables of a report are replaced; anything else in the directory is left alone."""
    if out.exists() and not out.is_dir():
        raise UserError(f"{out} is a file; choose a directory for --out.")
    for name in ("figures", "tables"):
        shutil.rmtree(out / name, ignore_errors=True)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot write to {out}: {error.strerror}. Choose another --out.") from None


def _page(title: str, found: Sequence[Study], chapters: list[Chapter]) -> str:
    from jinja2 import Environment

    folder = files("osiris.report") / "templates"
    css = (folder / "page.css").read_text(encoding="utf-8")
    css = css.replace("/*LIGHT*/", svg.theme_rules(dark=False)).replace("/*DARK*/", svg.theme_rules(dark=True))
    template = Environment(autoescape=False).from_string((folder / "page.html").read_text(encoding="utf-8"))
    heads, note = _heads(found[0])
    return template.render(
        title=html.escape(title),
        css=css,
        lead=_lead(found),
        heads=heads,
        heads_note=note,
        chapters=chapters,
        footer=f"Made by osiris {osiris.__version__} from run directories alone. Nothing on this page refers to "
        "anything outside it.",
    )


def _title(found: Sequence[Study]) -> str:
    names = sorted({study.benchmark for study in found})
    return f"Continual learning on {' and '.join(names)}"


def _scale(study: Study) -> str:
    """`10 tasks, ResNet of width 16`"""
    encoder = study.metrics.fingerprint.encoder
    width = f", encoder of width {encoder['width']}" if "width" in encoder else ""
    return f"{len(study.task_names)} tasks{width}"


def _lead(found: Sequence[Study]) -> str:
    """Who was compared on what, in a sentence or two."""
    sentences = []
    for study in found:
        labels = sorted({item.label for item in study.main}, key=order_of)
        names = ", ".join(f"<b>{html.escape(name)}</b>" for name in labels[:6])
        more = f" and {len(labels) - 6} more" if len(labels) > 6 else ""
        images = f"{study.metrics.fingerprint.train_images:,} training images"
        sentences.append(
            f"{names}{more} on {html.escape(study.benchmark)}: {images} without labels, in "
            f"{len(study.task_names)} tasks seen one after the other ({html.escape(seeds_of(study.main))}). "
            f"<b>Scale:</b> {html.escape(scale_of(study))}"
        )
    return " ".join(sentences)


def _heads(study: Study) -> tuple[list[dict[str, str]], str]:
    """A of a few methods in large figures, for a first look."""
    if not study.labelled or not study.protocols:
        return [], ""
    protocol = study.protocols[0]
    cards = []
    untrained = study.untrained(protocol)
    if untrained is not None:
        cards.append(_card("untrained encoder", METHODS["untrained encoder"], [untrained]))
    ranked = sorted(study.by_label.items(), key=lambda pair: -(mean(_values(pair[1], protocol)) or 0.0))
    chosen = {label for label, _ in ranked[:3]} | ({"ft", "osiris-d", "offline"} & set(study.by_label))
    for label, items in sorted(study.by_label.items(), key=lambda pair: mean(_values(pair[1], protocol)) or 0.0):
        if label in chosen:
            cards.append(_card(label, style_of(label), _values(items, protocol)))
    note = f"Overall accuracy A after the last task on {study.benchmark}, {protocol} KNN, {seeds_of(study.main)}."
    return cards, note


def _values(items: Sequence[StudyRun], protocol: str) -> list[float]:
    return [value for item in items if (value := item.run.values(protocol)["A"]) is not None]


def _card(name: str, style, values: list[float]) -> dict[str, str]:
    number = Number(mean(values), deviation(values))
    return {"name": name, "swatch": markup.swatch(style), "value": number.printed, "spread": number.spread}
