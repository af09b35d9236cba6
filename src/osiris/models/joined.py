"""An encoder whose features are a readout of several layers of a network."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from osiris.exact.readout import Readout
from osiris.models.layers import MOST, Layers

LAYERS = "layers"
"""The entry of an architecture that says which layers are joined."""


class JoinedEncoder(nn.Module):
    """Normalised images [B, 3, H, W] to features [B, P]; before it has learned anything, to what the network
    returns (and zeros)."""

    def __init__(self, layers: Layers, dimension: int) -> None:
        super().__init__()
        self.layers = layers
        self.readout = Readout(layers.sizes, dimension)

    @property
    def network(self) -> nn.Module:
        return self.layers.network

    @property
    def record(self) -> dict[str, Any]:
        """From which `joined` builds it again around its network."""
        layers = self.layers
        return {"names": [*layers.names], "sizes": [*layers.sizes], "dimension": self.readout.projection.shape[1]}

    def read_by(self, readout: Readout) -> JoinedEncoder:
        """The same layers with another readout."""
        other = JoinedEncoder(self.layers, 1)
        other.readout = readout
        return other

    def forward(self, images: Tensor) -> Tensor:
        return self.readout(self.layers(images))


def join(network: nn.Module, dimension: int | None, image_shape: tuple[int, int, int]) -> JoinedEncoder:
    """Around a network whose layers are found by tracing it on such images."""
    layers = Layers.found(network, image_shape)
    joined = sum(layers.sizes)
    return JoinedEncoder(layers, min(dimension or joined, joined))


def joined(network: nn.Module, record: dict[str, Any]) -> JoinedEncoder:
    """Around a network whose layers are recorded."""
    names, sizes = tuple(map(str, record["names"])), tuple(map(int, record["sizes"]))
    known = dict(network.named_modules())
    if len(sizes) != len(names) + 1 or not all(name in known for name in names) or min(sizes) < 1:
        raise ValueError("its layers are not those of its network")
    dimension = int(record["dimension"])
    if sum(sizes) > MOST + sizes[-1] or not 1 <= dimension <= sum(sizes):
        raise ValueError(f"it claims to join {sum(sizes)} numbers into {dimension}")
    return JoinedEncoder(Layers(network, names, sizes), dimension)
