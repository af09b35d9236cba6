"""From numbers to pixels: an object before its environment, lit, partly covered, photographed with noise."""

from __future__ import annotations

import numpy as np

from osiris.data.tinyworld.objects import Draw
from osiris.data.tinyworld.scenes import Environment, Uniform, between, colour, covered, mix
from osiris.data.tinyworld.shapes import Field

SIZE = 32
SUPERSAMPLING = 2
PARAMETERS = 64
"""Uniform numbers per image for everything but the noise."""
NOISE_WORDS = SIZE * SIZE * 3 * 2 // 8
"""64-bit words per image for the noise, two bytes per value."""


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
    angle, stretch = between(r(), -turn, turn), np.exp(between(r(), -0.07, 0.07))
    cosine, sine = np.cos(angle), np.sin(angle)
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
    slope = np.cos(light) * x + np.sin(light) * y

    picture = environment.background(x, y, r)
    shadow = covered(body - between(r(), 0.02, 0.1), 0.2)
    picture = picture * (1 - 0.35 * shadow)[:, None]
    picture = mix(picture, fill * 0.3, covered(body - 0.05))  # the rim
    surface = fill * (1 + 0.15 * slope)[:, None]
    if marks is not None:
        surface = mix(surface, ink, covered(marks))
    picture = mix(picture, surface, covered(body))

    cover = covered(environment.occluder(x, y, r)) * (r() < 0.4)
    hue = np.full_like(light, environment.occluder_hue)
    picture = mix(picture, colour(hue, between(r(), 0.2, 0.5), between(r(), 0.2, 0.5)), cover)

    tint = np.array(environment.tint, np.float32).reshape(1, 3, 1, 1)
    gain = between(r(), 0.65, 1.15) * (1 + between(r(), 0.0, 0.2) * slope)
    picture = picture * gain[:, None] * tint
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
