"""HTML of figures and tables. Nothing here refers to anything outside the page."""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Sequence

from osiris.report import svg
from osiris.report.figure import Drawn, Rendered, data_uri
from osiris.report.legend import swatch_parts
from osiris.report.style import Style
from osiris.report.tables import Number, Table

LONG = 40
"""Cells with more letters than this may wrap."""


def figure(drawn: Drawn, run_links: str) -> str:
    """<figure> with its panels, legend, sentence and basis."""
    about = drawn.figure
    kind = "wide" if about.wide else "pictures" if drawn.panels and drawn.panels[0].pixels else "panels"
    panels = "".join(_panel(item, f"{about.name}-{number}", about.title) for number, item in enumerate(drawn.panels))
    basis = " · ".join(part for part in (html.escape(about.basis), run_links) if part)
    note = f'<span class="note">{html.escape(about.note)}</span>' if about.note else ""
    return (
        f'<figure id="{about.name}"><h3>{html.escape(about.title)}</h3>'
        f'<p class="see">{html.escape(about.see)}</p>{legend(about.legend, about.markers)}'
        f'<div class="{kind}" style="{_measures(drawn)}">{panels}</div>'
        f"<figcaption>{basis}{note}</figcaption></figure>"
    )


def _measures(drawn: Drawn) -> str:
    """For the style sheet: the panels' own width, the least that still reads well, and the most columns. Small panels
    may shrink further: two of them stand side by side on a phone."""
    widths = [item.pixels[0] if item.pixels else svg.size(item.markup)[0] * 96 / 72 for item in drawn.panels]
    width = round(max(widths, default=320))
    least = round(width * (0.6 if width < 260 else 0.8))
    return f"--panel:{width}px;--least:{least}px;--columns:{max(1, min(drawn.figure.columns, len(drawn.panels)))}"


def _panel(item: Rendered, identifier: str, title: str) -> str:
    if item.pixels is not None:
        width, height = item.pixels
        detail = f" {html.escape(item.detail)}" if item.detail else ""
        caption = f"<span><b>{html.escape(item.caption)}</b>{detail}</span>" if item.caption else ""
        return (
            f'<div class="picture">{caption}<img src="{data_uri(item.image, "WEBP")}" '
            f'width="{width}" height="{height}" alt="{html.escape(item.about)}"></div>'
        )
    width = svg.size(item.markup)[0] * 96 / 72
    inner = svg.labelled(svg.themed(item.markup), identifier, title, item.about)
    inner = re.sub(r' xmlns(:xlink)?="[^"]*"', "", inner)
    return f'<div class="panel" style="--width:{width:.0f}px">{inner}</div>'


def legend(entries: Sequence[tuple[str, Style]], markers: bool = True) -> str:
    if not entries:
        return ""
    items = "".join(f"<li>{swatch(style, markers)}{html.escape(name)}</li>" for name, style in entries)
    return f'<ul class="legend" aria-label="legend">{items}</ul>'


def swatch(style: Style, markers: bool = True) -> str:
    """A stretch of the line as it is drawn, in the colours of the theme."""
    shown = style if markers else style.plain
    inner = swatch_parts(shown, f"var({svg.variable(style.colour)})")
    return f'<svg class="swatch" viewBox="0 0 30 12" width="30" height="12" aria-hidden="true">{inner}</svg>'


def table(content: Table, name: str) -> str:
    """<table> in a box that scrolls sideways on a narrow screen, with the data to take along."""
    head = "".join(
        f'<th scope="col"{_numeric(content, at)}>{html.escape(column.name)}{_arrow(column.better)}</th>'
        for at, column in enumerate(content.columns)
    )
    body = ""
    for index, row in enumerate(content.rows):
        rule = ' class="rule"' if index in content.rules else ""
        cells = "".join(_cell(cell, at, content) for at, cell in enumerate(row))
        body += f"<tr{rule}>{cells}</tr>"
    marked = any(isinstance(cell, Number) and cell.mark for row in content.rows for cell in row)
    notes = (["<b>best</b> and <u>second best</u> of a column, as printed"] if marked else []) + [
        html.escape(note) for note in content.notes
    ]
    foot = f'<p class="notes">{"; ".join(notes)}.</p>' if notes else ""
    return (
        f'<div class="table" id="{name}"><h3 id="{name}-title">{html.escape(content.title)}</h3>'
        f'<div class="scroll" tabindex="0" role="region" aria-labelledby="{name}-title">'
        f'<table aria-labelledby="{name}-title">'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>{foot}{_downloads(content, name)}</div>"
    )


def _downloads(content: Table, name: str) -> str:
    links = []
    for ending, label, text in (
        ("csv", "CSV", content.csv()),
        ("md", "Markdown", content.markdown()),
        ("tex", "LaTeX", content.latex()),
    ):
        data = base64.b64encode(text.encode()).decode()
        links.append(f'<a download="{name}.{ending}" href="data:text/plain;base64,{data}">{label}</a>')
    return f'<p class="downloads">{" · ".join(links)}</p>'


def _numeric(content: Table, at: int) -> str:
    return ' class="n"' if any(isinstance(row[at], Number) for row in content.rows) else ""


def _arrow(better: str | None) -> str:
    words = {"higher": ("↑", "higher is better"), "lower": ("↓", "lower is better")}
    return f' <span title="{words[better][1]}">{words[better][0]}</span>' if better else ""


def _cell(cell: str | Number, at: int, content: Table) -> str:
    if isinstance(cell, str) and len(cell) > LONG:
        return f'<td class="long">{html.escape(cell)}</td>'
    if isinstance(cell, str):
        paper = cell.startswith("  ")
        tag = "th" if at == 0 else "td"
        scope = ' scope="row"' if at == 0 else ""
        kind = ' class="sub"' if paper else _numeric(content, at)
        return f"<{tag}{scope}{kind}>{html.escape(cell.strip())}</{tag}>"
    around = {"best": ("<b>", "</b>"), "second": ("<u>", "</u>"), None: ("", "")}[cell.mark]
    spread = f'<span class="pm"> ± {cell.spread}</span>' if cell.spread else ""
    printed = cell.printed.replace("-", "−") if cell.mean is not None else "–"
    return f'<td class="n">{around[0]}{printed}{around[1]}{spread}</td>'
