"""The marks of a legend as SVG, for the page and for files."""

from __future__ import annotations

from osiris.report.style import Style

MARKERS = {
    "o": '<circle cx="15" cy="6" r="3.2"/>',
    ".": '<circle cx="15" cy="6" r="2"/>',
    "s": '<path d="M12 3h6v6h-6z"/>',
    "D": '<path d="M15 2l4 4-4 4-4-4z"/>',
    "d": '<path d="M15 1.6l2.8 4.4-2.8 4.4-2.8-4.4z"/>',
    "^": '<path d="M15 2.2l3.6 6.6h-7.2z"/>',
    "v": '<path d="M15 9.8l3.6-6.6h-7.2z"/>',
    "<": '<path d="M11.2 6l6.6-3.6v7.2z"/>',
    ">": '<path d="M18.8 6l-6.6-3.6v7.2z"/>',
    "P": '<path d="M13.7 2.4h2.6v2.3h2.3v2.6h-2.3v2.3h-2.6V7.3h-2.3V4.7h2.3z"/>',
    "X": '<path d="M12 3.6l1.5-1.5L15 4l1.5-1.9L18 3.6 16.2 6l1.8 2.4-1.5 1.5L15 8l-1.5 1.9L12 8.4 13.8 6z"/>',
    "p": '<path d="M15 2.2l3.8 2.8-1.5 4.5h-4.6l-1.5-4.5z"/>',
    "h": '<path d="M15 2.2l3.3 1.9v3.8l-3.3 1.9-3.3-1.9V4.1z"/>',
    "*": '<path d="M15 1.8l1.2 3 3.1.2-2.4 2 .8 3.1-2.7-1.7-2.7 1.7.8-3.1-2.4-2 3.1-.2z"/>',
}
"""matplotlib's markers in a box of 30 by 12, at its middle."""


def swatch_parts(style: Style, colour: str) -> str:
    """A line with its dashes and, where the style has one, its marker."""
    dash = "" if isinstance(style.dash, str) else f' stroke-dasharray="{" ".join(f"{x * 2:g}" for x in style.dash[1])}"'
    marker = MARKERS.get(style.marker, MARKERS["o"]) if style.marker else ""
    shown = f'<g fill="{colour}" stroke="none">{marker}</g>' if marker else ""
    return f'<path d="M1 6h28" stroke="{colour}" stroke-width="2" fill="none"{dash}/>{shown}'
