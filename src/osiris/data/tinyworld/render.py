"""From numbers to pixels: an object before its environment, lit, partly covered, photographed with noise."""

from __future__ import annotations

import numpy as np

from osiris.data.tinyworld.objects import Kind
from osiris.data.tinyworld.scenes import Environment, Uniform, between, colour, covered, mix
from osiris.data.tinyworld.shapes import Field

SIZE = 32
SUPERSAMPLING = 2
PARAMETERS = 64
"""Uniform numbers per image for everything but the noise."""
NOISE_WORDS = SIZE * SIZE * 3 * 2 // 8
"""64-bit words per image for the noise, two bytes per value."""


def grid() -> tuple[Field, Field]:
    side = SIZE * SUPERSAMPLING
    line = ((np.arange(side, dtype=np.float32) + 0.5) / side) * 2 - 1
    x, y = np.meshgrid(line, line)
    return x, y


def uniforms(words: np.ndarray) -> Uniform:
    """Hand out the columns of `words` (uint64 [n, PARAMETERS]) one after another as float32 [n, 1, 1] in [0, 1)."""
    numbers = ((words >> np.uint64(40)).astype(np.float32) / np.float32(2**24)).T[:, :, None, None]
    columns = iter(numbers)
    return lambda: next(columns)


def paint(kind: Kind, environment: Environment, words: np.ndarray) -> Field:
    """The noiseless pictures, RGB float32 [n, 3, SIZE, SIZE] around [0, 1], from uint64 [n, PARAMETERS]."""
    x, y = grid()
    x, y = x[None], y[None]
    r = uniforms(words)
    scale = between(r(), 0.5, 0.8)
    centre_x, centre_y = between(r(), -0.25, 0.25), between(r(), -0.25, 0.25)
    angle = between(r(), -kind.turn, kind.turn)
    stretch = np.exp(between(r(), -0.07, 0.07))
    dx, dy = (x - centre_x) / scale, (y - centre_y) / scale
    cosine, sine = np.cos(angle), np.sin(angle)
    body, marks = kind.draw((cosine * dx + sine * dy) * stretch, (cosine * dy - sine * dx) / stretch, r())
    body = body * scale

    dark = r() < 0.5
    hue = between(r(), *environment.hues)
    lightness = np.where(dark, between(r(), 0.25, 0.42), between(r(), 0.8, 1.0)).astype(np.float32)
    fill = colour(hue, between(r(), *environment.saturations), lightness)
    contrast = np.where(dark, between(r(), 0.8, 1.0), between(r(), 0.15, 0.35)).astype(np.float32)
    ink = colour(between(r(), *environment.hues), between(r(), 0.1, 0.4), contrast)
    rim = np.where(dark[:, None], fill * 0.3 + 0.65, fill * 0.3)

    light_angle = between(r(), 0, 2 * np.pi)
    slope = np.cos(light_angle) * x + np.sin(light_angle) * y
    picture = environment.background(x, y, r)
    shadow = between(r(), 0.02, 0.1)
    picture = picture * (1 - 0.35 * covered(body - shadow, 0.2))[:, None]
    picture = mix(picture, rim, covered(body - 0.05))
    shaded = fill * (1 + 0.15 * slope)[:, None]
    if marks is not None:
        shaded = mix(shaded, ink, covered(marks * scale))
    picture = mix(picture, shaded, covered(body))

    cover = environment.occluder(x, y, r)
    hidden = colour(np.full_like(hue, environment.occluder_hue), between(r(), 0.2, 0.5), between(r(), 0.2, 0.5))
    picture = mix(picture, hidden, covered(cover) * (r() < 0.4))

    tint = np.array(environment.tint, np.float32).reshape(1, 3, 1, 1)
    gain = between(r(), 0.75, 1.1) * (1 + between(r(), 0.0, 0.25) * slope)
    picture = picture * gain[:, None] * tint
    n = len(words)
    blocks = picture.reshape(n, 3, SIZE, SUPERSAMPLING, SIZE, SUPERSAMPLING)
    return blocks.mean(axis=(3, 5), dtype=np.float32)


def photograph(picture: Field, words: np.ndarray, noise_words: np.ndarray) -> np.ndarray:
    """Add noise of a strength of its own to each picture and round to uint8."""
    pairs = noise_words.view(np.uint8).reshape(*picture.shape, 2).astype(np.float32)
    noise = (pairs[..., 0] - pairs[..., 1]) / np.float32(255)
    strength = (words[:, -1] >> np.uint64(40)).astype(np.float32) / np.float32(2**24)
    picture = picture + (0.01 + 0.06 * strength)[:, None, None, None] * noise
    return np.clip(np.rint(picture * 255), 0, 255).astype(np.uint8)
