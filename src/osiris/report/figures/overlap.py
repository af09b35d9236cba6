"""Distributions of similarity within and between classes, and how far they overlap (Fig. 7).

Evaluation stores histograms; a Gaussian kernel makes densities of them, as in the paper. The overlap is the integral of
the smaller of two densities: 0 for separate distributions, 1 for equal ones.
"""

from __future__ import annotations

import numpy as np


def bin_centres(bins: int, low: float = -1.0, high: float = 1.0) -> np.ndarray:
    edges = np.linspace(low, high, bins + 1)
    return (edges[1:] + edges[:-1]) / 2


def scott_bandwidth(centres: np.ndarray, counts: np.ndarray) -> float:
    """Scott's rule, n^(-1/5) standard deviations, from a histogram; never below half a bin."""
    total = counts.sum()
    mean = (centres * counts).sum() / total
    deviation = np.sqrt((counts * (centres - mean) ** 2).sum() / max(1, total - 1))
    smallest = (centres[1] - centres[0]) / 2 if len(centres) > 1 else 1e-3
    return max(float(deviation * total ** (-1 / 5)), float(smallest))


def kernel_density(
    centres: np.ndarray, counts: np.ndarray, grid: np.ndarray, bandwidth: float | None = None
) -> np.ndarray:
    """A density on `grid` that integrates to 1 over the line: a Gaussian on every bin, weighted by its count."""
    assert counts.sum() > 0, "a density needs at least one pair"
    width = scott_bandwidth(centres, counts) if bandwidth is None else bandwidth
    used = counts > 0
    distance = (grid[:, None] - centres[None, used]) / width
    kernel = np.exp(-0.5 * distance**2) / (width * np.sqrt(2 * np.pi))
    return kernel @ (counts[used] / counts.sum())


def overlap(first: np.ndarray, second: np.ndarray, grid: np.ndarray) -> float:
    """Integral of min(first, second)."""
    smaller = np.minimum(first, second)
    return float(((smaller[1:] + smaller[:-1]) / 2 * np.diff(grid)).sum())


def similarity_overlap(histogram: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, float] | None:
    """(grid, density of same-class pairs, of different-class pairs, overlap) from the stored [2, bins]; None where one
    of the two has no pairs."""
    same, different = histogram.astype(np.float64)
    if same.sum() == 0 or different.sum() == 0:
        return None
    centres = bin_centres(histogram.shape[1])
    grid = np.linspace(-1.1, 1.1, 661)
    densities = kernel_density(centres, same, grid), kernel_density(centres, different, grid)
    return grid, *densities, overlap(*densities, grid)
