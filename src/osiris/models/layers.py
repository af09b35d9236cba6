"""Features of several layers side by side: phi(x), from which a readout is made.

For each place of a network where the resolution or the width changes, the mean over the image; of a transformer, the
class token and the mean of the patch tokens of four blocks; and last what the network itself returns. An encoder that
knows better names its layers in an attribute `joined_layers`, as in `named_modules`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import isqrt
from typing import Any

import torch
from torch import Tensor, nn

from osiris.errors import UserError
from osiris.models.normalisation import evaluating

BLOCKS = 4
"""Blocks of a transformer that are joined, evenly spaced; the last one is among them."""
FEWEST = 3
"""Places with which a network is not looked into further."""
MOST = 8192
"""Largest number of joined features: the readout needs their covariance. Early layers are left out above it."""
MOST_PREFIX = 8
"""Tokens of a transformer that belong to no patch: the class token, and registers."""


@dataclass(frozen=True)
class Seen:
    """The output of a layer for a batch."""

    name: str
    output: Tensor


class Layers(nn.Module):
    """Normalised images [B, 3, H, W] to joined features [B, D]; the last `sizes[-1]` of them are the network's own."""

    def __init__(self, network: nn.Module, image_shape: tuple[int, int, int]) -> None:
        """The layers are found by tracing the network on images of `image_shape`."""
        super().__init__()
        self.network = network
        names = getattr(network, "joined_layers", None)
        images = _trial(network, image_shape)
        with evaluating(network):
            self.names = _named(network, names) if names is not None else _found(network, images)
            self.names = _without_the_last(network, self.names, images)
            sizes = [part.shape[1] for part in self.parts(images)]
        while sum(sizes) > MOST and self.names:
            self.names, sizes = self.names[1:], sizes[1:]
        self.sizes = tuple(sizes)

    def parts(self, images: Tensor) -> list[Tensor]:
        """One [B, d] for each layer, and the network's own features."""
        seen, features = record(self.network, self.names, images)
        return [*(pooled(one.output) for one in sorted(seen, key=lambda one: self.names.index(one.name))), features]

    def forward(self, images: Tensor) -> Tensor:
        return torch.cat([part.float() for part in self.parts(images)], 1)


def record(network: nn.Module, names: tuple[str, ...], images: Tensor) -> tuple[list[Seen], Tensor]:
    """The outputs of layers in the order in which they are computed, and the network's features."""
    seen: list[Seen] = []

    def keep(name: str) -> Any:
        def hook(_module: nn.Module, _inputs: Any, output: Any) -> None:
            if isinstance(first := _first(output), Tensor):
                seen.append(Seen(name, first))

        return hook

    # Hooks that stayed would be copied with the module, and would still belong to the original.
    hooks = [network.get_submodule(name).register_forward_hook(keep(name)) for name in names]
    try:
        features = network(images)
    finally:
        for hook in hooks:
            hook.remove()
    return seen, features


def _first(output: Any) -> Any:
    """Modules of transformers return tuples, or records whose first field is the hidden state."""
    if isinstance(output, Tensor):
        return output
    if isinstance(output, tuple | list) and output:
        return output[0]
    return getattr(output, "last_hidden_state", None)


def pooled(output: Tensor) -> Tensor:
    """[B, d]: means over [B, C, H, W]; of tokens [B, T, C], the class token, if there is one, and the others' mean."""
    if output.ndim == 4:
        return output.mean((2, 3))
    if output.ndim == 2:
        return output
    prefix = _prefix(output.shape[1])
    mean = output[:, prefix:].mean(1)
    return torch.cat([output[:, 0], mean], 1) if prefix else mean


def _prefix(tokens: int) -> int:
    """How many of so many tokens belong to no patch, if the patches fill a square."""
    extra = tokens - isqrt(tokens) ** 2
    return extra if extra <= MOST_PREFIX else 0


def _trial(network: nn.Module, image_shape: tuple[int, int, int]) -> Tensor:
    """Two fixed images with structure: on constant ones, two layers could look the same."""
    parameter = next(network.parameters(), None)
    device = "cpu" if parameter is None else parameter.device
    count = 2 * image_shape[0] * image_shape[1] * image_shape[2]
    return torch.linspace(-2, 2, count).sin().view(2, *image_shape).to(device)


def _named(network: nn.Module, names: Any) -> tuple[str, ...]:
    known = dict(network.named_modules())
    if isinstance(names, str) or not all(isinstance(name, str) and name in known for name in names):
        raise UserError(f"joined_layers of the encoder are names of its modules, as in named_modules(); not {names!r}.")
    return tuple(names)


def _found(network: nn.Module, images: Tensor) -> tuple[str, ...]:
    """The names of the layers to join. Blocks are elements of lists (ModuleList, Sequential); where the outer ones show
    fewer than three changes, those inside them are looked at."""
    names, places = tuple(_elements(network, "")), tuple[str, ...]()
    while names:
        places = max(places, _places(record(network, names, images)[0]), key=len)
        inner = tuple(one for name in names for one in _elements(network.get_submodule(name), f"{name}."))
        if len(places) >= FEWEST or not inner:
            break
        names = inner
    return places


def _elements(module: nn.Module, prefix: str) -> Iterator[str]:
    """The names of the elements of the outermost lists."""
    for name, child in module.named_children():
        if isinstance(module, nn.ModuleList | nn.Sequential):
            yield f"{prefix}{name}"
        else:
            yield from _elements(child, f"{prefix}{name}.")


def _places(seen: list[Seen]) -> tuple[str, ...]:
    """The last layer of each resolution and width; of a transformer, in which neither changes, some of its blocks."""
    maps = [one for one in seen if (one.output.ndim == 4 and one.output[0, 0].numel() > 1) or one.output.ndim == 3]
    maps = [one for one in maps if one.output.ndim == maps[-1].output.ndim]
    shapes = [one.output.shape[1:] for one in maps]
    last = [one.name for one, shape, after in zip(maps, shapes, [*shapes[1:], None]) if shape != after]
    if maps and maps[0].output.ndim == 3 and len(last) == 1:
        count = min(BLOCKS, len(maps))
        last = [maps[(number + 1) * len(maps) // count - 1].name for number in range(count)]
    return tuple(dict.fromkeys(last))


def _without_the_last(network: nn.Module, names: tuple[str, ...], images: Tensor) -> tuple[str, ...]:
    """Without layers whose pooled output is what the network returns."""
    seen, features = record(network, names, images)
    if not isinstance(features, Tensor) or features.ndim != 2:
        raise UserError("an encoder turns images [B, 3, H, W] into features [B, D].")

    def same(one: Seen) -> bool:
        part = pooled(one.output)
        return part.shape == features.shape and torch.allclose(part.float(), features.float(), rtol=1e-4, atol=1e-5)

    repeated = {one.name for one in seen if same(one)}
    return tuple(name for name in names if name not in repeated)
