"""A readout of a network that is trained (`--readout` with a method of gradients).

Training changes what the layers give, so sums over earlier images are those of another network. The map is therefore
made again after each episode, of images that are at hand: some of the episode, and those of the memory. Unlike the
method `readout` it is not exact: it depends on which images these are, and an image cannot be taken out of it.
"""

from __future__ import annotations

import torch

from osiris.config import Config
from osiris.data.benchmark import Benchmark
from osiris.evaluation.health import fixed_subset
from osiris.framework.summed import SummedReadout
from osiris.memory import Memory
from osiris.models.external import Architecture
from osiris.models.joined import JoinedEncoder, join
from osiris.training.engine import Engine
from osiris.training.schedule import Episode

MOST = 2000
"""Images of the episode that are passed over once more."""


class TrainedReadout:
    """It holds no state: network, memory and episode decide about the map."""

    def __init__(self, config: Config, engine: Engine, benchmark: Benchmark) -> None:
        assert config.encoder.readout is not None
        shape = benchmark.train.images.shape
        encoder = join(engine.networks.encoder, config.encoder.readout_size, shape)
        encoder.readout.to(engine.device)
        name, kind = config.encoder.encoder, config.encoder.readout
        self.summed = SummedReadout(encoder, name, kind, benchmark.mean, benchmark.std, shape[-1])

    @property
    def architecture(self) -> Architecture:
        return self.summed.architecture

    def made_of(self, episode: Episode, memory: Memory) -> JoinedEncoder:
        """The network as it is, with a readout of images at hand."""
        assert episode.images is not None
        self.summed.begin(torch.empty(0))
        total = self.summed.over(episode.images.take(fixed_subset(len(episode.images), MOST)))
        if memory.filled:
            total += self.summed.over(memory.images[: memory.filled].cpu())
        self.summed.set(total)
        return self.summed.encoder
