"""Encoders that osiris does not define itself: a user's own module (`own:NAME`), and pretrained models by name.

A run records the name of its encoder. Nothing that a file names is ever imported: a module of the user's own is found
only if this process registered it, and pretrained models are built by the classes of transformers and timm alone.
"""

from __future__ import annotations

import copy
import importlib
import math
import re
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from osiris.errors import UserError
from osiris.models.normalisation import BatchNorm

EncoderSource = str | nn.Module | Callable[[], nn.Module]
"""A name, a module, or a function that builds one (a class without required arguments is one, too)."""
Channels = tuple[float, float, float]
Architecture = dict[str, Any]
"""What a checkpoint records besides the name, JSON-ready: the config of a pretrained model, or a constructor's name."""


@dataclass(frozen=True)
class Registered:
    build: Callable[[], nn.Module]
    constructor: str
    pretrained: bool
    """Whether it was registered as a module, with its weights."""


_registered: dict[str, Registered] = {}
PYTHON_ENTRY = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


def register_encoder(encoder: nn.Module | Callable[[], nn.Module], name: str | None = None) -> str:
    """Make an encoder of your own known in this process, so that runs that used it can be loaded and continued.

    Args:
        encoder: A module from normalised images [B, 3, H, W] to features [B, D], or a function that builds one. A
            function is called with a seeded generator: its weights depend on the seed of the run. A module is copied,
            every run starts from its weights, and it counts as pretrained. If it has attributes `mean` and `std` (three
            numbers each, for images in [0, 1]), images are normalised by them.
        name: Default: the name of the class or function.

    Returns:
        `own:NAME`, the value of the option `encoder`.
    """
    if not callable(encoder):
        raise UserError(f"an encoder is a torch.nn.Module or a function that builds one, not {type(encoder).__name__}.")
    constructor = type(encoder) if isinstance(encoder, nn.Module) else encoder
    while isinstance(constructor, partial):
        constructor = constructor.func
    name = name or str(getattr(constructor, "__name__", "encoder")).strip("<>")
    if not name.replace("-", "_").isidentifier():
        raise UserError(f"{name!r} is not a name for an encoder; use letters, digits, - and _.")
    place = getattr(constructor, "__module__", "?"), getattr(constructor, "__qualname__", type(constructor).__name__)
    build = partial(copy.deepcopy, copy.deepcopy(encoder)) if isinstance(encoder, nn.Module) else encoder
    _registered[f"own:{name}"] = Registered(build, ".".join(place), isinstance(encoder, nn.Module))
    return f"own:{name}"


def import_entry(entry: str) -> Any:
    """What `package.module:name` names (the current directory is importable). Only for text that the user typed: a name
    from a file must never come here."""
    module_name, _, name = entry.partition(":")
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        return getattr(importlib.import_module(module_name), name)
    except ImportError as error:
        raise UserError(f"{entry!r}: {error}. Is the package installed, or the file in this directory?") from error
    except AttributeError:
        raise UserError(f"{entry!r}: the module {module_name!r} has no function {name!r}.") from None
    finally:
        sys.path.remove(here)


def typed_encoder(text: str) -> str:
    """The name of an encoder as the user typed it; `package.module:name` is imported and registered as `own:NAME`."""
    if text.startswith(("hf:", "timm:", "own:")) or not PYTHON_ENTRY.fullmatch(text):
        return text
    return register_encoder(import_entry(text), text.rpartition(":")[2])


def encoder_name(encoder: EncoderSource) -> str:
    """The name of an encoder; a module or function is registered under it."""
    return encoder if isinstance(encoder, str) else register_encoder(encoder)


def is_public(name: str) -> bool:
    """Whether it is a model of transformers or timm."""
    return name.startswith(("hf:", "timm:"))


def is_pretrained(name: str) -> bool:
    """Whether an encoder of this name comes with weights."""
    return is_public(name) or (name in _registered and _registered[name].pretrained)


