"""Writes the figures and tables of a report into files, and renders their HTML."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from osiris.files import write_text
from osiris.reporting.figure import Figure, inline, save
from osiris.reporting.studies import Study
from osiris.reporting.tables import Number, Table
from osiris.runs.untrusted import safe_name

Item = Figure | tuple[str, Table | None] | Markup | None
"""What a section is made of: a figure, a table with its name, or HTML. None: the runs do not have what it needs."""


@dataclass(frozen=True)
class Section:
    """A heading with figures and tables under it."""

    identifier: str
    title: str
    short: str
    """The title in the contents."""
    intro: str
    blocks: Sequence[str]
    study: tuple[str, str] | None = None
    """In the first section of a study, if there are several: its identifier and heading."""


@dataclass
class ReportWriter:
    """Saves figures and tables below `out`, and collects what is missing."""

    out: Path
    missing: list[str] = field(default_factory=list)
    """One line each: what is missing on the page, and which run would add it."""
    names: set[str] = field(default_factory=set)

    def blocks(self, study: Study, items: Iterable[Item]) -> list[Markup]:
        """The HTML of the items of a section; figures and tables are saved as files too."""
        blocks = []
        for item in items:
            if isinstance(item, Markup):
                blocks.append(item)
            elif isinstance(item, Figure):
                blocks.append(self.figure(item))
            elif item is not None and item[1] is not None:
                blocks.append(self.table(item[1], f"{study.identifier}-{item[0]}"))
        return blocks

    def figure(self, figure: Figure) -> Markup:
        figure.name = self._new_name(figure.name)
        svg = inline(save(figure, self.out / "figures"))
        return render_template("figure.html", figure=figure, svg=svg, stretches=stretches(figure.runs))

    def table(self, table: Table, name: str) -> Markup:
        name = self._new_name(name)
        files = {"csv": table.csv(), "md": table.markdown(), "tex": table.latex()}
        for ending, text in files.items():
            write_text(self.out / "tables" / f"{name}.{ending}", text)
        return render_template("table.html", table=table, name=name, files=files)

    def _new_name(self, wanted: str) -> str:
        """The wanted name, made safe as a file name and different from those already used."""
        name, number = safe_name(wanted), 1
        while name in self.names:
            number += 1
            name = f"{safe_name(wanted)}-{number}"
        self.names.add(name)
        return name

    def lacks(self, line: str) -> None:
        if line not in self.missing:
            self.missing.append(line)


def stretches(numbers: Sequence[int]) -> list[list[int]]:
    """First and last of each sequence of consecutive numbers: [1, 2, 3, 7] -> [[1, 3], [7]]."""
    ordered = enumerate(sorted(set(numbers)))
    groups = [[number for _, number in group] for _, group in groupby(ordered, lambda pair: pair[1] - pair[0])]
    return [group if len(group) == 1 else [group[0], group[-1]] for group in groups]


def render_template(template: str, **context: Any) -> Markup:
    """A template of this package. All values are escaped, unless they are Markup."""
    return Markup(_environment().get_template(template).render(context))


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("osiris.reporting"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.tests["number"] = lambda cell: isinstance(cell, Number)
    return environment
