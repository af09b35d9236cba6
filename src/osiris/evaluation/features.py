"""Encoder outputs of the bank and the test images: one pass, from which every number of an evaluation comes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from osiris.augment.views import normalise
from osiris.console import Ticker
from osiris.data.benchmark import Benchmark
from osiris.data.images import Images
from osiris.files import write_atomically


@dataclass(frozen=True)
class Features:
    """Raw float32 encoder outputs, not yet normalised."""

    bank: Tensor
    """[images in the bank, d]"""
    test: Tensor | None
    """[test images, d], or None where the benchmark has no test images."""

    def save(self, path: Path) -> None:
        tensors = {"bank": self.bank.cpu().contiguous()}
        if self.test is not None:
            tensors["test"] = self.test.cpu().contiguous()
        write_atomically(path, lambda temporary: save_file(tensors, temporary))

    @staticmethod
    def load(path: Path) -> Features:
        tensors = load_file(path)
        return Features(tensors["bank"], tensors.get("test"))


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Eval mode, no gradients; afterwards every submodule is back in the mode it was in (frozen ones stay in eval)."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for part, training in modes:
            part.training = training


def embed(
    encoder: nn.Module,
    images: Images,
    mean: Sequence[float],
    std: Sequence[float],
    device: torch.device | str = "cpu",
    batch_size: int = 512,
    ticker: Ticker | None = None,
    shard: tuple[int, int] | None = None,
) -> Tensor:
    """float32 [N, d] on `device`: the encoder's output of every image, in order, without augmentation.

    With `shard = (rank, world)` only the images rank, rank + world, rank + 2 * world, ... are embedded;
    `join_shards` puts the parts of all ranks back in order.
    """
    rank, world = shard or (0, 1)
    indices = torch.arange(rank, len(images), world)
    assert len(indices) > 0, f"no images to embed (rank {rank} of {world}, {len(images)} images)"
    output = torch.empty(0)
    with evaluating(encoder):
        for start in range(0, len(indices), batch_size):
            part = indices[start : start + batch_size]
            batch = normalise(images.take(part).to(device, non_blocking=True), mean, std)
            features = encoder(batch).float()
            assert features.ndim == 2 and len(features) == len(part), f"an encoder returns [B, d], not {features.shape}"
            if start == 0:
                output = torch.empty(len(indices), features.shape[1], device=features.device)
            output[start : start + len(part)] = features
            if ticker is not None:
                ticker.advance(len(part))
    return output


def join_shards(parts: Sequence[Tensor]) -> Tensor:
    """The parts of ranks 0 to W-1 (as `embed` made them with `shard`) in the order of the images."""
    whole = parts[0].new_empty(sum(len(part) for part in parts), parts[0].shape[1])
    for rank, part in enumerate(parts):
        whole[rank :: len(parts)] = part
    return whole


def embed_benchmark(
    encoder: nn.Module,
    benchmark: Benchmark,
    device: torch.device | str = "cpu",
    batch_size: int = 512,
    ticker: Ticker | None = None,
    shard: tuple[int, int] | None = None,
) -> Features:
    """One pass over the bank and the test images; labels are not read."""

    def pass_over(images: Images) -> Tensor:
        return embed(encoder, images, benchmark.mean, benchmark.std, device, batch_size, ticker, shard)

    test = benchmark.test
    return Features(pass_over(benchmark.bank.images), None if test is None or not len(test) else pass_over(test.images))
