"""Baselines without learning: untrained encoders (R_i of forward transfer), raw pixels, whitened random patches.

A trained encoder should beat all of them. They depend on the data and the protocol alone, so they are cached on disk.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as functional
from torch import Tensor, nn

from osiris.console import notice
from osiris.data.benchmark import Benchmark
from osiris.errors import UserError
from osiris.evaluation.config import BASELINES, ProtocolConfig
from osiris.evaluation.evaluate import check_features, rank_test_images, score_protocols, score_task_level
from osiris.evaluation.features import embed_benchmark
from osiris.evaluation.fingerprint import json_digest
from osiris.evaluation.protocols import TASK_LEVEL, labels_of_test
from osiris.evaluation.scores import Baseline, read_record, write_record
from osiris.evaluation.statistics import mean
from osiris.models.fast import principal_components
from osiris.randomness import generator

SIDE = 32
"""Larger images are averaged down to this side before pixels or patches are compared."""
PATCH, FILTERS, FITTED_IMAGES, PATCHES_PER_IMAGE = 6, 256, 1000, 50
CONTRAST, WHITENING, THRESHOLD = 10 / 255**2, 0.1, 0.5
"""Regularisation of contrast and of the whitening (as Coates and Ng for bytes), and the soft threshold."""
CHUNK = 16
"""Images at a time, which bounds the memory for the responses of all filters."""


def untrained_baseline(
    make_encoder: Callable[[int], nn.Module],
    benchmark: Benchmark,
    protocol: ProtocolConfig,
    cache_dir: Path | None,
    key: str,
    device: torch.device | str = "cpu",
) -> Baseline | None:
    """The mean of `protocol.random_encoders` untrained encoders with seeds 0, 1, ...

    `make_encoder(seed)` builds one (without zero-initialised last norms: those would make every block the identity).
    `key` identifies encoder and data; each encoder is cached under key, seed and KNN settings, so that more encoders
    or an interrupted call cost only what is missing. None without labels or if no encoder is asked for.
    """
    if not benchmark.labelled or protocol.random_encoders == 0:
        return None
    each = []
    for seed in range(protocol.random_encoders):
        name = json_digest([key, protocol.k, protocol.temperature, sorted(protocol.measured), seed])
        path = None if cache_dir is None else cache_dir / f"random-{name}.json"
        each.append(_cached(path, lambda seed=seed: measure_baseline(make_encoder(seed), benchmark, protocol, device)))
    return Baseline(
        protocols={
            name: [mean(values) for values in zip(*(one.protocols[name] for one in each), strict=True)]
            for name in protocol.measured
        },
        task_level=mean([one.task_level for one in each]),
    )


def _cached(path: Path | None, compute: Callable[[], Baseline]) -> Baseline:
    """From the cache, which is optional: a damaged file is measured again, and a result may remain unsaved."""
    if path is not None and path.exists():
        try:
            return read_record(path, Baseline)
        except UserError:
            notice(f"{path} is damaged; this baseline is measured again.")
    result = compute()
    try:
        if path is not None:
            write_record(path, result)
    except OSError as error:
        notice(f"{path} cannot be written ({error.strerror}); the next run measures this baseline again.")
    return result


def measure_baseline(
    encoder: nn.Module, benchmark: Benchmark, protocol: ProtocolConfig, device: torch.device | str = "cpu"
) -> Baseline:
    features = embed_benchmark(encoder.to(device), benchmark, device)
    check_features(features, benchmark)
    rankings = rank_test_images(features, benchmark, protocol)
    accuracies = {name: one.accuracy for name, one in score_protocols(rankings, benchmark, protocol).items()}
    _, task = labels_of_test(benchmark)
    task_level = score_task_level(rankings[TASK_LEVEL], task, benchmark.task_count)
    return Baseline(protocols=accuracies, task_level=task_level.accuracy)


class Pixels(nn.Module):
    """The pixels in [0, 1], which it recovers from normalised images; `centred`: the normalised pixels themselves."""

    mean: Tensor
    std: Tensor

    def __init__(self, benchmark: Benchmark, centred: bool = False) -> None:
        super().__init__()
        mean, std = ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0)) if centred else (benchmark.mean, benchmark.std)
        self.register_buffer("mean", torch.tensor(mean).view(1, 3, 1, 1))
        self.register_buffer("std", torch.tensor(std).view(1, 3, 1, 1))

    def pixels(self, images: Tensor) -> Tensor:
        return reduced(images * self.std + self.mean)

    def forward(self, images: Tensor) -> Tensor:
        return self.pixels(images).flatten(1)


class Patches(Pixels):
    """256 whitened random 6x6 patches as filters, soft threshold, means over 2x2 quadrants (Coates and Ng 2011).

    Every patch of an image is normalised to zero mean and unit contrast, then whitened; its features are its
    similarities to the filters. All of this is linear up to the contrast, so one convolution does it.
    """

    kernel: Tensor
    offset: Tensor

    def __init__(self, benchmark: Benchmark) -> None:
        super().__init__(benchmark)
        random = generator(0, "baseline.patches")
        patches = random_patches(benchmark, random)
        patches = patches - patches.mean(dim=1, keepdim=True)
        patches = patches / (patches.var(dim=1, correction=0, keepdim=True) + CONTRAST).sqrt()
        centre = patches.mean(dim=0)
        variances, axes = principal_components(patches)
        whitening = axes.T @ (axes * (variances + WHITENING).rsqrt().unsqueeze(1))
        filters = (patches[torch.randperm(len(patches), generator=random)[:FILTERS]] - centre) @ whitening
        kernel = functional.normalize(filters, dim=1) @ whitening
        self.register_buffer("offset", (kernel @ centre).view(1, -1, 1, 1))
        self.register_buffer("kernel", kernel.view(len(kernel), 3, PATCH, PATCH))

    def forward(self, images: Tensor) -> Tensor:
        return torch.cat([self._features(self.pixels(part)) for part in images.split(CHUNK)])

    def _features(self, images: Tensor) -> Tensor:
        average = functional.avg_pool2d(images.mean(1, keepdim=True), PATCH, 1)
        square = functional.avg_pool2d(images.square().mean(1, keepdim=True), PATCH, 1)
        contrast = ((square - average.square()).clamp_min(0) + CONTRAST).sqrt()
        brightness = average * self.kernel.sum((1, 2, 3)).view(1, -1, 1, 1)
        similarity = (functional.conv2d(images, self.kernel) - brightness) / contrast - self.offset
        return functional.adaptive_avg_pool2d((similarity - THRESHOLD).clamp_min(0), 2).flatten(1)


def random_patches(benchmark: Benchmark, random: torch.Generator) -> Tensor:
    """[patches, 3 * 6 * 6] from some bank images, pixels in [0, 1]."""
    chosen = torch.randperm(len(benchmark.bank), generator=random)[:FITTED_IMAGES].sort().values
    images = reduced(benchmark.bank.images.take(chosen).float() / 255)
    patches = functional.unfold(images, PATCH).transpose(1, 2)
    picked = torch.randint(patches.shape[1], (len(images), PATCHES_PER_IMAGE), generator=random)
    return patches.gather(1, picked.unsqueeze(2).expand(-1, -1, patches.shape[2])).flatten(0, 1)


def reduced(images: Tensor) -> Tensor:
    """Images larger than 32 pixels, averaged down to that size."""
    return functional.adaptive_avg_pool2d(images, SIDE) if max(images.shape[2:]) > SIDE else images


ENCODERS: dict[str, Callable[[Benchmark], nn.Module]] = {
    "pixels": Pixels,
    "pixels-centred": partial(Pixels, centred=True),
    "patches": Patches,
}
assert tuple(ENCODERS) == BASELINES
