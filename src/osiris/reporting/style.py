"""The look of every method: one colour, one dash and one marker, the same in all figures.

Colours follow Okabe and Ito (distinct with any colour vision), each with a variant for dark backgrounds, so that both
themes of the page have a contrast of about 3 to 1 or more. Dashes and markers tell methods apart without colour.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Dash = str | tuple[int, tuple[float, ...]]


@dataclass(frozen=True)
class Style:
    """How lines, bars and points of one method (or loss term) are drawn."""

    colour: str
    """On a light background. Figures are drawn with it; the page replaces it with `dark` in the dark theme."""
    dark: str
    dash: Dash = "-"
    marker: str = "o"

    @property
    def line(self) -> dict[str, Any]:
        return {"color": self.colour, "linestyle": self.dash}


SOLID, DASHED, DOTTED, DASH_DOT = "-", (0, (4.5, 1.8)), (0, (1.2, 1.6)), (0, (5, 1.6, 1.2, 1.6))

UNTRAINED, START_LABEL = "untrained encoder", "start"
METHODS: dict[str, Style] = {
    "ft": Style("#5f6670", "#a9b1bb", SOLID, "D"),
    "er": Style("#2f8fc4", "#6cc0ee", DASHED, "^"),
    "er+": Style("#0b5fa5", "#5b9be0", DASH_DOT, "v"),
    "er++": Style("#3f4fb5", "#8f9bf0", DOTTED, "<"),
    "der": Style("#2a9288", "#5cc9bc", DASH_DOT, ">"),
    "lump": Style("#00805c", "#3cc79c", DASHED, "s"),
    "osiris-r": Style("#b87800", "#f2b33d", DASHED, "p"),
    "ewc": Style("#7a7a1f", "#c3c25a", DOTTED, "P"),
    "cassle": Style("#b0558a", "#e39ac4", DASH_DOT, "d"),
    "pocon": Style("#7e3f98", "#c08fd8", DOTTED, "X"),
    "osiris-d": Style("#c44e00", "#f5853f", SOLID, "o"),
    "storyboard": Style("#a3123f", "#f0718f", DASH_DOT, "H"),
    "offline": Style("#20252b", "#eceef0", DASHED, "*"),
    "offline/equal-work": Style("#454b54", "#c4c9cf", DASH_DOT, "*"),
    "d1-only": Style("#8a7f72", "#b8ac9e", DOTTED, "h"),
    "osiris-d/shared-space": Style("#8c2f4e", "#e07f9c", DASHED, "s"),
    "osiris-d/no-cross": Style("#5b4a9c", "#a999ea", DASH_DOT, "^"),
    "osiris-d/no-past": Style("#9a6a3a", "#d9a878", DOTTED, "v"),
    UNTRAINED: Style("#8f969d", "#868d95", DOTTED, "."),
    START_LABEL: Style("#787f87", "#9da4ac", DASH_DOT, "."),
}
ROLE_STYLES: dict[str, Style] = {
    "current": Style("#0072b3", "#56b4e9", SOLID, "o"),
    "cross": Style("#a8327e", "#e08ac1", DASH_DOT, "s"),
    "past": Style("#00795a", "#45c49d", DASHED, "^"),
    "loss": Style("#8f9296", "#868b90", DOTTED, "."),
}
"""The three parts of the framework, and their weighted sum."""
CHANCE = Style("#b3382c", "#f0857a", DASHED, "")
"""The loss of an encoder that has learned nothing."""
SPARE = (
    Style("#6d5a00", "#d0ba4d", DASHED, "8"),
    Style("#1b6e8c", "#5fb6d6", DOTTED, "H"),
    Style("#a03c3c", "#ea8f8f", DASH_DOT, "*"),
    Style("#4d6b2f", "#a3c77f", DASHED, "D"),
    Style("#6b4c6e", "#c3a2c7", DOTTED, "s"),
    Style("#2d5f5d", "#7fbcb9", DASH_DOT, "o"),
)
"""For methods that are not in the zoo, chosen by a hash of the name: the same in every report."""

INK, MUTED, GRID, GROUND = "#22262c", "#6a7179", "#e4e7eb", "#fdfdfe"
THEME: dict[str, str] = {INK: "#e4e7ea", MUTED: "#9aa2ab", GRID: "#30363d", GROUND: "#171b20"}
"""Neutral colours of figures on a light background -> on a dark one."""
ON_DARK, ON_LIGHT = "#fefefe", "#0e1116"
"""Text on filled cells, the same in both themes because the cells are."""
SETTINGS = Path(__file__).with_name("figures.mplstyle")
"""matplotlib's settings for every figure."""

HEAT = ("#f4f6f8", "#d5e3ee", "#9fc3dc", "#5f9cc6", "#2b6fa8", "#123f73")
"""A ramp in one hue whose lightness decreases evenly, so that it can be read without colour."""


def base_name(label: str) -> str:
    """The method without its variant: `osiris-d` for `osiris-d (epochs=48)` and `osiris-d[past=none]`."""
    return label.split(" (")[0].split("[")[0]


def style_of(label: str) -> Style:
    """The look of a method, an ablation, or a variant of one."""
    if label in METHODS:
        return METHODS[label]
    if base_name(label) == label.removesuffix(" (BatchNorm)") and base_name(label) in METHODS:
        return METHODS[base_name(label)]
    return SPARE[hashlib.sha256(label.encode()).digest()[0] % len(SPARE)]


def role_style(term: str) -> Style:
    """The style of a loss term: that of its part, so `past.distil` looks like `past`."""
    return ROLE_STYLES.get(term.split(".")[0], SPARE[0])


def order_of(label: str) -> tuple[int, str]:
    """Sort key: the order of the zoo, variants after their base, unknown names last."""
    names = list(METHODS)
    return (names.index(base_name(label)) if base_name(label) in names else len(names), label)


def legend_of(labels: Iterable[str]) -> list[tuple[str, Style]]:
    return [(label, style_of(label)) for label in labels]


def swaps() -> dict[str, str]:
    """Every colour with a variant for dark backgrounds -> that variant."""
    styles = [*METHODS.values(), *ROLE_STYLES.values(), *SPARE, CHANCE]
    return THEME | {style.colour: style.dark for style in styles}
