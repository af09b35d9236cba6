"""Two random views of every image of a batch, on the training device (the paper's appendix on augmentation).

Each image is cropped and resized, flipped, jittered in colour, turned grey, blurred, solarised and normalised. All
random parameters are drawn first, on the CPU and for the global batch (`draw`); the work on pixels that follows is
deterministic (`apply`). Hence image i of the global batch gets the same views however the batch is split over
processes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from osiris.augment import operations as ops

CROP_TRIES = 10
BLUR_REACH = 4.0
"""The Gaussian is cut at this many of the largest standard deviation; beyond lies less than 1e-4 of it."""
CHUNK_VALUES = 128 * 3 * 32 * 32
"""A CPU works on this many values at a time: few enough for its cache, enough to outweigh the cost of the calls."""


@dataclass(frozen=True)
class ViewConfig:
    """How one view is made; the defaults are the paper's first view."""

    crop_scale: tuple[float, float] = (0.08, 1.0)
    """Area of the crop as a part of the image, uniform."""
    crop_ratio: tuple[float, float] = (3 / 4, 4 / 3)
    """Width over height of the crop, uniform in the logarithm."""
    flip: float = 0.5
    """Probability of a horizontal flip."""
    brightness: float = 0.4
    """The factor is uniform in 1 - this to 1 + this."""
    contrast: float = 0.4
    """The factor, drawn as for brightness, towards the mean of the grey image."""
    saturation: float = 0.2
    """The factor, drawn as for brightness, towards the grey image."""
    hue: float = 0.1
    """The hue is shifted by up to this part of a turn, either way."""
    jitter_probability: float = 0.8
    """Probability of the four together, in a random order."""
    grey: float = 0.2
    """Probability of a grey image."""
    blur: float = 1.0
    """Probability of a Gaussian blur."""
    blur_sigma: tuple[float, float] = (0.1, 2.0)
    """Its standard deviation in pixels, uniform."""
    solarise: float = 0.0
    """Probability of inverting bright values."""
    solarise_threshold: float = 0.5
    """Values from here upwards are bright."""


VIEW_1 = ViewConfig()
VIEW_2 = ViewConfig(blur=0.1, solarise=0.2)
_GENTLE = replace(VIEW_1, crop_scale=(0.2, 1.0), blur=0.0, solarise=0.0)
VIEWS = {"paper": (VIEW_1, VIEW_2), "gentle": (_GENTLE, _GENTLE)}
"""By name: the paper's, and one for drawings of 32 pixels, where a blur of two pixels or a crop of a twelfth leaves
nothing to recognise."""


@dataclass(frozen=True)
class Parameters:
    """What was drawn for each image, one row per image; None where the view never does it. All float32 but `turn`."""

    box: Tensor
    """[B, 4] top, left, height, width of the crop in whole pixels."""
    flip: Tensor
    """[B] 1 or 0."""
    factors: Tensor | None = None
    """[B, 4] brightness, contrast, saturation (1: unchanged) and turns of hue (0: unchanged)."""
    turn: Tensor | None = None
    """int64 [B, 4] when each of the four is applied, a permutation of 0 to 3."""
    grey: Tensor | None = None
    """[B] 1 or 0."""
    sigma: Tensor | None = None
    """[B] standard deviation of the blur in pixels (0: unchanged)."""
    threshold: Tensor | None = None
    """[B] solarise from this value upwards (above 1: unchanged)."""
    own: Tensor | None = None
    """[B, n] uniform numbers for an augmentation of the user's own."""
    blur_radius: int = 8
    """Pixels to either side that a blur may reach."""

    def __len__(self) -> int:
        return len(self.box)

    def rows(self, index: slice | Tensor) -> Parameters:
        """The parameters of some of the images."""
        return self._each(lambda tensor: tensor[index])

    def to(self, device: torch.device | str) -> Parameters:
        """The parameters on another device, in one copy and without waiting for it."""
        if self.box.device == torch.device(device):
            return self
        tensors = self._tensors()
        columns = [value[:, None] if value.ndim == 1 else value for value in tensors.values()]
        rows = ops.upload(torch.cat([column.float() for column in columns], 1), device)
        parts = zip(tensors.items(), rows.split([column.shape[1] for column in columns], 1))
        return replace(self, **{name: part.reshape(value.shape).to(value.dtype) for (name, value), part in parts})

    def _each(self, change: Callable[[Tensor], Tensor]) -> Parameters:
        return replace(self, **{name: change(value) for name, value in self._tensors().items()})

    def _tensors(self) -> dict[str, Tensor]:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, Tensor)}


def join(parts: Sequence[Parameters]) -> Parameters:
    """The parameters of several batches with the same operations as those of one batch."""
    tensors = [part._tensors() for part in parts]
    return replace(parts[0], **{name: torch.cat([own[name] for own in tensors]) for name in tensors[0]})


