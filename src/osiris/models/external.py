"""Encoders that osiris does not define itself: a user's own module (`own:NAME`), and pretrained models by name.

A run records the name of its encoder. Nothing that a file names is ever imported: a module of the user's own is found
only if this process registered it, and pretrained models are built by the classes of transformers and timm alone.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

from torch import nn

from osiris.errors import UserError
from osiris.models.normalisation import BatchNorm

EncoderSource = str | nn.Module | Callable[[], nn.Module]
"""A name, a module, or a function that builds one (a class without required arguments is one, too)."""
Architecture = dict[str, Any]
"""What a checkpoint records besides the name, JSON-ready: the config of a pretrained model, or a constructor's name."""


_registered: dict[str, tuple[Callable[[], nn.Module], str]] = {}
"""Name -> function that builds it, and the name of its constructor."""


def register_encoder(encoder: nn.Module | Callable[[], nn.Module], name: str | None = None) -> str:
    """Make an encoder of your own known in this process, so that runs that used it can be loaded and continued.

    Args:
        encoder: A module from normalised images [B, 3, H, W] to features [B, D], or a function that builds one. A
            function is called with a seeded generator: its weights depend on the seed of the run. A module is copied,
            and every run starts from its weights.
        name: Default: the name of the class or function.

    Returns:
        `own:NAME`, the value of the option `encoder`.
    """
    constructor = type(encoder) if isinstance(encoder, nn.Module) else encoder
    while isinstance(constructor, partial):
        constructor = constructor.func
    name = name or str(getattr(constructor, "__name__", "encoder")).strip("<>")
    if not name.replace("-", "_").isidentifier():
        raise UserError(f"{name!r} is not a name for an encoder; use letters, digits, - and _.")
    place = getattr(constructor, "__module__", "?"), getattr(constructor, "__qualname__", type(constructor).__name__)
    build = partial(copy.deepcopy, copy.deepcopy(encoder)) if isinstance(encoder, nn.Module) else encoder
    _registered[f"own:{name}"] = build, ".".join(place)
    return f"own:{name}"


def encoder_name(encoder: EncoderSource) -> str:
    """The name of an encoder; a module or function is registered under it."""
    return encoder if isinstance(encoder, str) else register_encoder(encoder)


def is_pretrained(name: str) -> bool:
    return name.startswith(("hf:", "timm:"))


def build_external(name: str, architecture: Architecture | None = None) -> nn.Module:
    """The encoder of this name; `architecture`: what a checkpoint records, to build it without its weights."""
    if is_pretrained(name):
        from osiris.models.pretrained import load_pretrained, rebuild

        module = load_pretrained(name) if architecture is None else rebuild(name, architecture)
    elif name in _registered:
        module = _registered[name][0]()
        if not isinstance(module, nn.Module):
            raise UserError(f"{name}: the function returned {type(module).__name__}, not a torch.nn.Module.")
    else:
        recorded = architecture["constructor"] if architecture and "constructor" in architecture else "?"
        raise UserError(
            f"{name} is an encoder of the user's own (recorded as {recorded}), unknown to this process. Pass the "
            "same module or function again: osiris.register_encoder(...) to load the run, encoder=... to continue it."
        )
    return with_global_batch_norm(module)


def architecture_of(name: str | None, encoder: nn.Module) -> Architecture:
    """What a checkpoint must record to build this encoder again."""
    if name is None:
        return {}
    if is_pretrained(name):
        architecture = encoder.architecture
        assert isinstance(architecture, dict)
        return architecture
    return {"constructor": _registered[name][1]}


def with_global_batch_norm(module: nn.Module) -> nn.Module:
    """Torch's BatchNorm layers become ours, which use the batch of all processes; same parameters, same outputs."""
    for layer in module.modules():
        if type(layer) in (nn.BatchNorm1d, nn.BatchNorm2d):
            layer.__class__ = BatchNorm
    return module


def freeze_layers(encoder: nn.Module, part: float) -> None:
    """Stop training the first layers: a part (0 to 1) of them, and all that comes before.

    In a vision transformer these are the patch and position embeddings and the first blocks.
    """
    names = repeated_layers(encoder)
    count, order = round(part * len(names)), [name for name, _ in encoder.named_parameters()]
    if count < len(names):
        end = next(index for index, name in enumerate(order) if name.startswith(f"{names[count]}."))
    else:
        end = 1 + max(index for index, name in enumerate(order) if name.startswith(f"{names[-1]}."))
    for name in order[:end]:
        encoder.get_parameter(name).requires_grad_(False)


def repeated_layers(encoder: nn.Module) -> list[str]:
    """The names of the layers of which the encoder has most, in order: the blocks of a transformer or of a ResNet.

    They are elements of lists (ModuleList, Sequential); torch's own layers count only where there are no others.
    """
    lists = [
        (name, child) for name, child in encoder.named_modules() if isinstance(child, nn.ModuleList | nn.Sequential)
    ]
    layers = [
        (f"{name}.{index}".removeprefix("."), layer)
        for name, children in lists
        for index, layer in enumerate(children)
        if any(True for _ in layer.parameters())
    ]
    if not layers:
        raise UserError("--freeze needs an encoder with a list of layers (ModuleList or Sequential); leave it out.")
    counts = Counter(type(layer) for _, layer in layers)
    kind = max(counts, key=lambda one: (not one.__module__.startswith("torch."), counts[one]))
    return [name for name, layer in layers if type(layer) is kind]
