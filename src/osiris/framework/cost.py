"""The cost of a method: encoder passes per training image, images per second, and what it stores beyond f and g.

A backward pass counts as two forward passes. A frozen encoder has no backward pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from osiris.framework.methods import Method
from osiris.framework.representations import Frozen
from osiris.framework.tracing import IMAGES, Scene, one_thread
from osiris.framework.trainable import TrainableMethod
from osiris.models.config import EncoderConfig, ProjectorConfig
from osiris.models.encoder import build_encoder, without_memory
from osiris.models.joined import join


@dataclass(frozen=True)
class Cost:
    """Views that pass through an encoder for each image of X."""

    forward: float
    backward: float

    def __str__(self) -> str:
        return f"{self.forward:g}+{self.backward:g}"

    @property
    def frozen(self) -> float:
        """Forward passes without a backward."""
        return self.forward - self.backward

    @property
    def work(self) -> float:
        """Forward and backward passes together, in units of one forward pass of one view."""
        return self.forward + 2 * self.backward


TWO_VIEWS = Cost(forward=2, backward=2)
"""The cost of ft, of the first task of every method, and of offline and d1-only."""


@one_thread()
def measure_cost(method: Method) -> dict[str, Cost]:
    """Encoder passes per image of X in one step: `f: X`, `f: Y`, `f*: X`. Without the Fisher pass of ewc."""
    if method.sums is not None:
        return {"f: X": Cost(forward=1, backward=0)}
    scene = Scene(method)
    rep, context = scene.represent()
    scene.model(rep, context)
    named = {module: symbol for symbol, module in {"f": scene.networks.encoder, **scene.networks.frozen}.items()}
    costs: dict[str, Cost] = {}
    for (source, encoder, heads), features in rep.local.items():
        if not heads:
            key = f"{named.get(encoder, 'frozen' if isinstance(encoder, Frozen) else 'expert')}: {source}"
            before, views = costs.get(key, Cost(0, 0)), 2 * features.shape[1] / IMAGES
            costs[key] = Cost(before.forward + views, before.backward + views * features.requires_grad)
    return costs


def total_cost(costs: Mapping[str, Cost]) -> Cost:
    return Cost(sum(cost.forward for cost in costs.values()), sum(cost.backward for cost in costs.values()))


@cache
def later_cost(method: Method) -> Cost:
    """The cost of an image in each epoch, from the second task on."""
    cost = total_cost(measure_cost(method)) if method.learns == "continual" else TWO_VIEWS
    return Cost(cost.forward * method.length, cost.backward * method.length)


def throughput(rates: Sequence[float]) -> float:
    """Images per second: the median over logged lines, which ignores the warm-up and outliers of a busy machine."""
    return float(np.median(rates)) if len(rates) else float("nan")


SLOT_BYTES = 24
"""Source id, task and insertion step, 64 bits each."""


@dataclass(frozen=True)
class Storage:
    """Numbers stored beyond the model itself, by what they are (Fig. 6)."""

    pixels: int
    """Pixel channels in the memory."""
    slots: int
    embeddings: int
    """Values stored beside the images (der)."""
    parameters: dict[str, int]
    """Numbers of parameters of networks other than f and g, by name."""
    sums: int = 0
    """Values of sums over images, in float64."""

    @property
    def paper(self) -> int:
        """Bytes, as the paper counts: each parameter and each channel of each pixel in the memory is 64 bits."""
        return 8 * (self.pixels + self.embeddings + sum(self.parameters.values()) + self.sums)

    @property
    def stored(self) -> int:
        """Bytes on disk: images as bytes, parameters and embeddings as 32-bit numbers."""
        numbers = self.embeddings + sum(self.parameters.values())
        return self.pixels + SLOT_BYTES * self.slots + 4 * numbers + 8 * self.sums

    @property
    def described(self) -> str:
        parts = [f"{self.slots} images"] if self.slots else []
        parts += [f"{self.embeddings:,} embedding values"] if self.embeddings else []
        parts += [f"{name} ({count:,})" for name, count in self.parameters.items()]
        parts += [f"sums ({self.sums:,})"] if self.sums else []
        return ", ".join(parts) or "nothing"


def measure_storage(
    method: Method, encoder: EncoderConfig, projector: ProjectorConfig, memory_size: int, shape: tuple[int, int, int]
) -> Storage:
    """Count what a method holds besides f and g, on the meta device. `shape`: (3, height, width) of an image."""
    if method.sums is not None:
        return _storage_of_sums(encoder, shape)
    with without_memory():
        size = memory_size if method.reads_memory else 0
        model = TrainableMethod(method, build_encoder(encoder), projector, size, shape)
    networks, memory = model.networks, model.memory
    extra: dict[str, int] = {}
    modules = [(name, head) for name, head in networks.heads.items() if name != "g"]
    modules += networks.frozen.items()
    for part in (networks.objective, *(term for _, term, _ in model.later)):
        modules += [(part.symbols.get(name, name), child) for name, child in part.named_children()]
        for name, value in part.named_buffers(recurse=False):
            kind = name.rstrip("0123456789").rstrip("_")
            extra[kind] = extra.get(kind, 0) + value.numel()
    for name, module in modules:
        extra[name] = extra.get(name, 0) + sum(parameter.numel() for parameter in module.parameters())
    return Storage(
        pixels=memory.images.numel(),
        slots=memory.size,
        embeddings=sum(memory.get_buffer(f"field_{name}").numel() for name in memory.fields),
        parameters=extra,
    )


def _storage_of_sums(encoder: EncoderConfig, shape: tuple[int, int, int]) -> Storage:
    """The map, and the sums over images and drawings, of which half of the symmetric matrix is stored."""
    joined = join(build_encoder(encoder), encoder.readout_size, shape)
    size = sum(joined.layers.sizes)
    return Storage(0, 0, 0, {"map": joined.readout.projection.numel()}, sums=2 * (size + size * (size + 1) // 2))
