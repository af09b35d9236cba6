"""Raw pixels and whitened random patches, patch by patch."""

import numpy as np
import torch

from osiris.augment.views import normalise
from osiris.data.benchmark import Benchmark
from osiris.evaluation.baselines import Patches, Pixels, random_patches
from osiris.randomness import generator
from tiny import tiny_benchmark

SIDE = 11
"""6 x 6 places for a patch of 6 x 6 pixels: quadrants of 3 x 3 places."""


def photographs() -> Benchmark:
    """Neighbouring pixels are correlated: whitening changes them."""
    benchmark = tiny_benchmark(tasks=2, per_task=12, size=12)
    noise = np.random.default_rng(0).integers(0, 120, (24, 3, 12, 12))
    array = (benchmark.bank.images.take(torch.arange(24)).numpy() // 2 + noise)[:, :, :SIDE, :SIDE]
    benchmark.bank.images.array = array.astype(np.uint8)  # pyright: ignore[reportAttributeAccessIssue]
    return benchmark


def standardised(patch: np.ndarray) -> np.ndarray:
    centred = patch - patch.mean()
    return centred / np.sqrt((centred**2).mean() + 10 / 255**2)


def test_patches_against_a_naive_loop() -> None:
    benchmark = photographs()
    random = generator(0, "baseline.patches")
    rows = np.stack([standardised(patch) for patch in random_patches(benchmark, random).double().numpy()])
    centre = sum(rows) / len(rows)
    covariance = sum(np.outer(row - centre, row - centre) for row in rows) / len(rows)
    variances, axes = np.linalg.eigh(covariance)
    whitening = sum(np.outer(axis, axis) / np.sqrt(variance + 0.1) for variance, axis in zip(variances, axes.T))
    chosen = [whitening @ (rows[index] - centre) for index in torch.randperm(len(rows), generator=random)[:256]]
    filters = np.stack([row / np.sqrt(row @ row) for row in chosen])

    images = benchmark.bank.images.take(torch.tensor([3, 17]))
    expected = np.zeros((2, 256, 2, 2))
    for number, image in enumerate(images.double().numpy() / 255):
        for top in range(6):
            for left in range(6):
                patch = standardised(image[:, top : top + 6, left : left + 6].flatten())
                similarity = filters @ (whitening @ (patch - centre))
                expected[number, :, top // 3, left // 3] += np.maximum(similarity - 0.5, 0) / 9
    features = Patches(benchmark)(normalise(images, benchmark.mean, benchmark.std))
    np.testing.assert_allclose(features.numpy(), expected.reshape(2, -1), rtol=1e-3, atol=1e-3)


def test_random_patches_are_patches_of_the_bank() -> None:
    benchmark = photographs()
    found = random_patches(benchmark, generator(0, "baseline.patches"))
    images = benchmark.bank.images.take(torch.arange(24)).float() / 255
    every = {
        image[:, top : top + 6, left : left + 6].contiguous().numpy().tobytes()
        for image in images
        for top in range(6)
        for left in range(6)
    }
    assert {row.contiguous().numpy().tobytes() for row in found} <= every and len(found) == 24 * 50


def test_pixels_are_those_of_the_images() -> None:
    benchmark = photographs()
    images = benchmark.bank.images.take(torch.tensor([3, 17]))
    inputs = normalise(images, benchmark.mean, benchmark.std)
    torch.testing.assert_close(Pixels(benchmark)(inputs), images.flatten(1).float() / 255)
    assert torch.equal(Pixels(benchmark, centred=True)(inputs), inputs.flatten(1))
