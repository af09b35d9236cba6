"""What the method `readout` makes of sums over the layers of a network: its own choices, and the user's own."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import get_args

from osiris.exact.moments import Moments
from osiris.exact.readout import Fitted, fit
from osiris.framework.options import Configurable, parse
from osiris.models.config import Readout


class ReadoutMap(Configurable):
    """A linear map of joined layers, from sums over the images that were seen."""

    @abstractmethod
    def fit(self, images: Moments, drawings: Moments, sizes: Sequence[int], dimension: int) -> Fitted:
        """`images`: the sums over joined layers of these `sizes`, the last of which is the network's own output;
        `drawings`: the same of a fixed set of drawings, to steady the sums over few images. The map is
        `(x - centre) @ projection` with a projection [sum of sizes, dimension]."""


def fitted(name: str, images: Moments, drawings: Moments, sizes: Sequence[int], dimension: int) -> Fitted:
    """The map of a value of `--readout`."""
    if name == "start":
        return Fitted.own(sizes, dimension, images.count)
    if name in get_args(Readout):
        return fit(images, drawings, sizes, dimension, 0.0 if name == "whitened" else None)
    return parse(ReadoutMap, name, get_args(Readout)).fit(images, drawings, sizes, dimension)
