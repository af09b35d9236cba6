"""The encoder of a state as its index sees it: what embeds images, which version its vectors are of, and a readout.

A readout is a linear map of what a frozen network gives. It changes with each episode, the network does not: so the
index keeps what the network gives, and the newest readout is applied when vectors are compared.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from osiris.errors import UserError
from osiris.evaluation.embedder import Embedder
from osiris.files import load_tensors
from osiris.index.records import Version
from osiris.models.joined import LAYERS, JoinedEncoder
from osiris.runs.state import digest

NETWORK, READOUT = "encoder.layers.network.", "encoder.readout."
ROUNDING = 2**-10
"""Half precision rounds by less than this part of a number, unless the number is very small or large."""
Identity = tuple[int, int, int]
"""Of a file: another one that takes its place has another."""


@dataclass(frozen=True, eq=False)
class View:
    """The linear map of kept vectors, (x - centre) @ projection, by which they are compared."""

    centre: np.ndarray
    """float32 [D]"""
    projection: np.ndarray
    """float32 [D, P]"""
    digest: str


@dataclass(frozen=True)
class Compared:
    """Which version the vectors of the newest weights are of, and how they are compared."""

    version: Version
    view: View | None
    """None: as they are kept."""

    @property
    def same(self) -> tuple[str, str | None]:
        """Equal if features are equal."""
        return self.version.digest, None if self.view is None else self.view.digest


@dataclass(frozen=True)
class Newest(Compared):
    """And what embeds images."""

    embedder: Embedder

    @cached_property
    def kept(self) -> Embedder:
        """Gives what the index keeps, before `as_kept`."""
        encoder = self.embedder.encoder
        return self.embedder.of(encoder.layers) if isinstance(encoder, JoinedEncoder) else self.embedder

    def as_kept(self, features: Tensor) -> np.ndarray:
        """Before a readout in half precision, where that is enough; else float32, L2-normalised."""
        encoder = self.embedder.encoder
        if not isinstance(encoder, JoinedEncoder):
            return as_compared(features)
        if not len(features):
            return features.numpy()
        half = features.half()
        for layer, short in zip(*(rows.split(encoder.layers.sizes, dim=1) for rows in (features, half))):
            if not bool((short.float() - layer).norm() <= ROUNDING * layer.norm()):
                return features.numpy()
        return half.numpy()


def as_compared(features: Tensor) -> np.ndarray:
    """float32, L2-normalised: vectors of which cosines are taken."""
    return normalize(features, dim=1).numpy()


def identity(path: Path) -> Identity:
    status = path.stat()
    return status.st_ino, status.st_size, status.st_mtime_ns


@lru_cache(maxsize=4)
def read_compared(path: Path, written: Identity, episode: int) -> Compared:
    """Of `episodes/NN-NAME/weights.safetensors`, after `episode` (from 1). `written`: so that other weights in their
    place are read again."""
    tensors, metadata = load_tensors(path)
    content: dict[str, object] = {"prepared": {name: metadata.get(name) for name in ("mean", "std", "image_size")}}
    layers = (metadata.get("architecture") or {}).get(LAYERS)
    if layers is None:
        encoder = {name: tensor for name, tensor in tensors.items() if name.startswith("encoder.")}
        return Compared(Version(episode=episode, digest=digest(content | {"encoder": encoder})), None)
    network = {name: tensor for name, tensor in tensors.items() if name.startswith(NETWORK)}
    version = Version(episode=episode, digest=digest(content | {"network": network, "layers": layers}))
    return Compared(
        version, _view(path, *(tensors.get(READOUT + name, torch.empty(0)) for name in ("centre", "projection")))
    )


def _view(path: Path, centre: Tensor, projection: Tensor) -> View:
    fits = projection.ndim == 2 and projection.shape[:1] == centre.shape
    if not fits or not all(one.dtype == torch.float32 and bool(one.isfinite().all()) for one in (centre, projection)):
        raise UserError(f"{path} has no readout that fits its layers: use the weights of another episode.")
    return View(centre.numpy(), projection.numpy(), digest([centre, projection]))


@lru_cache(maxsize=2)
def open_embedder(path: Path, written: Identity, device: torch.device) -> Embedder:
    return Embedder(path, device)


def read_newest(path: Path, written: Identity, episode: int, device: torch.device) -> Newest:
    """Two reads of one file: the caller makes sure that `written` is still its identity after them."""
    known = read_compared(path, written, episode)
    return Newest(known.version, known.view, open_embedder(path, written, device))
