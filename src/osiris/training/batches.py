"""The images of an episode, on the host or on the device, read by position."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from osiris.augment.operations import upload
from osiris.data.images import Images
from osiris.devices import total_memory

SHARE = 0.1
"""Images are kept on a GPU if they take no more than this part of its memory."""


def kept_bytes(images: Images, device: torch.device, keep: bool | None = None) -> int:
    """What the images take on the device, 0 if they stay on the host. `keep`: all of them on the device; None: if it is
    a GPU with room for them and they are decoded already."""
    size = len(images) * math.prod(images.shape)
    if keep is None:
        room = total_memory(device)
        keep = room is not None and images.decoded and size <= SHARE * room
    return size if keep and device.type != "cpu" else 0


class TrainingImages:
    """The images of an episode, as batches on the device.

    On a GPU with room for all of them they are copied once; then a batch needs its positions alone. Otherwise every
    batch is copied from the host, while the device works on the one before.
    """

    def __init__(self, images: Images, device: torch.device, keep: bool | None = None) -> None:
        """`keep`: see `kept_bytes`."""
        self.images, self.device = images, device
        self.kept: Tensor | None = None
        if kept_bytes(images, device, keep):
            self.kept = upload(images.take(torch.arange(len(images))), device)

    def take(self, positions: Tensor) -> Tensor:
        """uint8 [N, 3, H, W] on the device."""
        if self.kept is None:
            return upload(self.images.take(positions), self.device)
        return self.kept[upload(positions, self.device)]

    def prefetch(self, positions: Tensor) -> None:
        """Hint that these images will be taken soon."""
        if self.kept is None:
            self.images.prefetch(positions)
