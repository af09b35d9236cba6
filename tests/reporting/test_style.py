"""One look per method: distinct, with enough contrast on both grounds, and the same everywhere."""

import pytest

from osiris.reporting.style import GROUND, METHODS, ROLE_STYLES, SPARE, THEME, order_of, role_style, style_of
from tiny import PAPER


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("style", [*METHODS.values(), *ROLE_STYLES.values(), *SPARE], ids=lambda style: style.colour)
def test_colours_can_be_seen_on_both_grounds(style):
    least = 2.9
    assert contrast(style.colour, GROUND) >= least
    assert contrast(style.dark, THEME[GROUND]) >= least


def test_every_method_of_the_zoo_has_its_own_look():
    assert set(PAPER) <= set(METHODS)
    colours = [style.colour for style in METHODS.values()]
    assert len(set(colours)) == len(colours)
    zoo = [(METHODS[name].dash, METHODS[name].marker) for name in PAPER]
    assert len(set(zoo)) == len(zoo), "told apart without colour"


def test_looks_and_order_follow_the_name():
    assert style_of("osiris-d (BatchNorm)") is METHODS["osiris-d"]
    assert style_of("osiris-d (epochs=48)") in SPARE
    assert style_of("my-method") is style_of("my-method")
    assert role_style("past.distil") is ROLE_STYLES["past"]
    names = ["offline", "my-method", "osiris-d", "ft", "osiris-d/no-cross"]
    assert sorted(names, key=order_of) == ["ft", "osiris-d", "offline", "osiris-d/no-cross", "my-method"]