def _draw_boxes(uniform: Tensor, height: int, width: int, view: ViewConfig) -> Tensor:
    """[B, 4] crops from uniform [B, 2 * CROP_TRIES + 2]: the first try that fits, else the largest crop in the centre.

    All tries are drawn for every image, so that the number of tries of one image does not change the draws of others.
    """
    tries, place = uniform[:, : 2 * CROP_TRIES].view(-1, 2, CROP_TRIES), uniform[:, 2 * CROP_TRIES :]
    low, high = view.crop_scale
    area = height * width * (low + (high - low) * tries[:, 0])
    narrow, broad = view.crop_ratio
    root_ratio = torch.exp(0.5 * (math.log(narrow) + math.log(broad / narrow) * tries[:, 1]))
    side = area.sqrt()
    heights, widths = (side / root_ratio).round(), (side * root_ratio).round()
    fits = (heights >= 1) & (heights <= height) & (widths >= 1) & (widths <= width)
    first = fits.long().argmax(1, keepdim=True)
    sizes = torch.stack([heights, widths], 2).gather(1, first[:, :, None].expand(-1, 1, 2)).squeeze(1)

    fallback_height = min(height, max(1, round(width / narrow)))
    fallback_width = min(width, max(1, round(height * broad)))
    fallback = torch.tensor([fallback_height, fallback_width], dtype=uniform.dtype)
    fitting = fits.any(1, keepdim=True)
    sizes = torch.where(fitting, sizes, fallback)
    room = torch.tensor([height, width], dtype=uniform.dtype) - sizes
    corner = torch.where(fitting, torch.minimum((place * (room + 1)).floor(), room), (room / 2).floor())
    return torch.cat([corner, sizes], 1)


def _draw_jitter(uniform: Tensor, view: ViewConfig) -> tuple[Tensor, Tensor]:
    """factors and turn [B, 4] from uniform [B, 9]; an image that is not chosen gets the factors that change nothing."""
    strengths = (view.brightness, view.contrast, view.saturation)
    low = torch.tensor([*(max(0.0, 1 - strength) for strength in strengths), -view.hue])
    high = torch.tensor([*(1 + strength for strength in strengths), view.hue])
    unchanged = torch.tensor([1.0, 1.0, 1.0, 0.0])
    factors = low + (high - low) * uniform[:, :4]
    factors = torch.where(uniform[:, 8:] < view.jitter_probability, factors, unchanged)
    return factors, uniform[:, 4:8].argsort(1)


def draw(
    count: int, height: int, width: int, view: ViewConfig, generator: torch.Generator, numbers: int = 0
) -> Parameters:
    """Parameters of one view for `count` images of height x width, on the CPU, and so many further `numbers`.

    Every image consumes the same number of draws, row by row: its parameters depend on its position alone.
    """
    columns = {"box": 2 * CROP_TRIES + 2, "flip": 1, "jitter": 9, "grey": 1, "blur": 2, "solarise": 1, "own": numbers}
    uniform = torch.rand(count, sum(columns.values()), generator=generator)
    part = dict(zip(columns, uniform.split(list(columns.values()), 1)))

    def happens(name: str, probability: float) -> Tensor:
        return part[name][:, 0] < probability

    factors, turn = _draw_jitter(part["jitter"], view) if view.jitter_probability else (None, None)
    low, high = view.blur_sigma
    sigma = (low + (high - low) * part["blur"][:, 1]) * happens("blur", view.blur)
    threshold = torch.where(happens("solarise", view.solarise), view.solarise_threshold, 2.0)
    return Parameters(
        box=_draw_boxes(part["box"], height, width, view),
        flip=happens("flip", view.flip).float(),
        factors=factors,
        turn=turn,
        grey=happens("grey", view.grey).float() if view.grey else None,
        sigma=sigma if view.blur else None,
        threshold=threshold if view.solarise else None,
        own=part["own"] if numbers else None,
        blur_radius=math.ceil(BLUR_REACH * high),
    )


