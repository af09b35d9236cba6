"""What a method must store beyond the model itself (Fig. 6).

`paper` counts as the paper does: each extra parameter and each channel of each pixel in the memory as a 64-bit value.
`stored` counts what lies on the disk here: images as bytes, parameters and embeddings as 32-bit numbers, and 24 bytes
per memory slot for where an image came from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from osiris.models.config import EncoderConfig, ProjectorConfig

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


@cache
def encoder_parameters(config: EncoderConfig) -> int:
    from osiris.models.encoder import build_encoder

    return sum(parameter.numel() for parameter in build_encoder(config).parameters())


def projector_parameters(features: int, config: ProjectorConfig) -> int:
    """Linear with bias, Linear without."""
    hidden = config.projector_hidden
    return features * hidden + hidden + hidden * config.projector_output


def predictor_parameters(config: ProjectorConfig) -> int:
    """Linear and Linear, both with bias, in the space of g."""
    hidden, size = config.projector_hidden, config.projector_output
    return size * hidden + hidden + hidden * size + size


def adapter_parameters(features: int) -> int:
    """Four linear layers d - 2d - d - 2d - d."""
    return 2 * (features * 2 * features + 2 * features) + 2 * (2 * features * features + features)


def storage(
    composition: Mapping[str, Any],
    encoder: EncoderConfig,
    projector: ProjectorConfig,
    memory_size: int,
    shape: Sequence[int],
) -> Storage:
    """From a method's composition (as config.json records it) and the sizes. `shape`: (3, height, width)."""
    terms = [term for role in ("current", "cross", "past") for term in composition.get(role, [])]
    kinds = {term["kind"] for term in terms}
    whole, head = encoder_parameters(encoder), projector_parameters(encoder.features, projector)
    extra: dict[str, int] = {}
    if any(term.get("space") == "h" for term in terms):
        extra["h"] = head
    if kinds & {"distil", "predict"}:
        extra["f*"] = whole
    if "predict" in kinds:
        extra |= {"g*": head, "predictor": predictor_parameters(projector)}
    if "elastic" in kinds:
        extra |= {"Fisher": whole, "theta*": whole}
    if "expert" in kinds:
        extra |= {"expert": whole, "its projector": head, "its snapshot": whole}
        extra["adapter m"] = adapter_parameters(encoder.features)
    if "snapshot" in kinds:
        extra |= {"snapshot of f": whole, "adapter n": adapter_parameters(encoder.features)}
    reads = reads_memory(terms)
    slots = memory_size if reads else 0
    return Storage(
        pixels=slots * shape[0] * shape[1] * shape[2],
        slots=slots,
        embeddings=slots * projector.projector_output if "match" in kinds else 0,
        parameters=extra,
    )


def reads_memory(terms: Sequence[Mapping[str, Any]]) -> bool:
    """Whether any term needs Y."""
    always = {"cross", "match", "mixed", "negatives"}
    return any(term["kind"] in always or "Y" in str(term.get("batch", "")) for term in terms)
