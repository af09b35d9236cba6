"""The operations behind the views: whole batches, per-image parameters, no branch on values.

Images are float32 [B, 3, H, W] in [0, 1]; every parameter is a tensor with one row per image on the same device, so
that nothing here waits for the device. Resampling and blurring are separable linear maps, hence one small matrix per
image and axis. Selections are written as minima, signs and products because `torch.where` is several times slower than
these on a CPU.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

LUMA = (0.299, 0.587, 0.114)
"""ITU-R 601-2, Pillow's conversion to grey."""
BRIGHTNESS, CONTRAST, SATURATION, HUE = range(4)


def upload(tensor: Tensor, device: torch.device | str) -> Tensor:
    """Copy from the host without waiting for the work already queued on a CUDA device: that needs pinned memory.
    Other devices copy at once: MPS would read pageable memory that may be freed by then (pytorch issue 189690)."""
    cuda = torch.device(device).type == "cuda"
    if cuda and tensor.device.type == "cpu":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=cuda)


@cache
def constant(values: tuple[Any, ...], device: torch.device) -> Tensor:
    """A constant on a device, copied there once; nothing may write to it."""
    return upload(torch.tensor(values), device)


def cubic(distance: Tensor) -> Tensor:
    """Keys' kernel with a = -1/2 (Pillow's BICUBIC) at a distance >= 0 in pixels.

    Both pieces vanish at 1, where they meet, and the outer one at 2: clamping each to its interval and adding them is
    the piecewise function.
    """
    inner = distance.clamp(max=1)
    outer = distance.clamp(1, 2)
    near = (1.5 * inner - 2.5).mul_(inner).mul_(inner).add_(1)
    far = (outer - 5).mul_(outer).add_(8).mul_(outer).sub_(4)
    return near.sub_(far, alpha=0.5)


def resampling_weights(start: Tensor, extent: Tensor, length: int, size: int, mirror: Tensor | None = None) -> Tensor:
    """[B, size, length]: rows that resample pixels start to start + extent (both [B]) of an axis to `size` pixels.

    As Pillow's resize of the cropped image: the kernel is stretched when shrinking (antialias), pixels outside the crop
    have no weight, and every row sums to one. `mirror` [B] (0 or 1) reverses the output, which makes a flip free.
    """
    start, extent = start[:, None, None], extent[:, None, None]
    output = torch.arange(size, device=start.device, dtype=start.dtype)[:, None] + 0.5
    pixel = torch.arange(length, device=start.device, dtype=start.dtype)
    if mirror is not None:
        output = output + mirror[:, None, None] * (size - 2 * output)
    scale = extent / size
    centre = start + output * scale
    weights = cubic((pixel + 0.5 - centre).abs_().div_(scale.clamp(min=1)))
    weights *= (pixel >= start) & (pixel < start + extent)
    return weights.div_(weights.sum(2, keepdim=True))


