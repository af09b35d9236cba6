"""Signed distance functions: negative inside, positive outside, vectorised over whole chunks of images.

Coordinates are those of the object: it fits in the unit circle, `v` points down. `u` and `v` are float32
[n, side, side]; other arguments are numbers or per-image arrays [n, 1, 1].
"""

from __future__ import annotations

from functools import reduce

import numpy as np

Field = np.ndarray
"""float32 [n, side, side]"""


def in_double(function: np.ufunc, *arguments: Field) -> Field:
    """Compute in float64 and round: NumPy's float32 sine, cosine, ... depend on the vector instructions of the CPU."""
    return function(*arguments, dtype=np.float64).astype(np.float32)


def length(u: Field, v: Field) -> Field:
    return np.sqrt(u * u + v * v)


def circle(u: Field, v: Field, radius: float | Field) -> Field:
    return length(u, v) - radius


def box(u: Field, v: Field, half_width: float | Field, half_height: float | Field, corner: float = 0.0) -> Field:
    """A rectangle with rounded corners; exact outside, the larger overlap inside."""
    x, y = np.abs(u) - (half_width - corner), np.abs(v) - (half_height - corner)
    outside = length(np.maximum(x, 0), np.maximum(y, 0))
    return outside + np.minimum(np.maximum(x, y), 0) - corner


def ellipse(u: Field, v: Field, half_width: float, half_height: float) -> Field:
    """The distance to first order: the implicit function over the length of its gradient."""
    x, y = u / half_width, v / half_height
    radius, gradient = length(x, y), length(x / half_width, y / half_height)
    return radius * (radius - 1) / np.maximum(gradient, 1e-6)


def segment(u: Field, v: Field, start: tuple[float, float], end: tuple[float, float], width: float) -> Field:
    """A stroke with round ends from `start` to `end`, `width` being its half-width."""
    (a, b), (c, d) = start, end
    along = np.clip(((u - a) * (c - a) + (v - b) * (d - b)) / ((c - a) ** 2 + (d - b) ** 2), 0, 1)
    return length(u - a - along * (c - a), v - b - along * (d - b)) - width


def strokes(u: Field, v: Field, lines: tuple[tuple[float, float, float, float], ...], width: float) -> Field:
    """The union of several strokes, each given as (start u, start v, end u, end v)."""
    return union(*(segment(u, v, line[:2], line[2:], width) for line in lines))


def fold(u: Field, v: Field, count: int) -> tuple[Field, Field]:
    """Turn every point into the first of `count` equal sectors, whose middle points up; symmetric about it."""
    sector = np.float32(2 * np.pi / count)
    angle = in_double(np.arctan2, u, -v)
    angle -= sector * np.round(angle / sector)
    radius = length(u, v)
    return radius * in_double(np.cos, angle), np.abs(radius * in_double(np.sin, angle))


def polygon(u: Field, v: Field, count: int, radius: float) -> Field:
    """A regular polygon with a corner pointing up."""
    along, across = fold(u, v, count)
    half = np.pi / count
    return along * np.float32(np.cos(half)) + across * np.float32(np.sin(half)) - radius * np.float32(np.cos(half))


def star(u: Field, v: Field, count: int, radius: float, inner: float) -> Field:
    """A star whose tips lie at `radius` and whose notches lie at `inner`."""
    along, across = fold(u, v, count)
    half = np.pi / count
    dx, dy = inner * np.cos(half) - radius, inner * np.sin(half)
    edge = np.hypot(dx, dy)
    return ((along - radius) * np.float32(dy / edge)) - across * np.float32(dx / edge)


def ring(distance: Field, half_width: float | Field) -> Field:
    """The band around the outline of another shape."""
    return np.abs(distance) - half_width


def union(*distances: Field) -> Field:
    return reduce(np.minimum, distances)


def common(*distances: Field) -> Field:
    return reduce(np.maximum, distances)


def without(distance: Field, removed: Field) -> Field:
    return np.maximum(distance, -removed)


def stripes(x: Field, period: float | Field, duty: float = 0.5) -> Field:
    """Parallel bands across `x`, one centred on zero; `duty` is the covered part."""
    return np.abs(x - period * np.round(x / period)) - duty * period / 2


def dots(u: Field, v: Field, period: float | Field, radius: float) -> Field:
    """A square lattice of discs, one centred on zero."""
    return circle(u - period * np.round(u / period), v - period * np.round(v / period), radius)


def checks(u: Field, v: Field, period: float | Field) -> Field:
    """A chess board whose squares have half the period as their side."""
    frequency = np.float32(2 * np.pi) / period
    return in_double(np.sin, frequency * u) * in_double(np.sin, frequency * v) * np.float32(0.16)
