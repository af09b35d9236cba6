"""Where figures and tables go while a page is made: into files, and into blocks of HTML."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from osiris.files import write_text
from osiris.report import compose, markup
from osiris.report import figure as figures
from osiris.report.figure import Figure
from osiris.report.tables import Table


@dataclass
class Section:
    """A heading with figures and tables under it."""

    identifier: str
    title: str
    short: str
    """In the contents."""
    intro: str = ""
    blocks: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Chapter:
    """The sections of one study; the heading is empty where there is only one."""

    identifier: str
    heading: str
    sections: list[Section]


@dataclass
class ReportWriter:
    """Draws and saves what it is given, and remembers what could not be made."""

    out: Path
    slow: bool = False
    """Also what takes long."""
    measured: dict[str, Any] = field(default_factory=dict)
    """Study -> overfitting to the memory, for the claims."""
    missing: list[str] = field(default_factory=list)
    figures: list[str] = field(default_factory=list)
    tables: list[str] = field(default_factory=list)

    def figure(self, figure: Figure | None) -> list[str]:
        if figure is None:
            return []
        drawn = figures.draw(figure)
        compose.save(drawn, self.out / "figures")
        self.figures.append(figure.name)
        return [markup.figure(drawn, run_links(figure.runs))]

    def table(self, table: Table | None, name: str) -> list[str]:
        if table is None:
            return []
        for ending, text in (("csv", table.csv()), ("md", table.markdown()), ("tex", table.latex())):
            write_text(self.out / "tables" / f"{name}.{ending}", text)
        self.tables.append(name)
        return [markup.table(table, name)]

    def lacks(self, what: str) -> None:
        """One line: what is not on the page, and which run would put it there."""
        if what not in self.missing:
            self.missing.append(what)


def run_links(numbers: Sequence[int]) -> str:
    """`made by commands 1–4, 7`, each a link to the command line."""
    ordered = sorted(set(numbers))
    if not ordered:
        return ""
    stretches: list[list[int]] = []
    for number in ordered:
        if stretches and number == stretches[-1][-1] + 1:
            stretches[-1].append(number)
        else:
            stretches.append([number])
    parts = []
    for stretch in stretches:
        ends = [stretch[0]] if len(stretch) == 1 else [stretch[0], stretch[-1]]
        parts.append(
            ("–" if len(stretch) > 2 else ", ").join(f'<a href="#run-{number}">{number}</a>' for number in ends)
        )
    word = "command" if len(ordered) == 1 else "commands"
    return f"made by {word} {', '.join(parts)}"


def paragraph(text: str, kind: str = "see") -> str:
    return f'<p class="{kind}">{html.escape(text)}</p>'
