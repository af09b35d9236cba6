"""The forty kinds of objects, ten tasks of four. A class is a structure, never a colour.

Neighbouring tasks need different features: corners of the outline, inner texture, number of holes, strokes,
topology, radial symmetry, roofs, petals, curvature, patterned wings. Textures, rings, counts and radial symmetries
recur in other environments on other bodies, so that the classes of different tasks are easily confused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from osiris.data.tinyworld import shapes as s
from osiris.data.tinyworld.shapes import Field

Drawn = tuple[Field, Field | None]
"""Distance of the body, and distance of what is painted on it."""
Draw = Callable[[Field, Field, Field], Drawn]
"""A function of u, v, and a variation in [0, 1], as [n, 1, 1]."""
Pattern = Callable[[Field, Field, Field], Field]


@dataclass(frozen=True)
class Task:
    """Four kinds of objects that differ in one respect."""

    name: str
    environment: str
    turn: float
    """How far an object may turn (radians, to either side)."""
    kinds: dict[str, Draw]


def block(outline: Callable[[Field, Field], Field], u: Field, v: Field, variation: Field) -> Drawn:
    """A plain toy block: classes differ in the outline."""
    return outline(u, v), None


def cushion(pattern: Pattern, u: Field, v: Field, variation: Field) -> Drawn:
    """The same rounded square for all classes, which differ in the pattern."""
    body = s.box(u, v, 0.84, 0.84, 0.25)
    return body, s.common(pattern(u, v, 0.9 + 0.25 * variation), body + 0.14)


def button(count: int, u: Field, v: Field, variation: Field) -> Drawn:
    """A disc with `count` holes, evenly spaced around the centre."""
    if count == 1:
        return s.circle(u, v, 0.92), s.circle(u, v, 0.2 + 0.06 * variation)
    along, across = s.fold(u, v, count)
    return s.circle(u, v, 0.92), s.circle(along - 0.42, across, 0.18 + 0.04 * variation)


LETTERS = {
    "T": ((-0.62, -0.7, 0.62, -0.7), (0, -0.7, 0, 0.75)),
    "H": ((-0.55, -0.75, -0.55, 0.75), (0.55, -0.75, 0.55, 0.75), (-0.55, 0, 0.55, 0)),
    "X": ((-0.62, -0.72, 0.62, 0.72), (0.62, -0.72, -0.62, 0.72)),
    "E": ((-0.5, -0.75, -0.5, 0.75), (-0.5, -0.75, 0.5, -0.75), (-0.5, 0, 0.4, 0), (-0.5, 0.75, 0.5, 0.75)),
}


def letter(name: str, u: Field, v: Field, variation: Field) -> Drawn:
    return s.strokes(u, v, LETTERS[name], 0.17) - 0.05 * variation, None


def sign(name: str, u: Field, v: Field, variation: Field) -> Drawn:
    """Road signs made of bands: classes differ in how the bands are connected."""
    width = 0.13 + 0.03 * variation
    outer = s.ring(s.circle(u, v, 0.8), width)
    if name == "double ring":
        return s.union(outer, s.ring(s.circle(u, v, 0.28), width - 0.03)), None
    if name == "broken ring":
        return s.without(outer, s.common(np.abs(u) - 0.36, v)), None
    if name == "barred ring":
        return s.union(outer, s.segment(u, v, (-0.55, 0.55), (0.55, -0.55), 0.13)), None
    return outer, None


def wheel(spokes: int, u: Field, v: Field, variation: Field) -> Drawn:
    along, across = s.fold(u, v, spokes)
    spoke = s.common(across - (0.1 + 0.02 * variation), np.abs(along - 0.42) - 0.42)
    return s.union(s.ring(s.circle(u, v, 0.82), 0.11), spoke, s.circle(u, v, 0.2)), None


def gear(u: Field, v: Field, variation: Field) -> Drawn:
    along, across = s.fold(u, v, 8)
    tooth = s.common(across - 0.15, along - 0.95, -along)
    return s.union(s.circle(u, v, 0.7), tooth), s.circle(u, v, 0.24 + 0.08 * variation)


def tower(roof: str, u: Field, v: Field, variation: Field) -> Drawn:
    """The same walls and windows under four roofs."""
    walls = s.box(u, v - 0.42, 0.52, 0.52)
    if roof == "gabled":
        top = s.common((np.abs(u) - 0.95 * v - 0.95) * 0.725, v + 0.05)
    elif roof == "domed":
        top = s.union(s.circle(u, v + 0.3, 0.62), s.box(u, v + 0.9, 0.07, 0.1))
    elif roof == "stepped":
        top = s.union(s.box(u, v + 0.3, 0.36, 0.25), s.box(u, v + 0.65, 0.16, 0.34))
    else:
        top = s.without(s.box(u, v + 0.35, 0.78, 0.38), s.common(s.stripes(u - 0.31, 0.62, 0.5), v + 0.3))
    windows = s.box(np.abs(u) - 0.24, v - 0.42 - 0.1 * variation, 0.11, 0.2)
    return s.union(walls, top), windows


def blossom(petals: int, pointed: bool, u: Field, v: Field, variation: Field) -> Drawn:
    if pointed:
        body = s.star(u, v, petals, 1.0, 0.42 if petals == 5 else 0.58)
    else:
        along, across = s.fold(u, v, petals)
        radius = 0.34 if petals == 5 else 0.235
        body = s.union(s.circle(along - (0.93 - radius), across, radius), s.circle(u, v, 0.93 - radius))
    return body, s.circle(u, v, 0.18 + 0.08 * variation)


def leaf(name: str, u: Field, v: Field, variation: Field) -> Drawn:
    """Leaves by their curvature: one bow, an inner bow, two bows with a notch, three lobes."""
    if name == "crescent":
        return s.without(s.circle(u, v, 0.88), s.circle(u - 0.42, v, 0.62 + 0.08 * variation)), None
    if name == "oval":
        body = s.common(s.circle(u - 0.5, v, 0.98), s.circle(u + 0.5, v, 0.98))
    elif name == "heart":
        side = np.abs(u)
        tip = s.common((side + v - 0.79) * 0.707, (side - v - 0.79) * 0.707)
        body = s.union(s.circle(side - 0.4, v + 0.33, 0.46), s.common(tip, -v - 0.4))
    else:
        along, across = s.fold(u, v, 3)
        body = s.union(s.circle(along - 0.48, across, 0.44), s.segment(u, v, (0, 0), (0, 0.95), 0.08))
    vein = s.box(u, v - 0.1, 0.05 + 0.02 * variation, 0.7)
    return body, s.common(vein, body + 0.1)


def beetle(pattern: Pattern, u: Field, v: Field, variation: Field) -> Drawn:
    """The same body with head and legs for all classes, which differ in the pattern of the wings."""
    wings = s.ellipse(u, v - 0.12, 0.62, 0.76)
    head = s.circle(u, v + 0.68, 0.26)
    legs = s.strokes(np.abs(u), v, ((0.4, -0.3, 0.9, -0.5), (0.5, 0.12, 0.95, 0.12), (0.4, 0.5, 0.78, 0.76)), 0.06)
    return s.union(wings, head, legs), s.common(pattern(u, v, 0.9 + 0.25 * variation), wings + 0.1)


BLOCKS = {
    "triangle block": partial(block, lambda u, v: s.polygon(u, v - 0.15, 3, 1.05)),
    "square block": partial(block, lambda u, v: s.box(u, v, 0.72, 0.72)),
    "cross block": partial(block, lambda u, v: s.union(s.box(u, v, 0.9, 0.32), s.box(u, v, 0.32, 0.9))),
    "disc block": partial(block, lambda u, v: s.circle(u, v, 0.84)),
}
CUSHIONS = {
    "striped cushion": partial(cushion, lambda u, v, k: s.stripes(u, 0.62 * k)),
    "dotted cushion": partial(cushion, lambda u, v, k: s.dots(u, v, 0.62 * k, 0.21)),
    "checked cushion": partial(cushion, lambda u, v, k: s.checks(u, v, 1.1 * k)),
    "ringed cushion": partial(cushion, lambda u, v, k: s.stripes(s.circle(u, v, 0.0), 0.6 * k)),
}
BLOSSOMS = {
    f"{n} {form} petals": partial(blossom, n, form == "pointed") for form in ("round", "pointed") for n in (5, 8)
}
BEETLES = {
    "lined beetle": partial(beetle, lambda u, v, k: s.stripes(u, 0.5 * k)),
    "spotted beetle": partial(beetle, lambda u, v, k: s.dots(np.abs(u) - 0.26, v - 0.1, 0.56 * k, 0.19)),
    "banded beetle": partial(beetle, lambda u, v, k: s.stripes(v - 0.12, 0.56 * k)),
    "shielded beetle": partial(beetle, lambda u, v, k: s.ellipse(u, v - 0.12, 0.34, 0.44)),
}
TASKS: tuple[Task, ...] = (
    Task("blocks", "indoor", 0.5, BLOCKS),
    Task("cushions", "indoor", 0.5, CUSHIONS),
    Task("buttons", "indoor", 1.5, {f"button with {n}": partial(button, n) for n in (1, 2, 3, 4)}),
    Task("letters", "indoor", 0.35, {f"letter {name}": partial(letter, name) for name in LETTERS}),
    Task("signs", "city", 0.9, {n: partial(sign, n) for n in ("ring", "double ring", "broken ring", "barred ring")}),
    Task("wheels", "city", 1.5, {f"wheel with {n} spokes": partial(wheel, n) for n in (3, 4, 8)} | {"gear": gear}),
    Task("towers", "city", 0.2, {f"{n} tower": partial(tower, n) for n in ("gabled", "domed", "stepped", "notched")}),
    Task("blossoms", "wild", 1.5, BLOSSOMS),
    Task("leaves", "wild", 0.9, {f"{n} leaf": partial(leaf, n) for n in ("oval", "crescent", "heart", "clover")}),
    Task("beetles", "wild", 0.8, BEETLES),
)
"""In the order of the stream: four tasks indoors, three in the city, three in the wild."""
