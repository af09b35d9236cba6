"""Memory Storyboard: frames of one scene of a film are each other's positives (Yang & Ren, CoLLAs 2025)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

import numpy as np
import torch
from msgspec import Meta
from torch import Tensor

from osiris.framework import losses
from osiris.framework.options import Count
from osiris.framework.representations import Networks, Representations
from osiris.framework.terms.base import StepContext, TaskContext, Term, Y
from osiris.models.heads import projector
from osiris.randomness import scoped


class Storyboard(Term):
    r"""TC = NT-Xent on Y in a space s of its own, where all views of one scene are positives.

    A frame's scene is a function of its position in the stream. Until it is known, each `length` frames are one scene.
    The short memory holds every `stride`-th of the last `span` frames; L_current takes X from it. When it has been
    replaced once, its frames are cut into as many scenes as it has lengths, where the features of f change most.
    Without a stream, the scene of a frame is its task.
    """

    kind: ClassVar[str] = "storyboard"
    formula: ClassVar[str] = "TC_s(Y)"
    inputs: ClassVar[tuple[str, ...]] = (Y,)
    spaces: ClassVar[frozenset[str]] = frozenset()
    symbols: ClassVar[Mapping[str, str]] = {"head": "s"}
    length: Count = 50
    """Frames of a scene on average."""
    span: Count = 1000
    """Frames of the stream that the short memory reaches back."""
    stride: Count = 4
    """Every so many frames one is in the short memory."""
    segment_after: Annotated[int, Meta(ge=0, le=10**9)] = 0
    """Lengths of the stream before the first segmentation."""

    def attach(self, networks: Networks, seed: int) -> None:
        config = networks.projector_config
        with scoped(seed, "init.storyboard"):
            self.head = projector(networks.features, config.projector_hidden, config.projector_output)
        self.marks: list[tuple[int, int]] = []
        """(first frame, label) of the scenes that were found, in order."""
        self.until, self.next = -1, self.segment_after
        """The newest frame that was segmented, and the default label from which on the oldest one must be."""

    def short(self, head: int) -> Tensor:
        """The positions in the short memory when `head` is the newest frame."""
        newest = head - head % self.stride
        return torch.arange(max(0, newest - (self.span // self.stride - 1) * self.stride), newest + 1, self.stride)

    def labels(self, position: Tensor) -> Tensor:
        """The scene of each frame."""
        label = position // self.length
        if not self.marks:
            return label
        starts, found = torch.tensor(self.marks, device=position.device).T.contiguous()
        place = torch.searchsorted(starts, position, right=True) - 1
        return torch.where((place >= 0) & (position <= self.until), found[place.clamp(min=0)], label)

    def loss(self, rep: Representations, context: StepContext) -> Tensor:
        memory, slots = context.memory, context.slots
        assert memory is not None and slots is not None
        where = slots.to(memory.source.device)
        scene = self.labels(memory.source[where]) if context.stream else memory.task[where]
        return losses.temporal_class(rep(Y, head=self.head), scene.to(rep(Y, head=self.head).device), context.tau)

    def after_step(self, context: TaskContext) -> None:
        head = context.seen - 1
        if context.frames is None or head < self.span:
            return
        frames = self.short(head)
        if int(frames[0]) // self.length < self.next or head == self.until:  # or another pass of the same batch
            return
        self.segment(frames, context)
        self.next, self.until = head // self.length, head

    def segment(self, frames: Tensor, context: TaskContext) -> None:
        """Cut the frames of the short memory, and forget the cuts that were made there before."""
        assert context.frames is not None
        first = int(frames[0])
        label, count = first // self.length, int(frames[-1]) // self.length - first // self.length + 1
        cuts = change_points(context.frames(frames), count)
        found = [(first, label), *((int(frames[cut]), label + at) for at, cut in enumerate(sorted(cuts), 1))]
        self.marks = [mark for mark in self.marks if mark[0] < first] + found

    @property
    def cuts(self) -> list[int]:
        """Frames at which a scene begins."""
        return [frame for frame, _ in self.marks]

    def get_extra_state(self) -> Tensor:
        rows = [(self.until, self.next), *self.marks]
        return torch.tensor(rows, dtype=torch.int64)

    def set_extra_state(self, state: Tensor) -> None:
        (self.until, self.next), *marks = state.tolist()
        self.marks = [(int(frame), int(label)) for frame, label in marks]


def change_points(features: Tensor, count: int) -> list[int]:
    """Greedily, `count` - 1 first frames of new scenes: those which most raise the sum over scenes of (sum of the
    similarities inside) / (frames). `features`: unit vectors [T, d]. Sums of blocks come from 2-D prefix sums."""
    similarity = (features.double() @ features.double().T).cpu().numpy()
    size = len(similarity)
    prefix = np.zeros((size + 1, size + 1))
    prefix[1:, 1:] = similarity.cumsum(0).cumsum(1)

    def score(start: np.ndarray, end: np.ndarray) -> np.ndarray:
        inside = prefix[end, end] - prefix[start, end] - prefix[end, start] + prefix[start, start]
        return inside / (end - start)

    chosen: list[int] = []
    for _ in range(min(count - 1, size - 2)):
        places = np.setdiff1d(np.arange(1, size - 1), chosen)
        edges = np.array(sorted([0, size, *chosen]))
        after = np.searchsorted(edges, places, side="right")
        start, end = edges[after - 1], edges[after]
        gain = score(start, places) + score(places, end) - score(start, end)
        chosen.append(int(places[gain.argmax()]))
    return chosen
