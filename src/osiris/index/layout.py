"""A map of vectors in two dimensions, near where they are similar: t-SNE from their principal components.

The repulsion of all pairs is a convolution: points are spread over a grid by quadratic interpolation, and the FFT adds
up the kernel between its nodes (Linderman et al., 2019). Nothing is drawn at random: equal vectors give an equal map.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import fft, sparse

from osiris.console import Ticker

PERPLEXITY, NEIGHBOURS = 10.0, 30
"""Of the affinities: about how many images are neighbours, and how many are looked at."""
EARLY, LATER, ADDED = 200, 400, 100
"""Steps with exaggerated attraction, without, and of images that are added to a map."""
EXAGGERATION = 12.0
FEWEST_BOXES, MOST_BOXES = 40, 128
"""Of the grid, along each side, each of a width of 1 as long as they suffice. A box has 3 x 3 nodes."""
NODES = np.array([1 / 6, 1 / 2, 5 / 6])


@dataclass(frozen=True)
class Neighbours:
    rows: np.ndarray
    """int64 [n, k]: the nearest other images of each, the nearest first."""
    cosines: np.ndarray
    """float32 [n, k]"""


def lay_out(
    start: np.ndarray, near: Neighbours, fixed: np.ndarray | None = None, ticker: Ticker | None = None
) -> np.ndarray:
    """float64 [n, 2]. `start`: the first two principal components [n, 2]; or, with `fixed` (bool [n]), a map on which
    these stay where they are: only the others find their place, beginning near their neighbours."""
    count = len(start)
    if count < 3:
        return np.asarray(start, np.float64) - start[:1]
    affinities = _affinities(near)
    if fixed is None:
        places = start / start.std(axis=0).max().clip(min=1e-12) * 1e-4
        moves, steps = np.ones((count, 1)), [(EXAGGERATION, 0.5)] * EARLY + [(1.0, 0.8)] * LATER
    else:
        places = _beside_neighbours(start, near, fixed)
        moves, steps = (~fixed[:, None]).astype(float), [(1.0, 0.5)] * ADDED
    places, speed, gains = places.astype(np.float64), np.zeros((count, 2)), np.ones((count, 2))
    for exaggeration, momentum in steps:
        rate = max(count / EXAGGERATION, 50.0) / (1.0 if fixed is None else EXAGGERATION)
        slope = exaggeration * _attraction(affinities, places) - _repulsion(places)
        gains = np.where(np.sign(slope) == np.sign(speed), gains * 0.8, gains + 0.2).clip(min=0.01)
        speed = (momentum * speed - rate * 4 * gains * slope) * moves
        long = np.linalg.norm(speed, axis=1, keepdims=True)
        places = places + speed * (5.0 / long.clip(min=5.0))
        if ticker is not None:
            ticker.advance()
    return places if fixed is not None else places - places.mean(axis=0)


def steps(added: bool) -> int:
    return ADDED if added else EARLY + LATER


def principal(vectors: np.ndarray, sample: np.ndarray, size: int) -> np.ndarray:
    """float32 [d, size]: directions of the largest variance of some rows of `vectors`, the largest first."""
    rows = vectors[sample] - vectors[sample].mean(axis=0)
    if len(rows) < rows.shape[1]:
        values, left = np.linalg.eigh(rows @ rows.T)
        directions = rows.T @ left[:, ::-1] / np.sqrt(values[::-1].clip(min=1e-12))
    else:
        directions = np.linalg.eigh(rows.T @ rows)[1][:, ::-1]
    directions = directions[:, :size]
    return directions * np.sign(directions[np.abs(directions).argmax(axis=0), np.arange(directions.shape[1])])


def _affinities(near: Neighbours) -> sparse.csr_array:
    """Symmetric, with the sum 1. Each image has its own width, by which its neighbours have the perplexity."""
    distances = 2 * (1 - near.cosines.astype(np.float64)).clip(min=0)
    distances -= distances.min(axis=1, keepdims=True)
    count, size = distances.shape
    wanted = np.log(min(PERPLEXITY, (size + 1) / 2))
    low, high = np.full((count, 1), 1e-6), np.full((count, 1), 1e9)
    for _ in range(60):
        precision = np.sqrt(low * high)
        weights = np.exp(-distances * precision)
        total = weights.sum(axis=1, keepdims=True)
        entropy = np.log(total) + precision * (distances * weights).sum(axis=1, keepdims=True) / total
        low, high = np.where(entropy > wanted, precision, low), np.where(entropy > wanted, high, precision)
    weights = np.exp(-distances * low)
    weights /= weights.sum(axis=1, keepdims=True)
    ends = np.arange(0, count * size + 1, size)
    one_way = sparse.csr_array((weights.ravel(), near.rows.ravel(), ends), shape=(count, count))
    both = (one_way + one_way.T).tocsr()
    both.sort_indices()
    return both / both.sum()


def _attraction(affinities: sparse.csr_array, places: np.ndarray) -> np.ndarray:
    ends = np.repeat(np.arange(len(places)), np.diff(affinities.indptr))
    apart = places[ends] - places[affinities.indices]
    pull = affinities.data / (1 + (apart**2).sum(axis=1))
    return np.stack([np.bincount(ends, pull * apart[:, axis], len(places)) for axis in (0, 1)], axis=1)


def _repulsion(places: np.ndarray) -> np.ndarray:
    """sum_j (y_i - y_j) / (1 + |y_i - y_j|^2)^2, over sum_ij 1 / (1 + |y_i - y_j|^2)."""
    low, span = places.min(axis=0), float(np.ptp(places, axis=0).max()) + 1e-9
    boxes = int(np.clip(np.ceil(span), FEWEST_BOXES, MOST_BOXES))
    nodes, width = 3 * boxes, span / boxes
    at = (places - low) / width
    box = np.minimum(at.astype(np.int64), boxes - 1)
    inside = (at - box)[:, :, None]
    a, b, c = NODES
    shares = np.concatenate(
        [
            (inside - b) * (inside - c) / ((a - b) * (a - c)),
            (inside - a) * (inside - c) / ((b - a) * (b - c)),
            (inside - a) * (inside - b) / ((c - a) * (c - b)),
        ],
        axis=2,
    )  # [n, 2, 3]
    node = 3 * box[:, :, None] + np.arange(3)
    spread = (shares[:, 0, :, None] * shares[:, 1, None, :]).reshape(len(places), 9)
    where = (node[:, 0, :, None] * nodes + node[:, 1, None, :]).reshape(len(places), 9)
    x, y = places.T - low[:, None]
    charges = np.stack([np.ones_like(x), x, y, x**2 + y**2])
    grids = [np.bincount(where.ravel(), (spread * one[:, None]).ravel(), nodes**2) for one in charges]
    along = width / 3 * np.minimum(np.arange(2 * nodes), 2 * nodes - np.arange(2 * nodes))
    kernel = np.asarray(fft.rfft2((1 + along[:, None] ** 2 + along[None] ** 2) ** -2))
    size = (2 * nodes, 2 * nodes)
    spectrum = np.asarray(fft.rfft2(np.stack(grids).reshape(4, nodes, nodes), size))
    grid = np.asarray(fft.irfft2(spectrum * kernel, size))
    ones, xs, ys, squares = (grid[:, :nodes, :nodes].reshape(4, -1)[:, where] * spread).sum(axis=2)
    total = ((1 + x**2 + y**2) * ones - 2 * (x * xs + y * ys) + squares).sum() - len(places)
    return np.stack([x * ones - xs, y * ones - ys], axis=1) / max(float(total), 1e-12)


def _beside_neighbours(start: np.ndarray, near: Neighbours, fixed: np.ndarray) -> np.ndarray:
    """Each other image at the weighted mean of its three nearest fixed neighbours, the farthest first; images without
    one take the place of neighbours that have got one."""
    places, known = start.astype(np.float64).copy(), fixed.copy()
    places[~fixed] = places[fixed].mean(axis=0)
    for _ in range(8):
        there = known[near.rows]
        there &= np.cumsum(there, axis=1) <= 3
        found = ~known & there.any(axis=1)
        if not found.any():
            break
        weight = (there * (1e-3 + (near.cosines - near.cosines.min(axis=1, keepdims=True))) ** 2)[found]
        places[found] = (weight[..., None] * places[near.rows[found]]).sum(axis=1) / weight.sum(axis=1)[:, None]
        known |= found
    return places
