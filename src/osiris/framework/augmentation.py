"""Augmentations of the user's own, beside those of `--views`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor

from osiris.augment.views import VIEWS, TwoViews, ViewConfig
from osiris.framework.options import Configurable, parse


class Augmentation(Configurable):
    """How the two views of an image are made: those of `views`, and then `change`.

    Whatever is random must come from `numbers` that were drawn: then a run resumes bit for bit, and several processes
    see the same views.
    """

    views: ClassVar[tuple[ViewConfig, ViewConfig]] = VIEWS["paper"]
    numbers: ClassVar[int] = 0
    """How many uniform numbers `change` gets for each view of each image."""

    def change(self, view: Tensor, numbers: Tensor) -> Tensor:
        """A view of each image of a batch, normalised, float32 [B, 3, H, W]; `numbers` [B, n] are in 0 to 1."""
        return view


def build_views(
    text: str, mean: Sequence[float] = (0.0,) * 3, std: Sequence[float] = (1.0,) * 3, size: int | None = None
) -> TwoViews:
    """Of a value of `--views`."""
    if text in VIEWS:
        return TwoViews(mean, std, VIEWS[text], size)
    own = parse(Augmentation, text, VIEWS)
    return TwoViews(mean, std, own.views, size, own.change, own.numbers)
