"""Tables of numbers over seeds, rendered as text, Markdown, LaTeX and CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from osiris.errors import unknown

if TYPE_CHECKING:
    from rich.table import Table as RichTable

Format = Literal["text", "markdown", "latex", "csv"]
FORMATS: tuple[Format, ...] = ("text", "markdown", "latex", "csv")
Mark = Literal["best", "second"]


@dataclass(frozen=True)
class Column:
    name: str
    better: Literal["higher", "lower"] | None = None


@dataclass(frozen=True)
class Number:
    """A mean over seeds, its deviation, and how it ranks in its column. None: the number does not exist."""

    mean: float | None
    deviation: float | None = None
    mark: Mark | None = None
    decimals: int = 1

    @property
    def printed(self) -> str:
        return "-" if self.mean is None else _fixed(self.mean, self.decimals)

    @property
    def spread(self) -> str:
        return "" if self.deviation is None else _fixed(self.deviation, self.decimals)


Cell = str | Number


@dataclass(frozen=True)
class Table:
    """Rows of cells under columns. The protocol belongs in the title: no number goes without it."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()
    rules: frozenset[int] = frozenset()
    """Rows before which a rule is drawn."""

    def __post_init__(self) -> None:
        assert all(len(row) == len(self.columns) for row in self.rows)

    def render(self, form: Format) -> str:
        if form == "text":
            return self.text()
        if form == "markdown":
            return self.markdown()
        if form == "latex":
            return self.latex()
        if form == "csv":
            return self.csv()
        raise unknown("format", form, FORMATS)

    def rich(self) -> RichTable:
        """For a terminal: the best in bold, the second best underlined, and both also by a plain mark."""
        from rich import box
        from rich.table import Table as RichTable
        from rich.text import Text

        table = RichTable(title=Text(self.title), box=box.SIMPLE_HEAD, title_justify="left", caption_justify="left")
        table.caption = Text("\n".join(self._notes("(1) best", "(2) second best")), style="dim")
        for number, column in enumerate(self.columns):
            table.add_column(Text(_arrow(column, " ↑", " ↓")), justify="right" if self.numeric(number) else "left")
        for index, row in enumerate(self.rows):
            if index in self.rules:
                table.add_section()
            table.add_row(*(_rich(cell) for cell in row))
        return table

    def text(self) -> str:
        """The same without colours, as wide as it needs to be."""
        from rich.console import Console

        output = io.StringIO()
        Console(file=output, width=10_000, no_color=True).print(self.rich())
        return "\n".join(line.rstrip() for line in output.getvalue().splitlines()).strip("\n") + "\n"

    def markdown(self) -> str:
        """The best in bold, the second best in italics."""
        aligned = ["---:" if self.numeric(number) else "---" for number in range(len(self.columns))]
        lines = [
            f"**{self.title}**",
            "",
            _pipes(_arrow(column, " ↑", " ↓") for column in self.columns),
            _pipes(aligned),
        ]
        lines += [_pipes(_markdown(cell) for cell in row) for row in self.rows]
        lines += ["", *(f"- {note}" for note in self._notes("**best**", "*second best*"))]
        return "\n".join(lines) + "\n"

    def latex(self) -> str:
        """A booktabs table as in the paper: the best in bold, the second best underlined."""
        layout = "".join("r" if self.numeric(number) else "l" for number in range(len(self.columns)))
        notes = " ".join(_sentence(note) for note in self._notes("bold: best", "underlined: second best"))
        header = " & ".join(
            _escape(column.name) + _arrow(Column("", column.better), r" ($\uparrow$)", r" ($\downarrow$)")
            for column in self.columns
        )
        lines = [r"\begin{table}", rf"\caption{{{_escape(self.title)}. {_escape(notes)}}}"]
        lines += [rf"\begin{{tabular}}{{{layout}}}", r"\toprule", header + r" \\", r"\midrule"]
        for index, row in enumerate(self.rows):
            if index in self.rules:
                lines.append(r"\midrule")
            lines.append(" & ".join(_latex(cell) for cell in row) + r" \\")
        lines += [r"\bottomrule", r"\end{tabular}", r"\end{table}"]
        return "\n".join(lines) + "\n"

    def csv(self) -> str:
        """Plain values at full precision: `A`, `A deviation`, `A mark`. The title is a column, so that rows of several
        tables can be put together and each number keeps its protocol."""
        output = io.StringIO()
        writer = csv.writer(output, lineterminator="\n")
        header = ["table"]
        for number, column in enumerate(self.columns):
            header += self._csv_names(number, column)
        writer.writerow(header)
        for row in self.rows:
            line = [self.title]
            for number, cell in enumerate(row):
                line += _csv(cell) if self.numeric(number) else [cell if isinstance(cell, str) else cell.printed]
            writer.writerow(line)
        return output.getvalue()

    def _csv_names(self, number: int, column: Column) -> list[str]:
        name = column.name
        return [name, f"{name} deviation", f"{name} mark"] if self.numeric(number) else [name]

    def numeric(self, column: int) -> bool:
        return any(isinstance(row[column], Number) for row in self.rows)

    @property
    def marked(self) -> bool:
        return any(isinstance(cell, Number) and cell.mark for row in self.rows for cell in row)

    def _notes(self, best: str, second: str) -> list[str]:
        marks = [f"{best}, {second} of a column, as printed; equal values share the mark"] if self.marked else []
        return [*marks, *self.notes]


