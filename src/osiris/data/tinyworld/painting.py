"""From numbers to pixels: an object before its environment, lit, partly covered, photographed with noise.

A background or cover takes the grid `x`, `y` (float32 [1, side, side], from -1 at the left and top to 1) and `r`, a
function that hands out the next per-image uniform number as float32 [n, 1, 1], and paints RGB float32
[n, 3, side, side]. Colours vary little in hue inside an environment: the hue would tell images apart without looking at
the object.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from osiris.data.tinyworld import shapes as s
from osiris.data.tinyworld.objects import Draw
from osiris.data.tinyworld.shapes import Field

Uniform = Callable[[], Field]
Paint = Callable[[Field, Field, Uniform], Field]
SIZE = 32
SUPERSAMPLING = 2
PARAMETERS = 64
"""Uniform numbers per image for everything but the noise."""
NOISE_WORDS = SIZE * SIZE * 3 * 2 // 8
"""64-bit words per image for the noise, two bytes per value."""


def between(number: Field, low: float, high: float) -> Field:
    return (low + (high - low) * number).astype(np.float32)


def colour(hue: Field, saturation: Field, value: Field) -> Field:
    """HSV in [0, 1], each [n, 1, 1], to RGB [n, 3, 1, 1]."""
    hue, saturation, value = (part[:, None] for part in (hue, saturation, value))
    offset = np.array([5, 3, 1], np.float32).reshape(1, 3, 1, 1)
    k = (offset + hue * 6) % 6
    return (value - value * saturation * np.clip(np.minimum(k, 4 - k), 0, 1)).astype(np.float32)


def mix(base: Field, over: Field, amount: Field) -> Field:
    """Lay `over` on `base` where `amount` [n, side, side] is one."""
    return base + (over - base) * amount[:, None]


def covered(distance: Field, softness: float = 0.03) -> Field:
    """How much of each point lies inside: 1 inside, 0 outside, a ramp of the given width between."""
    return np.clip(0.5 - distance / softness, 0, 1)


@dataclass(frozen=True)
class Environment:
    name: str
    background: Paint
    hues: tuple[float, float]
    """Range of the objects' hue."""
    saturations: tuple[float, float]
    tint: tuple[float, float, float]
    """Colour of the light."""
    occluder: Paint
    occluder_hue: float


def room(x: Field, y: Field, r: Uniform) -> Field:
    """A papered wall over a wooden floor."""
    hue = between(r(), 0.09, 0.11)
    wall = colour(hue, between(r(), 0.18, 0.24), between(r(), 0.55, 0.6))
    paper = covered(s.stripes(x + between(r(), -1, 1), between(r(), 0.3, 0.5)), 0.1)
    wall = mix(wall, wall * 0.9, paper * (r() < 0.6))
    height = between(r(), 0.35, 0.75)
    floor = colour(hue - 0.03, between(r(), 0.42, 0.48), between(r(), 0.42, 0.47))
    planks = covered(s.stripes(y - height, 0.2, 0.2), 0.06)
    picture = mix(wall, mix(floor, floor * 0.85, planks), covered(height - y))
    return mix(picture, floor * 0.75, covered(np.abs(y - height) - 0.03))


def street(x: Field, y: Field, r: Uniform) -> Field:
    """A skyline of five houses before a hazy sky."""
    hue = between(r(), 0.6, 0.63)
    zenith = colour(hue, between(r(), 0.28, 0.34), between(r(), 0.45, 0.52))
    ramp = y * 0.5 + 0.5 + 0 * hue
    picture = mix(zenith, 0.35 + 0.6 * zenith, ramp)
    for column in range(5):
        left = -1 + 0.4 * column
        house = colour(hue, between(r(), 0.12, 0.18), between(r(), 0.33, 0.43))
        body = s.box(x - left - 0.2, y - 1, 0.19, between(r(), 0.4, 1.5))
        panes = s.common(s.stripes(x - left, 0.2, 0.4), s.stripes(y, 0.25, 0.4))
        picture = mix(picture, mix(house, house * 1.25, covered(panes, 0.1)), covered(body))
    return picture


def meadow(x: Field, y: Field, r: Uniform) -> Field:
    """Hills behind a meadow with blades of grass."""
    hue = between(r(), 0.28, 0.31)
    sky = colour(between(r(), 0.50, 0.53), between(r(), 0.15, 0.2), between(r(), 0.6, 0.66))
    grass = colour(hue, between(r(), 0.44, 0.5), between(r(), 0.38, 0.44))
    ridge = between(r(), -0.6, 0.1) + 0.12 * s.in_double(np.sin, x * between(r(), 2, 5) + 6.3 * r())
    near = ridge + between(r(), 0.3, 0.6) + 0.1 * s.in_double(np.sin, x * between(r(), 2, 5) + 6.3 * r())
    picture = mix(sky, grass * 0.75 + 0.12, covered(ridge - y))
    blades = 0.5 + 0.5 * s.in_double(np.sin, x * between(r(), 25, 40) + 3 * s.in_double(np.sin, y * 5 + 6.3 * r()))
    return mix(picture, mix(grass * 0.85, grass * 1.15, blades), covered(near - y))


def lamp_pole(x: Field, y: Field, r: Uniform) -> Field:
    return np.abs(x - between(r(), -0.8, 0.8) + 0 * y) - between(r(), 0.03, 0.08)


def book_corner(x: Field, y: Field, r: Uniform) -> Field:
    """Something that juts in from a lower corner."""
    side = np.where(r() < 0.5, -1, 1).astype(np.float32)
    return s.box(x - side, y - 1, between(r(), 0.25, 0.55), between(r(), 0.25, 0.55))


