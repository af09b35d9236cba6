"""Each operation against Pillow on the same parameters, with proof that a weaker operation would not pass."""

import colorsys
import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from scipy import ndimage
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from osiris.augment.operations import upload
from osiris.augment.views import Parameters, TwoViews, apply
from osiris.randomness import generator
from pillow_views import pillow_two_views, pillow_view

TOLERANCE = 2.0
"""Mean absolute difference per image, in 255ths, allowed against Pillow (which rounds to 8 bits after every step)."""
BRIGHTNESS, CONTRAST, SATURATION, HUE = range(4)


def pictures(height: int, width: int, count: int = 6) -> Tensor:
    """uint8 [count, 3, height, width]: coloured gradients, objects with hard edges, stripes and a little noise."""
    random = np.random.default_rng(7)
    y, x = np.mgrid[0 : 1 : height * 1j, 0 : 1 : width * 1j]
    images = []
    for _ in range(count):
        corner = random.uniform(0.05, 0.95, (3, 3, 1, 1))
        image = corner[0] * (1 - x) * (1 - y) + corner[1] * x + corner[2] * y * (1 - x)
        for _ in range(4):
            row, column, size = random.uniform(0.1, 0.9, 3)
            colour = np.array(colorsys.hsv_to_rgb(*random.uniform((0, 0.5, 0.3), (1, 1, 1))))[:, None, None]
            disc = (y - row) ** 2 + (x - column) ** 2 < (size / 3) ** 2
            image = np.where(disc, colour, image)
        angle, frequency = random.uniform(0, np.pi), random.uniform(0.25, 0.4)
        stripes = np.sin(2 * np.pi * frequency * (np.cos(angle) * x * width + np.sin(angle) * y * height))
        image = image + 0.12 * stripes * (x > 0.3) + random.normal(0, 0.02, image.shape)
        images.append((image.clip(0, 1) * 255).round().astype(np.uint8))
    return torch.from_numpy(np.stack(images))


def neutral(images: Tensor, **changes: Tensor) -> Parameters:
    """Parameters that change nothing but what is given."""
    count, _, height, width = images.shape
    box = torch.tensor([0.0, 0.0, height, width]).expand(count, 4)
    return replace(Parameters(box=box, flip=torch.zeros(count)), **changes)


def by_pillow(images: Tensor, operation: Callable[[Image.Image], Image.Image]) -> np.ndarray:
    """What Pillow makes of each image: [B, 3, H, W] in 255ths."""
    made = [operation(Image.fromarray(image.permute(1, 2, 0).numpy())) for image in images]
    return np.stack([np.asarray(image, dtype=np.float32).transpose(2, 0, 1) for image in made])


def distance(ours: Tensor, wanted: np.ndarray) -> np.ndarray:
    """Mean absolute difference of each image in 255ths."""
    return np.abs(ours.numpy() * 255 - wanted).mean((1, 2, 3))


def check(ours: Tensor, wanted: np.ndarray, weaker: list[Tensor], tolerance: float = TOLERANCE) -> None:
    """Ours agrees with the reference on every image; every weaker version of ours disagrees on every image."""
    assert distance(ours, wanted).max() < tolerance, distance(ours, wanted)
    for other in weaker:
        assert distance(other, wanted).min() > tolerance, distance(other, wanted)


def unchanged(images: Tensor) -> Tensor:
    return images / 255


