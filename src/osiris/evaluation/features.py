"""Encoder outputs of the bank and the test images: one pass, from which all numbers of an evaluation are computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from osiris import processes
from osiris.augment.operations import upload
from osiris.augment.views import normalise
from osiris.console import Ticker
from osiris.data.benchmark import Benchmark
from osiris.data.images import Images
from osiris.files import write_atomically
from osiris.models.normalisation import evaluating


@dataclass(frozen=True)
class Features:
    """Raw float32 encoder outputs, not yet normalised."""

    bank: Tensor
    """[images in the bank, d]"""
    test: Tensor | None
    """[test images, d]; None if the benchmark has no test images."""

    def save(self, path: Path) -> None:
        parts = {"bank": self.bank} if self.test is None else {"bank": self.bank, "test": self.test}
        tensors = {name: part.cpu().contiguous() for name, part in parts.items()}
        write_atomically(path, lambda temporary: save_file(tensors, temporary))


def embed(
    encoder: nn.Module,
    images: Images,
    mean: Sequence[float],
    std: Sequence[float],
    device: torch.device | str = "cpu",
    batch_size: int = 512,
    ticker: Ticker | None = None,
    shared: bool = False,
) -> Tensor:
    """float32 [N, d] on `device`: the encoder's output of every image, in order, without augmentation.

    With `shared`, each process embeds its share of the images, and all of them get all features.
    """
    indices = torch.arange(len(images))[processes.share(len(images)) if shared else slice(None)]
    assert len(indices) > 0, f"no images to embed in process {processes.rank()} ({len(images)} images)"
    output = torch.empty(0)
    with evaluating(encoder):
        for start in range(0, len(indices), batch_size):
            part = indices[start : start + batch_size]
            batch = normalise(upload(images.take(part), device), mean, std)
            features = encoder(batch).float()
            assert features.ndim == 2 and len(features) == len(part), f"an encoder returns [B, d], not {features.shape}"
            if start == 0:
                output = torch.empty(len(indices), features.shape[1], device=features.device)
            output[start : start + len(part)] = features
            if ticker is not None:
                ticker.advance(len(part))
    return processes.gather(output, len(images)) if shared else output


def embed_benchmark(
    encoder: nn.Module,
    benchmark: Benchmark,
    device: torch.device | str = "cpu",
    ticker: Ticker | None = None,
    shared: bool = False,
) -> Features:
    """One pass over the bank and the test images; labels are not read."""

    def pass_over(images: Images) -> Tensor:
        return embed(encoder, images, benchmark.mean, benchmark.std, device, ticker=ticker, shared=shared)

    test = benchmark.test
    return Features(pass_over(benchmark.bank.images), None if test is None or not len(test) else pass_over(test.images))
