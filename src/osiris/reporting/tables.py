"""Tables of numbers over seeds, rendered as text, Markdown, LaTeX and CSV."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from osiris.console import console, notice
from osiris.errors import unknown
from osiris.evaluation.config import Mark

TableFormat = Literal["text", "markdown", "latex", "csv"]
TABLE_FORMATS: tuple[TableFormat, ...] = ("text", "markdown", "latex", "csv")
SPECIAL = {"\\": r"\textbackslash{}", "±": r"$\pm$", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
ESCAPES = str.maketrans(SPECIAL | {letter: f"\\{letter}" for letter in "&%$#_{}"})
"""Replacements of characters that LaTeX would interpret."""


@dataclass(frozen=True)
class Column:
    name: str
    better: Literal["higher", "lower"] | None = None

    def title(self, up: str = " ↑", down: str = " ↓") -> str:
        return self.name + {"higher": up, "lower": down, None: ""}[self.better]


@dataclass(frozen=True)
class Number:
    """A mean over seeds, its deviation, and its rank in its column. None: the number does not exist."""

    mean: float | None
    deviation: float | None = None
    mark: Mark | None = None
    decimals: int = 1

    @property
    def printed(self) -> str:
        return "-" if self.mean is None else self._fixed(self.mean)

    @property
    def spread(self) -> str:
        return "" if self.deviation is None else self._fixed(self.deviation)

    def _fixed(self, value: float) -> str:
        return f"{round(value, self.decimals) + 0.0:.{self.decimals}f}"  # + 0.0 turns -0.0 into 0.0

    def marked(self, best: str, second: str) -> str:
        """The mean, within `best` or `second` (such as `**{}**`) if it has that rank."""
        return {"best": best, "second": second, None: "{}"}[self.mark].format(self.printed)


Cell = str | Number
Cells = tuple[Cell, ...]


@dataclass(frozen=True)
class Table:
    """Rows of cells under columns. The title names the protocol, because a number means little without it."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[Cells, ...]
    notes: tuple[str, ...] = ()
    rules: frozenset[int] = frozenset()
    """Rows before which a rule is drawn."""

    def __post_init__(self) -> None:
        assert all(len(row) == len(self.columns) for row in self.rows)

    @staticmethod
    def of(title: str, columns: Iterable[str | Column], rows: Iterable[Cells], *notes: str, rules: Iterable[int] = ()):
        """A table whose columns are given by their names, unless one direction is better."""
        named = tuple(Column(column) if isinstance(column, str) else column for column in columns)
        return Table(title, named, tuple(rows), notes, frozenset(rules))

    def _repr_html_(self) -> str:
        """How a notebook shows the table."""
        from osiris.reporting.notebook import table_html  # imports matplotlib

        return table_html(self)

    def render(self, form: TableFormat) -> str:
        if form not in TABLE_FORMATS:
            raise unknown("format", form, TABLE_FORMATS)
        return getattr(self, form)()

    def rich(self) -> RichTable:
        """For a terminal: the best in bold, the second best underlined, and both also marked by a number."""
        table = RichTable(title=Text(self.title), box=box.SIMPLE_HEAD, title_justify="left", caption_justify="left")
        table.caption = Text("\n".join(self._notes("(1) best", "(2) second best")), style="dim")
        for number, column in enumerate(self.columns):
            table.add_column(Text(column.title()), justify="right" if self.numeric(number) else "left")
        for index, row in enumerate(self.rows):
            if index in self.rules:
                table.add_section()
            table.add_row(*map(_rich, row))
        return table

    def text(self) -> str:
        """The same without colours, as wide as it needs to be."""
        output = io.StringIO()
        Console(file=output, width=10_000, no_color=True).print(self.rich())
        return "\n".join(line.rstrip() for line in output.getvalue().splitlines()).strip("\n") + "\n"

    def markdown(self) -> str:
        """The best in bold, the second best in italics."""

        def cell(value: Cell) -> str:
            if isinstance(value, str):
                return _plain(value)
            return value.marked("**{}**", "*{}*") + (f" ± {value.spread}" if value.spread else "")

        def line(cells: Iterable[str]) -> str:
            return "| " + " | ".join(cells) + " |"

        aligned = ["---:" if self.numeric(number) else "---" for number in range(len(self.columns))]
        header = line(_plain(column.title()) for column in self.columns)
        lines = [f"**{_plain(self.title)}**", "", header, line(aligned)]
        lines += [line(map(cell, row)) for row in self.rows]
        lines += ["", *(f"- {_plain(note)}" for note in self._notes("**best**", "*second best*"))]
        return "\n".join(lines) + "\n"

    def latex(self) -> str:
        """A booktabs table as in the paper: the best in bold, the second best underlined."""

        def cell(value: Cell) -> str:
            if isinstance(value, str):
                return value.translate(ESCAPES)
            printed = re.sub(r"-\d[\d.]*", r"$\g<0>$", value.marked(r"\textbf{{{}}}", r"\underline{{{}}}"))
            return printed + (rf" {{\tiny ($\pm$ {value.spread})}}" if value.spread else "")

        notes = self._notes("bold: best", "underlined: second best")
        sentences = " ".join(note[:1].upper() + note[1:].rstrip(".") + "." for note in notes)
        arrows = (r" ($\uparrow$)", r" ($\downarrow$)")
        header = [replace(column, name=column.name.translate(ESCAPES)).title(*arrows) for column in self.columns]
        layout = "".join("r" if self.numeric(number) else "l" for number in range(len(self.columns)))
        caption = f"{self.title}. {sentences}".translate(ESCAPES)
        lines = [r"\begin{table}", rf"\caption{{{caption}}}", rf"\begin{{tabular}}{{{layout}}}", r"\toprule"]
        lines += [" & ".join(header) + r" \\", r"\midrule"]
        for index, row in enumerate(self.rows):
            lines += [r"\midrule"] if index in self.rules else []
            lines.append(" & ".join(map(cell, row)) + r" \\")
        return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table}"]) + "\n"

    def csv(self) -> str:
        """Values at full precision in columns `A`, `A deviation`, `A mark`. The title is a column: when rows of several
        tables are put together, each number keeps its protocol."""

        def cells(number: int, cell: Cell) -> list[str]:
            if not self.numeric(number):
                return [cell if isinstance(cell, str) else cell.printed]
            if isinstance(cell, str):
                return [cell, "", ""]
            return [*("" if value is None else repr(value) for value in (cell.mean, cell.deviation)), cell.mark or ""]

        header = ["table"]
        for number, column in enumerate(self.columns):
            endings = ("", " deviation", " mark") if self.numeric(number) else ("",)
            header += [column.name + ending for ending in endings]
        output = io.StringIO()
        writer = csv.writer(output, lineterminator="\n")
        writer.writerow(header)
        for row in self.rows:
            writer.writerow([self.title, *(part for number, cell in enumerate(row) for part in cells(number, cell))])
        return output.getvalue()

    def numeric(self, column: int) -> bool:
        return any(isinstance(row[column], Number) for row in self.rows)

    @property
    def marks(self) -> set[Mark]:
        return {cell.mark for row in self.rows for cell in row if isinstance(cell, Number) and cell.mark}

    def _notes(self, best: str, second: str) -> list[str]:
        used = ", ".join(text for mark, text in (("best", best), ("second", second)) if mark in self.marks)
        return [f"{used} of a column, after rounding; ties are all marked"] * bool(used) + list(self.notes)


def _plain(text: str) -> str:
    """For Markdown: no HTML, no links or images, and nothing that ends a cell."""
    special = {"&": "&amp;", "<": "&lt;", "\n": " ", "\\": "\\\\", "|": "\\|"}
    return text.translate(str.maketrans(special)).replace("](", "]\\(")


def _rich(cell: Cell) -> Text:
    if isinstance(cell, str):
        return Text(cell)
    style, mark = {"best": ("bold", " (1)"), "second": ("underline", " (2)"), None: ("", "")}[cell.mark]
    return Text.assemble((cell.printed, style), f" ± {cell.spread}" if cell.spread else "", mark)


def show(table: Table, form: TableFormat) -> None:
    """Print to standard output: with styles on a terminal, whole lines in a pipe. The notes of a CSV table go to
    standard error."""
    if form == "text" and console.is_terminal:
        console.print(table.rich())
        return
    print(table.render(form), end="")
    if form == "csv":
        for note in table.notes:
            notice(note)
