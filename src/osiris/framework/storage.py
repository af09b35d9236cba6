"""What a method must store beyond the model itself (Fig. 6).

`paper` counts as the paper does: each extra parameter and each channel of each pixel in the memory as a 64-bit value.
`stored` counts the bytes on disk: images as bytes, parameters and embeddings as 32-bit numbers, and 24 bytes per memory
slot for source, task and step.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from osiris.framework.methods import Method
from osiris.framework.trainable import TrainableMethod
from osiris.models import EncoderConfig, ProjectorConfig, build_encoder

SLOT_BYTES = 24
"""Source id, task and insertion step, 64 bits each."""


@dataclass(frozen=True)
class Storage:
    """Numbers stored, by what they are."""

    pixels: int
    """Pixel channels in the memory."""
    slots: int
    embeddings: int
    """Values stored beside the images (der)."""
    parameters: dict[str, int]
    """Name -> count, of networks beside f and g."""

    @property
    def paper(self) -> int:
        """Bytes, as the paper counts."""
        return 8 * (self.pixels + self.embeddings + sum(self.parameters.values()))

    @property
    def stored(self) -> int:
        """Bytes, as stored here."""
        return self.pixels + SLOT_BYTES * self.slots + 4 * (self.embeddings + sum(self.parameters.values()))

    @property
    def described(self) -> str:
        parts = [f"{self.slots} images"] if self.slots else []
        parts += [f"{self.embeddings:,} embedding values"] if self.embeddings else []
        parts += [f"{name} ({count:,})" for name, count in self.parameters.items()]
        return ", ".join(parts) or "nothing"


def measure_storage(
    method: Method, encoder: EncoderConfig, projector: ProjectorConfig, memory_size: int, shape: tuple[int, int, int]
) -> Storage:
    """Count what a method holds besides f and g, on the meta device. `shape`: (3, height, width) of an image."""
    with torch.device("meta"):
        size = memory_size if method.reads_memory else 0
        model = TrainableMethod(method, build_encoder(encoder), projector, size, shape)
    networks, memory = model.networks, model.memory
    extra: dict[str, int] = {}
    modules = [(name, head) for name, head in networks.heads.items() if name != "g"]
    modules += [("f*" if name == "encoder" else f"{name}*", frozen) for name, frozen in networks.past.items()]
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
