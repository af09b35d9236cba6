"""Encoders that were trained elsewhere: state dicts under other names, or any Python function that returns a module.

Known naming schemes: the authors' code, CaSSLe and old solo-learn (`encoder.`), solo-learn (`backbone.`), wrappers
(`module.`, `model.`, `net.`, in any combination), timm and torchvision (no prefix); `shortcut` for `downsample`, `gn1`
or `norm1` for `bn1`. Files are never unpickled: safetensors, or torch files with weights only.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from osiris.errors import UserError, unknown
from osiris.models.config import EncoderConfig

ARCHITECTURES: dict[str, tuple[int, tuple[int, int, int, int]]] = {
    "resnet18": (64, (2, 2, 2, 2)),
    "resnet34": (64, (3, 4, 6, 3)),
}
"""Width and blocks per stage."""
CONTAINERS = ("state_dict", "model_state_dict", "model", "net", "encoder", "backbone")
NOT_THE_ENCODER = ("momentum", "frozen", "old", "target", "teacher", "ema", "past", "expert")
"""A checkpoint often holds a second copy of the encoder; names with one of these words are that copy."""


def load_foreign(
    source: str, arch: str | None = None, prefix: str | None = None, stem_padding: int | None = None
) -> tuple[nn.Module, dict[str, Any]]:
    """(encoder, its description for the protocol fingerprint) from a file or from `package.module:function`."""
    if not Path(source).exists() and re.fullmatch(r"[\w.]+:\w+", source):
        return from_entry(source), {"entry": source}
    encoder, config, padding = from_file(Path(source), arch, prefix, stem_padding)
    description = {"width": config.width, "blocks": list(config.blocks), "norm": config.norm, "stem": config.stem}
    description |= {"stem_stride": config.stem_stride}
    return encoder, description | ({} if padding is None else {"stem_padding": padding})


def from_entry(entry: str) -> nn.Module:
    """Call `package.module:function` (the current directory is importable) and make sure that a module came back."""
    module_name, _, function_name = entry.partition(":")
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        function = getattr(importlib.import_module(module_name), function_name)
    except ImportError as error:
        raise UserError(f"{entry!r}: {error}. Is the package installed, or the file in this directory?") from error
    except AttributeError:
        raise UserError(f"{entry!r}: the module {module_name!r} has no function {function_name!r}.") from None
    finally:
        sys.path.remove(here)
    encoder = function()
    if not isinstance(encoder, nn.Module):
        raise UserError(f"{entry!r} returned {type(encoder).__name__}, not a torch.nn.Module from images to features.")
    return encoder


def from_file(
    path: Path, arch: str | None = None, prefix: str | None = None, stem_padding: int | None = None
) -> tuple[nn.Module, EncoderConfig, int | None]:
    """(encoder, config, padding of the stem if it is not the usual one).

    CaSSLe and solo-learn pad the 3x3 stem by 2 instead of 1, which no state dict shows: files of Lightning are taken
    to be theirs unless `stem_padding` says otherwise.
    """
    from osiris.models import build_encoder

    record = read_file(path)
    state = map_keys(find_state(record), prefix)
    config = infer_config(state)
    if arch is not None:
        _check_architecture(arch, config)
    encoder = build_encoder(config)
    wanted = encoder.state_dict()
    if config.norm == "gn":
        state = {name: value for name, value in state.items() if not name.endswith("num_batches_tracked")}
    missing, unused = sorted(set(wanted) - set(state)), sorted(set(state) - set(wanted))
    wrong = [name for name in wanted if name in state and wanted[name].shape != state[name].shape]
    if missing or unused or wrong:
        parts = (("missing", missing), ("not known", unused), ("of another shape", wrong))
        shown = "; ".join(f"{len(names)} {what}, such as {names[0]}" for what, names in parts if names)
        raise UserError(f"{path} does not fit a ResNet of this family: {shown}. Use a Python entry (module:function).")
    encoder.load_state_dict(state)
    if stem_padding is None and config.stem == "small" and "pytorch-lightning_version" in record:
        stem_padding = 2
    stem = encoder.conv1
    assert isinstance(stem, nn.Conv2d)
    if stem_padding is None or stem.padding == (stem_padding, stem_padding):
        return encoder, config, None
    stem.padding = (stem_padding, stem_padding)
    return encoder, config, stem_padding


def read_file(path: Path) -> Mapping[str, Any]:
    """The content of a safetensors or torch file, tensors on the CPU; nothing is unpickled."""
    if not path.exists():
        raise UserError(f"{path} does not exist. Give a weights file, or a Python entry `package.module:function`.")
    if path.suffix == ".safetensors":
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            return load_file(path)
        except SafetensorError as error:
            raise UserError(f"{path} is not a safetensors file ({error}).") from error
    try:
        record = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise UserError(
            f"{path} cannot be read without running code from it, which is refused ({type(error).__name__})."
            " Open it where you trust it and save its state dict as safetensors."
        ) from error
    if not isinstance(record, Mapping):
        raise UserError(f"{path} holds a {type(record).__name__}, not a state dict.")
    return record


def find_state(record: Mapping[str, Any]) -> dict[str, Tensor]:
    """The state dict inside a checkpoint, whatever it is wrapped in."""
    tensors = {name: value for name, value in record.items() if isinstance(value, Tensor)}
    if any(name.endswith("conv1.weight") for name in tensors):
        return tensors
    for name in CONTAINERS:
        inner = record.get(name)
        if isinstance(inner, Mapping):
            return find_state(inner)
    raise UserError(f"there is no ResNet encoder among the entries {', '.join(map(str, list(record)[:8]))}, ...")


def map_keys(state: Mapping[str, Tensor], prefix: str | None = None) -> dict[str, Tensor]:
    """The encoder's tensors under timm's names (conv1, bn1, layer1.0.conv1, ..., downsample.1), and no others."""
    prefix = find_prefix(list(state)) if prefix is None else prefix
    mapped: dict[str, Tensor] = {}
    for name, value in state.items():
        if name.startswith(prefix):
            inner = name[len(prefix) :].replace("shortcut.", "downsample.")
            inner = re.sub(r"(^|\.)(?:gn|norm)(\d\.)", r"\1bn\2", inner)
            if re.match(r"(conv1|bn1|layer[1-4])\.", inner):
                mapped[inner] = value
    return mapped


def find_prefix(names: list[str]) -> str:
    """What stands before `conv1.weight` of the encoder."""
    present = set(names)
    ends = "layer1.0.conv1.weight"
    prefixes = sorted({name.removesuffix(ends) for name in names if name.endswith(ends)})
    prefixes = [one for one in prefixes if one + "conv1.weight" in present]
    own = [one for one in prefixes if not any(word in re.split(r"[._]", one) for word in NOT_THE_ENCODER)]
    candidates = own or prefixes
    if len(candidates) == 1:
        return candidates[0]
    if not candidates:
        raise UserError(f"there is no ResNet encoder in this state dict (names such as {', '.join(names[:4])}).")
    raise UserError(f"the file holds several encoders; choose one by its prefix: {', '.join(map(repr, candidates))}.")


def infer_config(state: Mapping[str, Tensor]) -> EncoderConfig:
    """The shape of the encoder, from the shapes of its tensors. A stride leaves no trace: it is taken to be 1."""
    if any(re.search(r"\.conv3\.weight$", name) for name in state):
        raise UserError("this encoder has bottleneck blocks (ResNet-50 or larger): use a Python entry module:function.")
    width, _, kernel, _ = state["conv1.weight"].shape
    stages = [{name.split(".")[1] for name in state if name.startswith(f"layer{stage}.")} for stage in range(1, 5)]
    return EncoderConfig(
        width=width,
        blocks=(len(stages[0]), len(stages[1]), len(stages[2]), len(stages[3])),
        norm="bn" if "bn1.running_mean" in state else "gn",
        stem="large" if kernel == 7 else "small",
    )


def _check_architecture(arch: str, config: EncoderConfig) -> None:
    if arch not in ARCHITECTURES:
        raise unknown("architecture", arch, ARCHITECTURES)
    if (config.width, config.blocks) != ARCHITECTURES[arch]:
        raise UserError(f"the file holds an encoder of width {config.width} with blocks {config.blocks}, not a {arch}.")
