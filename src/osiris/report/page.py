"""`make_report` turns run directories into report.html, with every figure and table as a file beside it."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import matplotlib

import osiris
from osiris.console import progress, warn
from osiris.errors import UserError
from osiris.evaluation.runs import load_runs
from osiris.evaluation.statistics import deviation, mean
from osiris.files import require_writable, write_text
from osiris.framework.tracing import one_thread
from osiris.report.claims_section import claims_section, scale_of
from osiris.report.figure import theme
from osiris.report.sections import SECTIONS, commands_section, study_sections
from osiris.report.studies import Study, seeds_of, studies
from osiris.report.style import SETTINGS, UNTRAINED
from osiris.report.tables import Number
from osiris.report.writer import ReportWriter, Section, render


def make_report(run_paths: list[Path], out: Path, title: str | None = None, slow: bool = False) -> Path:
    """Write OUT/report.html, OUT/figures and OUT/tables from finished runs; returns the path of the page.

    Damaged runs are named and left out. `slow`: also make what takes minutes, such as overfitting measured on the
    checkpoints of large encoders.
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
    for name in ("figures", "tables"):  # of an earlier report; everything else in the directory stays
        shutil.rmtree(out / name, ignore_errors=True)
    with one_thread(), matplotlib.rc_context(fname=SETTINGS):
        sections = _sections(known, ReportWriter(out, slow))
    page = out / "report.html"
    title = title or f"Continual learning on {' and '.join(sorted({study.benchmark for study in known}))}"
    write_text(page, _page(title, known, sections, damaged))
    return page


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
    """Refuse an output directory that cannot be written, that is a run, or that leads elsewhere by a link."""
    require_writable(out)
    if (out / "metrics.json").exists() or (out / "config.json").exists():
        raise UserError(f"{out} is a run directory; choose another --out, for example {out / 'report'}.")
    for name in ("figures", "tables", ".cache"):
        if (out / name).is_symlink():
            raise UserError(f"{out / name} is a link; remove it or choose another --out.")


def _page(title: str, known: Sequence[Study], sections: list[Section], damaged: list[str]) -> str:
    cards, note = _cards(known[0])
    return render(
        "page.html",
        title=title,
        light=theme(dark=False),
        dark=theme(dark=True),
        studies=known,
        seeds=[seeds_of(study.main) for study in known],
        scales=[scale_of(study) for study in known],
        cards=cards,
        cards_note=note,
        damaged=damaged,
        sections=sections,
        version=osiris.__version__,
    )


def _cards(study: Study) -> tuple[list[tuple[str, Number]], str]:
    """A of a few methods for the top of the page: the best three, ft, osiris-d and offline; and a note."""
    if not study.protocols:
        return [], ""
    protocol = study.protocols[0]
    values = {label: study.final(label, protocol) for label in study.by_label}
    untrained = study.untrained(protocol)
    numbers = {label: Number(mean(group), deviation(group)) for label, group in values.items()}
    ranked = sorted(numbers, key=lambda label: float("inf") if (a := numbers[label].mean) is None else -a)
    chosen = [label for label in ranked if label in ranked[:3] or label in ("ft", "osiris-d", "offline")]
    cards = [(label, numbers[label]) for label in reversed(chosen)]
    cards = [(UNTRAINED, Number(untrained)), *cards] if untrained is not None else cards
    basis = f"{protocol} KNN, {seeds_of(study.main)}"
    return cards, f"Overall accuracy A after the last task on {study.benchmark}, {basis}."