def apply(
    images: Tensor,
    parameters: Parameters,
    size: int | None = None,
    mean: Sequence[float] = (0.0, 0.0, 0.0),
    std: Sequence[float] = (1.0, 1.0, 1.0),
    out: Tensor | None = None,
) -> Tensor:
    """Normalised views float32 [B, 3, size, size] of uint8 images [B, 3, H, W]; without `size`, [B, 3, H, W].

    Never waits for the device: what is done depends on shapes and on which parameters exist, not on their values. A CPU
    works on parts of the batch that fit its cache.
    """
    assert images.dtype == torch.uint8 and images.ndim == 4 and images.shape[1] == 3, (images.dtype, images.shape)
    assert len(images) == len(parameters), (len(images), len(parameters))
    height, width = (size, size) if size else images.shape[2:]
    parameters = parameters.to(images.device)
    colour_steps: list[ops.Blend | ops.Hue] = []
    if parameters.factors is not None and parameters.turn is not None:
        colour_steps += ops.jitter(parameters.factors, parameters.turn)
    if parameters.grey is not None:
        colour_steps.append(ops.grey(parameters.grey))
    sides = {height, width} if parameters.sigma is not None else ()
    shifts = {side: ops.shifts(parameters.blur_radius, side, images.device) for side in sides}
    centre, spread = _statistics(mean, std, images.device)
    views = torch.empty(len(images), 3, height, width, device=images.device) if out is None else out
    values = 3 * max(images.shape[2] * images.shape[3], height * width)
    length = max(1, CHUNK_VALUES // values) if images.device.type == "cpu" else max(1, len(images))
    for start in range(0, len(images), length):
        part = slice(start, start + length)
        own = parameters.rows(part)
        view = _crop(images[part], own, height, width)
        for step in colour_steps:
            view = step.rows(part).apply(view)
        if own.sigma is not None:
            view = ops.blur(view, own.sigma, rows=shifts[height], columns=shifts[width])
        if own.threshold is not None:
            view = ops.solarise(view, own.threshold)
        torch.sub(view, centre, out=views[part]).div_(spread)
    return views


def _crop(images: Tensor, parameters: Parameters, height: int, width: int) -> Tensor:
    """Crop, resize to height x width and flip; uint8 to float32 in [0, 1]."""
    top, left, tall, wide = parameters.box.unbind(1)
    rows = ops.resampling_weights(top, tall, images.shape[2], height)
    columns = ops.resampling_weights(left, wide, images.shape[3], width, mirror=parameters.flip)
    return ops.separable(images.float(), rows, columns.div_(255))


def _statistics(mean: Sequence[float], std: Sequence[float], device: torch.device) -> tuple[Tensor, Tensor]:
    centre, spread = ops.constant((tuple(mean), tuple(std)), device).view(2, 3, 1, 1)
    return centre, spread


def normalise(images: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """Clean uint8 images [B, 3, H, W] as the encoder expects them: float32, (value - mean) / std per channel."""
    assert images.dtype == torch.uint8, images.dtype
    centre, spread = _statistics(mean, std, images.device)
    return images.float().div_(255).sub_(centre).div_(spread)


class TwoViews:
    """Two augmented, normalised views of each image of a batch."""

    def __init__(
        self,
        mean: Sequence[float],
        std: Sequence[float],
        views: tuple[ViewConfig, ViewConfig] = (VIEW_1, VIEW_2),
        size: int | None = None,
        change: Callable[[Tensor, Tensor], Tensor] | None = None,
        numbers: int = 0,
    ) -> None:
        """`change`: what is done to a view after that, with `numbers` uniform numbers for each image of it."""
        assert len(mean) == len(std) == 3 and min(std) > 0, (mean, std)
        self.mean, self.std, self.views, self.size = tuple(mean), tuple(std), views, size
        self.change, self.numbers = change, numbers

    def __call__(
        self, images: Tensor, generator: torch.Generator, rows: slice | None = None, count: int | None = None
    ) -> Tensor:
        """float32 [2, B, 3, H, W]. `images` are the `rows` of a global batch of `count` images (default: all of it)."""
        return self.apply([images], [self.draw(images, generator, rows, count)])[0]

    def draw(
        self, images: Tensor, generator: torch.Generator, rows: slice | None = None, count: int | None = None
    ) -> list[Parameters]:
        """The parameters of both views."""
        count, rows = len(images) if count is None else count, rows or slice(None)
        assert len(range(count)[rows]) == len(images), (count, rows, len(images))
        height, width = images.shape[2:]
        return [draw(count, height, width, view, generator, self.numbers).rows(rows) for view in self.views]

    def apply(self, batches: Sequence[Tensor], drawn: Sequence[list[Parameters]]) -> list[Tensor]:
        """float32 [2, B, 3, H, W] for each batch. One call for all of them: a view takes a few hundred operations, and
        for the batches of a CPU most of their cost does not depend on the number of images."""
        images = torch.cat(list(batches)) if len(batches) > 1 else batches[0]
        first, second = (join(of_view) for of_view in zip(*drawn))
        height, width = (self.size, self.size) if self.size else images.shape[2:]
        views = torch.empty(2, len(images), 3, height, width, device=images.device)
        if self.views[0] == self.views[1]:
            both = images.expand(2, *images.shape).flatten(0, 1)
            apply(both, join([first, second]), self.size, self.mean, self.std, views.flatten(0, 1))
        else:
            for out, parameters in zip(views, (first, second)):
                apply(images, parameters, self.size, self.mean, self.std, out)
        if self.change is not None:
            for view, parameters in zip(views, (first, second)):
                own = torch.empty(len(view), 0) if parameters.own is None else parameters.own
                view.copy_(self.change(view, own.to(view.device)))
        return list(views.split([len(batch) for batch in batches], dim=1))