@pytest.mark.parametrize("size", [None, 24, 32, 80])
@pytest.mark.parametrize(("height", "width"), [(32, 32), (32, 48), (96, 72)])
def test_crop_and_resize_match_pillow(height: int, width: int, size: int | None) -> None:
    images = pictures(height, width)
    boxes = torch.tensor(
        [
            [0, 0, height // 2, width // 2],
            [height // 3, width // 4, height // 3, width // 2],
            [height - 9, width - 7, 9, 7],
            [2, width // 2, height - 5, width // 2],
            [height // 2, 3, height // 2, width - 5],
            [5, 4, height - 9, width - 8],
        ],
    ).float()
    whole = torch.tensor([0.0, 0.0, height, width])
    shape = (width, height) if size is None else (size, size)

    def resize(filter: Image.Resampling) -> np.ndarray:
        made = []
        for image, (top, left, tall, wide) in zip(images, boxes.int().tolist()):
            cut = Image.fromarray(image.permute(1, 2, 0).numpy()).crop((left, top, left + wide, top + tall))
            made.append(np.asarray(cut.resize(shape, filter), dtype=np.float32).transpose(2, 0, 1))
        return np.stack(made)

    ours = apply(images, neutral(images, box=boxes), size)
    wanted = resize(Image.Resampling.BICUBIC)
    halfway = apply(images, neutral(images, box=(boxes + whole) / 2), size)
    check(ours, wanted, [apply(images, neutral(images), size), halfway])
    assert distance(ours, wanted).max() < 0.5, "the same weights: only Pillow's rounding remains"
    bilinear = np.abs(resize(Image.Resampling.BILINEAR) - wanted).mean((1, 2, 3))
    assert bilinear.min() > 0.5, "the filter of the same crop must matter at the tolerance above"


def test_overshoot_is_cut_after_each_axis_as_in_pillow() -> None:
    """Bicubic overshoots at edges; between its two passes Pillow stores 8 bits, which cuts that off."""
    squares = torch.kron(torch.eye(8).bool() ^ (torch.arange(8) % 2 == 0), torch.ones(2, 2).bool())
    images = (squares * 255).to(torch.uint8).expand(1, 3, 16, 16).contiguous()
    wanted = by_pillow(images, lambda image: image.resize((48, 48), Image.Resampling.BICUBIC))
    uncut = torch.nn.functional.interpolate(images.float(), (48, 48), mode="bicubic", antialias=True).clamp(0, 255)
    check(apply(images, neutral(images), 48), wanted, [uncut / 255], 0.2)


def test_flip_mirrors_the_columns() -> None:
    images = pictures(20, 30)
    flip = torch.tensor([1.0, 0.0, 1.0, 0.0, 0.0, 1.0])
    box = torch.tensor([3.0, 5.0, 11.0, 17.0]).expand(6, 4)
    straight, flipped = apply(images, neutral(images, box=box)), apply(images, neutral(images, box=box, flip=flip))
    expected = torch.where(flip[:, None, None, None] == 1, straight.flip(3), straight)
    torch.testing.assert_close(flipped, expected)
    assert (straight - straight.flip(3)).abs().mean() > 0.02


def naive_jitter(image: np.ndarray, operation: int, factor: float) -> np.ndarray:
    """One operation on one float image [3, H, W], pixel by pixel for the hue."""
    grey = np.tensordot([0.299, 0.587, 0.114], image, 1)
    if operation == HUE:
        made = np.empty_like(image)
        for row, column in np.ndindex(image.shape[1:]):
            hue, saturation, value = colorsys.rgb_to_hsv(*image[:, row, column])
            made[:, row, column] = colorsys.hsv_to_rgb((hue + factor) % 1, saturation, value)
        return made
    target = {BRIGHTNESS: 0, CONTRAST: grey.mean(), SATURATION: grey}[operation]
    return (factor * image + (1 - factor) * target).clip(0, 1)


@pytest.mark.parametrize("strength", [(1.4, 1.4, 0.5, 0.1), (0.6, 0.8, 1.2, -0.5), (1.2, 0.6, 0.8, 0.3)])
def test_jitter_follows_each_images_own_order(strength: tuple[float, ...]) -> None:
    """All 24 orders in one batch, exactly as one operation after the other."""
    orders = list(itertools.permutations(range(4)))
    images = pictures(8, 8, count=1).expand(24, -1, -1, -1)
    turn = torch.tensor(orders).argsort(1)
    ours = apply(images, neutral(images, factors=torch.tensor(strength).expand(24, 4), turn=turn)).numpy()
    references = []
    for order in orders:
        image = images[0].numpy() / 255.0
        for operation in order:
            image = naive_jitter(image, operation, strength[operation])
        references.append(image)
    np.testing.assert_allclose(ours, np.stack(references), atol=2e-5)
    if min(strength[:2]) > 1:  # both push values over the edge, so that a wrong order would show
        between = [np.abs(one - other).mean() for one, other in itertools.combinations(references, 2)]
        assert min(between) > 1e-4, "every order gives another image"


def test_whole_chain_matches_pillow_in_every_order() -> None:
    orders = list(itertools.permutations(range(4)))
    images = pictures(32, 32, count=24)
    factors = torch.tensor([[0.7, 1.3, 0.8, 0.08], [1.3, 0.7, 1.2, -0.08]]).repeat(12, 1)
    grey, threshold = torch.zeros(24), torch.full((24,), 2.0)
    grey[::5], threshold[::3] = 1, 0.5
    box = torch.tensor([4.0, 6.0, 22.0, 19.0]).expand(24, 4)
    turn = torch.tensor(orders).argsort(1)
    chosen = neutral(images, box=box, factors=factors, turn=turn, grey=grey, threshold=threshold, sigma=torch.zeros(24))
    arrays = images.permute(0, 2, 3, 1).contiguous().numpy()
    made = [pillow_view(array, chosen, position) for position, array in enumerate(arrays)]
    wanted = np.stack(made).transpose(0, 3, 1, 2).astype(np.float32)
    without = [replace(chosen, **{name: None}) for name in ("factors", "grey", "threshold")]
    check(apply(images, chosen), wanted, [])
    for lacking in without:
        assert distance(apply(images, lacking), wanted).max() > 2 * TOLERANCE


def test_grey_matches_pillow() -> None:
    images = pictures(32, 32)
    wanted = by_pillow(images, lambda image: ImageOps.grayscale(image).convert("RGB"))
    ours = apply(images, neutral(images, grey=torch.ones(6)))
    half = (ours + unchanged(images)) / 2
    mean_of_channels = unchanged(images).mean(1, keepdim=True).expand(-1, 3, -1, -1)
    check(ours, wanted, [unchanged(images), half, mean_of_channels])
    untouched = apply(images, neutral(images, grey=torch.zeros(6)))
    torch.testing.assert_close(untouched, unchanged(images), atol=1e-6, rtol=0)


@pytest.mark.parametrize("threshold", [0.3, 0.5, 0.7])
def test_solarise_matches_pillow(threshold: float) -> None:
    images = pictures(32, 32)
    images[:, :, :2] = 0

    def solarised(value: float) -> Tensor:
        return apply(images, neutral(images, threshold=torch.full((6,), value)))

    wanted = by_pillow(images, lambda image: ImageOps.solarize(image, int(np.ceil(threshold * 255))))
    half = (solarised(threshold) + unchanged(images)) / 2
    check(solarised(threshold), wanted, [unchanged(images), half, solarised((threshold + 1) / 2)])
    assert (solarised(0.0) + unchanged(images) - 1).abs().max() < 1e-5, "the threshold itself is inverted, even black"
    torch.testing.assert_close(solarised(2.0), unchanged(images), atol=1e-6, rtol=0)


def blurred(images: Tensor, sigma: float) -> Tensor:
    return apply(images, neutral(images, sigma=torch.full((len(images),), sigma)))


@pytest.mark.parametrize("sigma", [0.3, 0.5, 1.0, 1.5, 2.0])
@pytest.mark.parametrize(("height", "width"), [(32, 32), (24, 40), (5, 5)])
def test_blur_is_exactly_gaussian(sigma: float, height: int, width: int) -> None:
    images = pictures(height, width)
    exact = np.stack(
        [
            [ndimage.gaussian_filter(channel, sigma, mode="nearest", radius=8) for channel in image]
            for image in images.numpy().astype(np.float64)
        ]
    )
    check(blurred(images, sigma), exact, [unchanged(images), blurred(images, sigma * 0.9)], 0.01)


def test_an_upload_returns_before_the_copy_on_cuda_alone() -> None:
    """On MPS the host memory could be freed while it is read; the meta device stands in for it."""
    seen: list[bool] = []

    class Copies(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append((kwargs or {}).get("non_blocking", False))
            return func(*args, **(kwargs or {}))

    with Copies():
        assert upload(torch.ones(3), "meta").is_meta
    assert seen and not any(seen)


def test_both_views_are_those_of_the_usual_pipeline() -> None:
    images, mean, std = pictures(32, 32), (0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)
    theirs = pillow_two_views(images.permute(0, 2, 3, 1).numpy(), generator(0, "augment.x"), mean, std)
    ours = TwoViews(mean, std)(images, generator(0, "augment.x"))
    difference = (ours - theirs) * torch.tensor(std).view(3, 1, 1)
    assert difference.abs().mean() < 4 / 255