def separable(images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Apply columns [B, size, W] along the width, then rows [B, size, H] along the height, clamping as Pillow does."""
    count, channels, height, width = images.shape
    wide = torch.bmm(images.reshape(count, channels * height, width), columns.transpose(1, 2)).clamp_(0, 1)
    tall = torch.matmul(rows[:, None], wide.view(count, channels, height, -1))
    return tall.clamp_(0, 1)


def shifts(radius: int, length: int, device: torch.device) -> Tensor:
    """[2 * radius + 1, length, length]: shifts by -radius to radius pixels that repeat the edge beyond the border."""
    offset = torch.arange(-radius, radius + 1, device=device)[:, None]
    pixel = torch.arange(length, device=device)
    source = (pixel + offset).clamp_(0, length - 1)
    return (source[:, :, None] == pixel).float()


def blur_weights(sigma: Tensor, shifted: Tensor) -> Tensor:
    """[B, length, length]: a Gaussian of `sigma` [B] pixels as a sum of shifts; sigma = 0 gives the identity."""
    radius, length = len(shifted) // 2, shifted.shape[1]
    offset = torch.arange(-radius, radius + 1, device=sigma.device)
    taps = torch.exp(-0.5 * (offset / sigma[:, None].clamp(min=1e-3)) ** 2)
    taps /= taps.sum(1, keepdim=True)
    return (taps @ shifted.flatten(1)).view(-1, length, length)


def blur(images: Tensor, sigma: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Gaussian blur of `sigma` [B] pixels, with the `shifts` of the height (rows) and of the width (columns)."""
    row_weights = blur_weights(sigma, rows)
    return separable(images, row_weights, row_weights if columns is rows else blur_weights(sigma, columns))


class Blend(NamedTuple):
    """factor * image + (1 - factor) * target for each image: a 3x3 matrix and a share of the mean grey value."""

    matrix: Tensor
    """[B, 3, 3]"""
    mean_share: Tensor
    """[B, 3]: what the mean of each channel adds to every value."""

    @staticmethod
    def towards(factor: Tensor, mean: Tensor, grey: Tensor) -> Blend:
        """All [B]. The target is black (brightness), where `mean` is 1 the mean of the grey image (contrast), where
        `grey` is 1 the grey image (saturation; with factor 0, the grey image itself)."""
        luma = constant(LUMA, factor.device)
        same = factor[..., None, None] * torch.eye(3, device=factor.device)
        matrix = same + ((1 - factor) * grey)[..., None, None] * luma
        return Blend(matrix, ((1 - factor) * mean)[..., None] * luma)

    def rows(self, index: slice) -> Blend:
        return Blend(self.matrix[index], self.mean_share[index])

    def apply(self, images: Tensor) -> Tensor:
        pixels = images.flatten(2)
        offset = (pixels.mean(2) * self.mean_share).sum(1)[:, None, None]
        return torch.baddbmm(offset, self.matrix, pixels).clamp_(0, 1).view_as(images)


class Hue(NamedTuple):
    """A rotation of the hue of HSV that keeps saturation and value."""

    turns: Tensor
    """[B] parts of a full turn, -1/2 to 1/2."""

    def rows(self, index: slice) -> Hue:
        return Hue(self.turns[index])

    def apply(self, images: Tensor) -> Tensor:
        return shift_hue(images, self.turns)


def shift_hue(images: Tensor, turns: Tensor) -> Tensor:
    """Rotate the hue of HSV by `turns` [B], keeping saturation and value.

    With chroma C = max - min, and r, g, b the channels less min over C, the hue in sixths of a turn lies at a distance
    of 2 + r - g - b from 3 (cyan), beyond it where b > g. Back again, a channel is a trapezium in the hue.
    """
    red, green, blue = images.unbind(1)
    low = torch.minimum(torch.minimum(red, green), blue)
    chroma = torch.maximum(torch.maximum(red, green), blue).sub_(low)
    distance = (red - green).sub_(blue).add_(low).div_(chroma.clamp(min=1e-7)).add_(2)
    from_cyan = torch.copysign(distance, blue - green).add_(6 * turns[:, None, None])
    from_cyan -= 6 * torch.round(from_cyan / 6)
    shape = ((0.0, -1.0, 1.0), (1.0, -1.0, -1.0), (-1.0, 2.0, 2.0))
    centre, sign, level = constant(shape, images.device).view(3, 3, 1, 1)
    trapezium = (from_cyan[:, None] - centre).abs_().mul_(sign).add_(level).clamp_(0, 1)
    return torch.addcmul(low[:, None], trapezium, chroma[:, None])


def jitter(factors: Tensor, turn: Tensor) -> list[Blend | Hue]:
    """The steps of a colour jitter: brightness, contrast, saturation, hue by `factors`, each at its `turn` [B, 4].

    Three of the four are cheap and of one form; hue is not. So hue is done once for all images, after three slots for
    what precedes it in the image's own order and before three for what follows. A slot that an image does not use is
    the identity.
    """
    slot = constant((0, 1, 2, 1, 2, 3), turn.device)[:, None, None]
    before = constant((True, True, True, False, False, False), turn.device)[:, None, None]
    used = (turn[:, :HUE] == slot) & ((turn[:, HUE:] > slot) == before)
    chosen = used.to(factors.dtype)
    factor = 1 + (chosen * (factors[:, :HUE] - 1)).sum(2)
    steps = Blend.towards(factor, mean=chosen[..., CONTRAST], grey=chosen[..., SATURATION])
    blends = [Blend(matrix, share) for matrix, share in zip(*steps)]
    return [*blends[:3], Hue(factors[:, HUE]), *blends[3:]]


def grey(chosen: Tensor) -> Blend:
    """The grey image where `chosen` [B] is 1, the image itself where it is 0."""
    return Blend.towards(1 - chosen, mean=torch.zeros_like(chosen), grey=torch.ones_like(chosen))


def solarise(images: Tensor, threshold: Tensor) -> Tensor:
    """Invert the values from `threshold` [B] upwards; a threshold above 1 leaves the image alone."""
    inverted = torch.empty_like(images)
    torch.ge(images, threshold[:, None, None, None], out=inverted)
    return inverted.sub_(images).abs_()