def channels(values: Any) -> Channels:
    """Three numbers, from one or three, of any kind."""
    try:
        numbers = torch.as_tensor(values, dtype=torch.float64).flatten().tolist()
    except (TypeError, ValueError, RuntimeError):
        raise UserError(f"mean and std of an encoder are numbers, not {type(values).__name__}.") from None
    if len(numbers) not in (1, 3) or not all(map(math.isfinite, numbers)):
        raise UserError(f"mean and std of an encoder are one finite number or three, not {numbers[:9]}.")
    first, second, third = numbers * (3 // len(numbers))
    return first, second, third


def statistics(mean: Any, std: Any) -> tuple[Channels, Channels]:
    """(mean, std) of the three channels, checked."""
    known = channels(mean), channels(std)
    if min(known[1]) < 1e-6:
        raise UserError(f"the deviations of an encoder's images are positive, not {known[1]}.")
    return known


def normalisation(name: str) -> tuple[Channels, Channels] | None:
    """(mean, std) of the images that an encoder expects: from the files of a public model, or from the attributes
    `mean` and `std` of an encoder of the user's own; None if it does not say."""
    if is_public(name):
        from osiris.models.pretrained import preprocessing  # imports this module

        expected = preprocessing(name)
        return expected.mean, expected.std
    module = _registered[name].build() if name in _registered else None
    mean, std = getattr(module, "mean", None), getattr(module, "std", None)
    return None if mean is None or std is None else statistics(mean, std)


def build_external(name: str, architecture: Architecture | None = None) -> nn.Module:
    """The encoder of this name; `architecture`: what a checkpoint records, to build it without its weights."""
    if is_public(name):
        from osiris.models.pretrained import load_pretrained, rebuild  # imports this module

        module = load_pretrained(name) if architecture is None else rebuild(name, architecture)
    elif name in _registered:
        module = _registered[name].build()
        if not isinstance(module, nn.Module):
            raise UserError(f"{name}: the function returned {type(module).__name__}, not a torch.nn.Module.")
    else:
        recorded = architecture["constructor"] if architecture and "constructor" in architecture else "?"
        raise UserError(
            f"{name} is an encoder of your own (recorded as {recorded}), and this process does not know it. Name it in "
            "every call: --encoder package.module:function (in Python: encoder=..., or osiris.register_encoder(...) to "
            "load the run)."
        )
    return in_fast_format(with_global_batch_norm(module))


def in_fast_format(module: nn.Module) -> nn.Module:
    """Convolutions are about twice as fast in channels_last. On CPUs, the weight gradient of a strided 1x1 convolution
    with few channels is wrong in that format (oneDNN issue 6035): a network with one stays as it is."""
    layers = [layer for layer in module.modules() if isinstance(layer, nn.Conv2d)]
    narrow = any(layer.kernel_size == (1, 1) and layer.stride != (1, 1) and layer.in_channels < 16 for layer in layers)
    return module if narrow else module.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]


def architecture_of(name: str | None, encoder: nn.Module) -> Architecture:
    """What a checkpoint must record to build this encoder again."""
    if name is None:
        return {}
    if is_public(name):
        architecture = encoder.architecture
        assert isinstance(architecture, dict)
        return architecture
    return {"constructor": _registered[name].constructor}


def with_global_batch_norm(module: nn.Module) -> nn.Module:
    """Replace torch's BatchNorm layers by ours, which use the batch of all processes; parameters stay the same."""
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
        raise UserError(
            "--freeze (0.5 by default for pretrained encoders) needs an encoder with a list of layers (ModuleList or "
            "Sequential); use --freeze 0 to train all of it."
        )
    counts = Counter(type(layer) for _, layer in layers)
    kind = max(counts, key=lambda one: (not one.__module__.startswith("torch."), counts[one]))
    return [name for name, layer in layers if type(layer) is kind]