def grass_blades(x: Field, y: Field, r: Uniform) -> Field:
    root, lean, height = between(r(), -0.7, 0.7), between(r(), -0.4, 0.4), between(r(), 0.1, 0.7)
    blades = [np.abs(x - root - d - (lean + d) * (1 - y) ** 2 * 0.5) - 0.04 * (y + height) for d in (-0.15, 0.1)]
    return s.common(s.union(*blades), -height - y)


ENVIRONMENTS: tuple[Environment, ...] = (
    Environment("indoor", room, (0.0, 0.14), (0.35, 0.6), (1.06, 1.0, 0.9), book_corner, 0.07),
    Environment("city", street, (0.53, 0.68), (0.15, 0.4), (0.94, 0.98, 1.08), lamp_pole, 0.6),
    Environment("wild", meadow, (0.09, 0.23), (0.35, 0.6), (1.0, 1.05, 0.94), grass_blades, 0.3),
)


def grid() -> tuple[Field, Field]:
    """`x` and `y` of the middle of every point, float32 [1, side, side], from -1 at the left and top to 1."""
    side = SIZE * SUPERSAMPLING
    line = ((np.arange(side, dtype=np.float32) + 0.5) / side) * 2 - 1
    x, y = np.meshgrid(line, line)
    return x[None], y[None]


def uniforms(words: np.ndarray) -> Uniform:
    """Hand out the columns of `words` (uint64 [n, PARAMETERS]) one after another as float32 [n, 1, 1] in [0, 1)."""
    numbers = ((words >> np.uint64(40)).astype(np.float32) / np.float32(2**24)).T[:, :, None, None]
    columns = iter(numbers)
    return lambda: next(columns)


def placed(draw: Draw, turn: float, x: Field, y: Field, r: Uniform) -> tuple[Field, Field | None]:
    """The object's two distances, in units of the picture, at a place, size, angle and stretch of its own."""
    scale = between(r(), 0.55, 0.85)
    dx, dy = (x - between(r(), -0.3, 0.3)) / scale, (y - between(r(), -0.3, 0.3)) / scale
    angle, stretch = between(r(), -turn, turn), s.in_double(np.exp, between(r(), -0.07, 0.07))
    cosine, sine = s.in_double(np.cos, angle), s.in_double(np.sin, angle)
    body, marks = draw((cosine * dx + sine * dy) * stretch, (cosine * dy - sine * dx) / stretch, r())
    return body * scale, None if marks is None else marks * scale


def paint(draw: Draw, turn: float, environment: Environment, words: np.ndarray) -> Field:
    """The noiseless pictures, RGB float32 [n, 3, SIZE, SIZE] around [0, 1], from uint64 [n, PARAMETERS].

    Objects are lighter than what is behind and painted on them, their hue varies about as much as the colour jitter
    of the views: what tells two images apart after augmentation is then the structure, which is the class.
    """
    x, y = grid()
    r = uniforms(words)
    body, marks = placed(draw, turn, x, y, r)
    fill = colour(between(r(), *environment.hues), between(r(), *environment.saturations), between(r(), 0.8, 1.0))
    ink = colour(between(r(), *environment.hues), between(r(), 0.1, 0.4), between(r(), 0.15, 0.35))
    light = between(r(), 0, 2 * np.pi)
    slope = s.in_double(np.cos, light) * x + s.in_double(np.sin, light) * y

    picture = environment.background(x, y, r)
    picture = stood(picture, body, marks, fill, ink, slope, between(r(), 0.02, 0.1))

    cover = covered(environment.occluder(x, y, r)) * (r() < 0.4)
    hue = np.full_like(light, environment.occluder_hue)
    picture = mix(picture, colour(hue, between(r(), 0.2, 0.5), between(r(), 0.2, 0.5)), cover)

    tint = np.array(environment.tint, np.float32).reshape(1, 3, 1, 1)
    gain = between(r(), 0.65, 1.15) * (1 + between(r(), 0.0, 0.2) * slope)
    return reduced(picture * gain[:, None] * tint)


def stood(
    picture: Field, body: Field, marks: Field | None, fill: Field, ink: Field, slope: Field, reach: Field
) -> Field:
    """The picture with an object in it: its shadow of this `reach`, its rim, its surface in the light."""
    shadow = covered(body - reach, 0.2)
    picture = picture * (1 - 0.35 * shadow)[:, None]
    picture = mix(picture, fill * 0.3, covered(body - 0.05))  # the rim
    surface = fill * (1 + 0.15 * slope)[:, None]
    if marks is not None:
        surface = mix(surface, ink, covered(marks))
    return mix(picture, surface, covered(body))


def reduced(picture: Field) -> Field:
    """To SIZE: the mean over the points of each pixel."""
    steps = range(SUPERSAMPLING)
    parts = [picture[:, :, row::SUPERSAMPLING, column::SUPERSAMPLING] for row in steps for column in steps]
    return np.add.reduce(parts) / np.float32(len(parts))


def photograph(picture: Field, words: np.ndarray, noise_words: np.ndarray) -> np.ndarray:
    """Add noise of a strength of its own to each picture and round to uint8."""
    pairs = noise_words.view(np.uint8).reshape(*picture.shape, 2).astype(np.float32)
    noise = (pairs[..., 0] - pairs[..., 1]) / np.float32(255)
    strength = (words[:, -1] >> np.uint64(40)).astype(np.float32) / np.float32(2**24)
    picture = picture + (0.01 + 0.06 * strength)[:, None, None, None] * noise
    return np.clip(np.rint(picture * 255), 0, 255).astype(np.uint8)
