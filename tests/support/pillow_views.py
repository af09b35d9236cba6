"""The usual augmentation pipeline: one image at a time, with Pillow."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from PIL import Image, ImageEnhance, ImageFilter, ImageOps
from torch import Tensor

from osiris.augment.views import VIEW_1, VIEW_2, Parameters, draw


def _shift_hue(image: Image.Image, turns: float) -> Image.Image:
    hue, saturation, value = image.convert("HSV").split()
    shifted = np.asarray(hue) + np.uint8(round(turns * 255) % 256)
    return Image.merge("HSV", (Image.fromarray(shifted), saturation, value)).convert("RGB")


JITTER: tuple[Callable[[Image.Image, float], Image.Image], ...] = (
    lambda image, factor: ImageEnhance.Brightness(image).enhance(factor),
    lambda image, factor: ImageEnhance.Contrast(image).enhance(factor),
    lambda image, factor: ImageEnhance.Color(image).enhance(factor),
    _shift_hue,
)


def pillow_view(array: np.ndarray, drawn: Parameters, index: int) -> np.ndarray:
    """One view of one image [H, W, 3] with the drawn parameters, as the usual pipeline makes it."""
    top, left, tall, wide = drawn.box[index].int().tolist()
    image = Image.fromarray(array).crop((left, top, left + wide, top + tall))
    image = image.resize((array.shape[1], array.shape[0]), Image.Resampling.BICUBIC)
    if drawn.flip[index]:
        image = ImageOps.mirror(image)
    assert drawn.factors is not None and drawn.turn is not None and drawn.grey is not None and drawn.sigma is not None
    factors = drawn.factors[index].tolist()
    if factors != [1.0, 1.0, 1.0, 0.0]:
        for operation in drawn.turn[index].argsort().tolist():
            image = JITTER[operation](image, factors[operation])
    if drawn.grey[index]:
        image = ImageOps.grayscale(image).convert("RGB")
    if drawn.sigma[index]:
        image = image.filter(ImageFilter.GaussianBlur(float(drawn.sigma[index])))
    if drawn.threshold is not None and drawn.threshold[index] <= 1:
        image = ImageOps.solarize(image, 128)
    return np.asarray(image)


def pillow_two_views(
    images: np.ndarray, source: torch.Generator, mean: Sequence[float], std: Sequence[float]
) -> Tensor:
    """The paper's two views of images uint8 [N, H, W, 3], normalised: [2, N, 3, H, W]."""
    count, height, width, _ = images.shape
    parameters = [draw(count, height, width, view, source) for view in (VIEW_1, VIEW_2)]
    both = [[pillow_view(array, view, index) for index, array in enumerate(images)] for view in parameters]
    views = torch.from_numpy(np.array(both)).permute(0, 1, 4, 2, 3).float().div_(255)
    return views.sub_(torch.tensor(mean).view(3, 1, 1)).div_(torch.tensor(std).view(3, 1, 1))
