"""Tables of numbers over seeds, rendered as text, Markdown, LaTeX and CSV."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from osiris.console import console, notice
from osiris.errors import UserError, unknown
from osiris.evaluation.config import Mark
from osiris.evaluation.statistics import format_p
from osiris.files import csv_text

TableFormat = Literal["text", "markdown", "latex", "csv"]
TABLE_FORMATS: tuple[TableFormat, ...] = ("text", "markdown", "latex", "csv")
SPECIAL = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
SYMBOLS = {"±": r"\pm", "→": r"\to", "✓": r"\surd", "×": r"\times", "−": "-", "≤": r"\leq", "≥": r"\geq"}
SYMBOLS |= {"↑": r"\uparrow", "↓": r"\downarrow", "·": r"\cdot", "…": r"\dots"}
SYMBOLS |= dict(
    zip(
        "αβγδλμπρστφχψω",
        map(
            "\\{}".format,
            (
                *(
                    "alpha",
                    "beta",
                    "gamma",
                    "delta",
                    "lambda",
                    "mu",
                    "pi",
                    "rho",
                    "sigma",
                    "tau",
                    "varphi",
                    "chi",
                    "psi",
                    "omega",
                ),
            ),
        ),
    )
)
ESCAPES_MATH = str.maketrans({symbol: f"${command}$" for symbol, command in SYMBOLS.items()})
"""Symbols that pdflatex does not know."""
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
    interval: tuple[float, float] | None = None
    """Of a difference, which is printed with its sign."""
    is_p: bool = False

    @property
    def printed(self) -> str:
        if self.mean is None:
            return "-" if not self.is_p else ""
        if self.is_p:
            return format_p(self.mean).removeprefix("p ").removeprefix("= ")
        return self._fixed(self.mean) if self.interval is None else f"{self.mean:+.{self.decimals}f}"

    @property
    def spread(self) -> str:
        """`± 0.3`, or the interval `[-1.0, +0.2]`."""
        if self.interval is not None:
            return "[{:+.{d}f}, {:+.{d}f}]".format(*self.interval, d=self.decimals)
        return "" if self.deviation is None else f"± {self._fixed(self.deviation)}"

    @property
    def parts(self) -> dict[str, float | str | None]:
        """Every number of it, by the ending of its column in a CSV file."""
        low, high = self.interval or (None, None)
        return {"": self.mean, " deviation": self.deviation, " low": low, " high": high, " mark": self.mark}

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
            return value.marked("**{}**", "*{}*") + (f" {value.spread}" if value.spread else "")

        def line(cells: Iterable[str]) -> str:
            return "| " + " | ".join(cells) + " |"

        aligned = ["---:" if self.numeric(number) else "---" for number in range(len(self.columns))]
        header = line(_plain(column.title()) for column in self.columns)
        lines = [f"**{_plain(self.title)}**", "", header, line(aligned)]
        lines += [line(map(cell, row)) for row in self.rows]
        lines += ["", *(f"- {_plain(note)}" for note in self._notes("**best**", "*second best*"))]
        return "\n".join(lines) + "\n"

    def latex(self) -> str:
        """A booktabs table as in the paper: the best in bold, the second best underlined. It compiles with pdflatex."""

        def cell(value: Cell) -> str:
            if isinstance(value, str):
                return _latex(value)
            printed = _in_math(value.marked(r"\textbf{{{}}}", r"\underline{{{}}}"))
            spread = value.spread if value.interval else f"({value.spread})"
            return printed + (rf" {{\tiny {_in_math(spread).translate(ESCAPES_MATH)}}}" if value.spread else "")

        notes = self._notes("bold: best", "underlined: second best")
        sentences = " ".join(note[:1].upper() + note[1:].rstrip(".") + "." for note in notes)
        arrows = (r" ($\uparrow$)", r" ($\downarrow$)")
        header = [replace(column, name=_latex(column.name)).title(*arrows) for column in self.columns]
        layout = "".join("r" if self.numeric(number) else "l" for number in range(len(self.columns)))
        caption = _latex(f"{self.title}. {sentences}")
        lines = [
            r"% needs \usepackage{booktabs} in the preamble",
            r"\begin{table}",
            rf"\caption{{{caption}}}",
            rf"\begin{{tabular}}{{{layout}}}",
            r"\toprule",
        ]
        lines += [" & ".join(header) + r" \\", r"\midrule"]
        for index, row in enumerate(self.rows):
            lines += [r"\midrule"] if index in self.rules else []
            lines.append(" & ".join(map(cell, row)) + r" \\")
        return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table}"]) + "\n"

    def csv(self) -> str:
        """Values at full precision in columns `A`, `A deviation`, `A mark`; intervals in `low` and `high`."""
        return csv_text([[*self.columns_of_values()], *self.values()])

    def columns_of_values(self) -> list[str]:
        return [column.name + ending for number, column in enumerate(self.columns) for ending in self._endings(number)]

    def values(self) -> list[list[Any]]:
        """The rows with a value for each of `columns_of_values`."""
        rows = []
        for row in self.rows:
            cells = []
            for number, cell in enumerate(row):
                parts = cell.parts if isinstance(cell, Number) else {"": cell or None}
                cells += [parts.get(ending) for ending in self._endings(number)]
            rows.append(cells)
        return rows

    def _endings(self, column: int) -> list[str]:
        """The columns of values that a column needs."""
        parts = [row[column].parts for row in self.rows if isinstance(row[column], Number)]  # pyright: ignore
        endings = dict.fromkeys(ending for part in parts for ending, value in part.items() if value is not None)
        order = ["", " deviation", " low", " high", " mark"]
        return sorted({"", *endings}, key=order.index)

    def to_pandas(self) -> Any:
        """A data frame of `values`; needs pandas."""
        try:
            import pandas
        except ImportError:
            raise UserError("to_pandas needs pandas: pip install pandas.") from None
        return pandas.DataFrame(self.values(), columns=self.columns_of_values())

    def numeric(self, column: int) -> bool:
        return any(isinstance(row[column], Number) for row in self.rows)

    @property
    def marks(self) -> set[Mark]:
        return {cell.mark for row in self.rows for cell in row if isinstance(cell, Number) and cell.mark}

    def _notes(self, best: str, second: str) -> list[str]:
        used = ", ".join(text for mark, text in (("best", best), ("second", second)) if mark in self.marks)
        return [f"{used} of a column, after rounding; ties are all marked"] * bool(used) + list(self.notes)


def _in_math(text: str) -> str:
    """Signed numbers in math mode, where a minus is no hyphen."""
    return re.sub(r"(?<![\w.])[-+]\d[\d.]*|<", r"$\g<0>$", text)


def _latex(text: str) -> str:
    """Letters that pdflatex has no font for become question marks."""
    known = _in_math(text.translate(ESCAPES)).translate(ESCAPES_MATH)
    return "".join(letter if letter < "\u0180" or letter in "–—‘’“”" else "?" for letter in known)


def _plain(text: str) -> str:
    """For Markdown: no HTML, no links or images, and nothing that ends a cell."""
    special = {"&": "&amp;", "<": "&lt;", "\n": " ", "\\": "\\\\", "|": "\\|"}
    return text.translate(str.maketrans(special)).replace("](", "]\\(")


def _rich(cell: Cell) -> Text:
    if isinstance(cell, str):
        return Text(cell)
    style, mark = {"best": ("bold", " (1)"), "second": ("underline", " (2)"), None: ("", "")}[cell.mark]
    return Text.assemble((cell.printed, style), f" {cell.spread}" if cell.spread else "", mark)


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