def number_columns(names: Sequence[str]) -> tuple[Column, ...]:
    """Columns of metrics: less is better for forgetting alone."""
    return tuple(Column(name, "lower" if name == "F" else "higher") for name in names)


def _fixed(value: float, decimals: int) -> str:
    return f"{round(value, decimals) + 0.0:.{decimals}f}"  # + 0.0: no "-0.0"


def _arrow(column: Column, up: str, down: str) -> str:
    return column.name + {"higher": up, "lower": down, None: ""}[column.better]


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:].rstrip(".") + "."


def _pipes(cells) -> str:
    return "| " + " | ".join(cells) + " |"


def _rich(cell: Cell):
    from rich.text import Text

    if isinstance(cell, str):
        return Text(cell)
    style = {"best": "bold", "second": "underline", None: ""}[cell.mark]
    mark = {"best": " (1)", "second": " (2)", None: ""}[cell.mark]
    return Text.assemble((cell.printed, style), f" ± {cell.spread}" if cell.spread else "", mark)


def _markdown(cell: Cell) -> str:
    if isinstance(cell, str):
        return cell.replace("|", "\\|")
    around = {"best": "**", "second": "*", None: ""}[cell.mark]
    return f"{around}{cell.printed}{around}" + (f" ± {cell.spread}" if cell.spread else "")


def _latex(cell: Cell) -> str:
    if isinstance(cell, str):
        return _escape(cell)
    printed = f"${cell.printed}$" if cell.printed.startswith("-") and cell.mean is not None else cell.printed
    marked = {"best": rf"\textbf{{{printed}}}", "second": rf"\underline{{{printed}}}", None: printed}[cell.mark]
    return marked + (rf" {{\tiny ($\pm$ {cell.spread})}}" if cell.spread else "")


def _csv(cell: Cell) -> list[str]:
    if isinstance(cell, str):
        return [cell, "", ""]
    values = ["" if value is None else repr(value) for value in (cell.mean, cell.deviation)]
    return [*values, cell.mark or ""]


def _escape(text: str) -> str:
    special = {"\\": r"\textbackslash{}", "±": r"$\pm$", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    return "".join(special.get(letter, f"\\{letter}" if letter in "&%$#_{}" else letter) for letter in text)


def show(table: Table, form: Format) -> None:
    """Print to standard output: with styles on a terminal, whole lines in a pipe. CSV has no place for notes: they go
    to standard error."""
    from rich.markup import escape

    from osiris.console import console, notice

    if form == "text" and console.is_terminal:
        console.print(table.rich())
        return
    print(table.render(form), end="")
    if form == "csv":
        for note in table.notes:
            notice(escape(note))
