"""Encoders from files: checkpoints of osiris, state dicts of other libraries, pretrained models, a Python function.

A checkpoint of osiris says what it holds (architecture, normalisation, image size), and that is what is built. The
architecture of other files is inferred from the shapes. Known naming schemes: the authors' code, CaSSLe and old
solo-learn (`encoder.`), solo-learn (`backbone.`), wrappers (`module.`, `model.`, `net.`, in any combination), timm and
torchvision (no prefix); `shortcut` for `downsample`, `gn1` or `norm1` for `bn1`. Files are never unpickled.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
import torch
from msgspec import Meta
from torch import Tensor, nn

from osiris.data.config import LARGEST_SIDE
from osiris.errors import UserError, unknown
from osiris.files import load_tensors
from osiris.models.config import ARCHITECTURES, EncoderConfig
from osiris.models.encoder import build_encoder, without_memory
from osiris.models.external import PYTHON_ENTRY, Architecture, import_entry, is_public, statistics
from osiris.models.joined import LAYERS, joined
from osiris.models.manifold import MANIFOLD, manifold
from osiris.models.pretrained import preprocessing

CONTAINERS = ("state_dict", "model_state_dict", "model", "net", "encoder", "backbone")
MOST_WRAPPERS = 10
"""Containers within containers; a file may hold itself."""
COPIES = ("momentum", "frozen", "old", "target", "teacher", "ema", "past", "expert")
"""A checkpoint often holds a second copy of the encoder; its names contain one of these words."""
MOST_LAYERS = 1000
"""The largest number of layers, blocks or stages that a pretrained encoder may claim to have."""
Mean = Annotated[float, Meta(ge=-1e6, le=1e6)]
Deviation = Annotated[float, Meta(ge=1e-6, le=1e6)]


class Metadata(msgspec.Struct):
    """What a checkpoint of osiris says about itself."""

    encoder: EncoderConfig
    architecture: Architecture = {}
    mean: tuple[Mean, Mean, Mean] | None = None
    std: tuple[Deviation, Deviation, Deviation] | None = None
    image_size: Annotated[int, Meta(ge=1, le=LARGEST_SIDE)] | None = None


@dataclass(frozen=True)
class LoadedEncoder:
    """A module from normalised images [B, 3, H, W] to features [B, D], and what its file says about it."""

    module: nn.Module
    description: dict[str, Any]
    """Becomes part of the protocol fingerprint."""
    mean: tuple[float, float, float] | None = None
    std: tuple[float, float, float] | None = None
    """Channel statistics of the images it was trained on; None: unknown, use those of the data."""
    image_size: int | None = None


def load_encoder(
    source: str | Path, arch: str | None = None, prefix: str | None = None, stem_padding: int | None = None
) -> LoadedEncoder:
    """From a file, from `hf:NAME` or `timm:NAME`, or from `package.module:function`. The other arguments describe files
    that do not describe themselves; they must not contradict a checkpoint of osiris."""
    path = Path(source)
    if is_public(str(source)):
        expected = preprocessing(str(source))
        config = EncoderConfig(encoder=str(source))
        return LoadedEncoder(
            build_encoder(config), config.description, expected.mean, expected.std, expected.image_size
        )
    if not path.exists() and PYTHON_ENTRY.fullmatch(str(source)):
        return given_encoder(from_entry(str(source)), str(source))
    tensors, metadata = read_file(path)
    if "encoder" in metadata:
        loaded, config = from_checkpoint(path, tensors, metadata)
        _refuse_contradictions(path, config, arch, prefix, stem_padding)
        return loaded
    return from_foreign(path, tensors, arch, prefix, stem_padding)


def given_encoder(module: nn.Module, name: str | None = None) -> LoadedEncoder:
    """An encoder as a module, with the normalisation that its attributes `mean` and `std` name."""
    mean, std = getattr(module, "mean", None), getattr(module, "std", None)
    known = (None, None) if mean is None or std is None else statistics(mean, std)
    return LoadedEncoder(module, {"entry": name or type(module).__name__}, *known)


def load_checkpoint(path: Path) -> LoadedEncoder:
    """The encoder of a checkpoint that osiris wrote; other files are refused."""
    tensors, metadata = read_file(path)
    loaded = from_checkpoint(path, tensors, metadata)[0] if "encoder" in metadata else None
    if loaded is None or None in (loaded.mean, loaded.std, loaded.image_size):
        raise UserError(f"{path} is not a checkpoint of osiris; for other weights use --encoder {path}.")
    for name, value in loaded.module.state_dict().items():
        if value.is_floating_point() and not (value.dtype == torch.float32 and bool(torch.isfinite(value).all())):
            raise UserError(
                f"{path}: {name} holds numbers that are not finite, or not float32 ({value.dtype}). No finished "
                "episode has such weights: use those of another one, or put the file back from a copy."
            )
    return loaded


def from_checkpoint(
    path: Path, tensors: Mapping[str, Any], metadata: Mapping[str, Any]
) -> tuple[LoadedEncoder, EncoderConfig]:
    """The encoder of `episodes/NN-NAME/weights.safetensors`, and its config."""
    try:
        encoder = checkpoint_encoder(tensors, metadata)
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
    about = msgspec.convert(metadata, Metadata)
    loaded = LoadedEncoder(encoder, about.encoder.description, about.mean, about.std, about.image_size)
    return loaded, about.encoder


def checkpoint_encoder(tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]) -> nn.Module:
    """The encoder of a checkpoint. It is built without memory until its sizes are known to be those of the tensors,
    because a file can claim any size."""
    external = None
    try:
        about = msgspec.convert(metadata, Metadata)
        config, architecture, external = about.encoder, about.architecture, about.encoder.encoder
        _refuse_many_layers(architecture)

        def build() -> nn.Module:
            if MANIFOLD in architecture:
                return manifold(architecture[MANIFOLD])
            known = {name: value for name, value in architecture.items() if name != LAYERS}
            network = build_encoder(config, architecture=known)
            return joined(network, architecture[LAYERS]) if LAYERS in architecture else network

        with without_memory():
            encoder = build()
        names = [name for name in tensors if name.startswith("encoder.")]
        encoder.load_state_dict({name.removeprefix("encoder."): tensors[name] for name in names}, assign=True)
        if external is not None:  # now with the buffers that a checkpoint does not hold
            state = encoder.state_dict()
            encoder = build()
            encoder.load_state_dict(state)
    except (msgspec.ValidationError, LookupError, TypeError, ValueError, RuntimeError) as error:
        reason = "it is damaged, or written by another version of osiris"
        if external is not None:
            reason = f"{external} is built differently here; has its code changed?"
        problem = " ".join(str(error).split())[:300]
        raise UserError(f"the checkpoint does not fit its description ({reason}): {problem}") from error
    return encoder


def _refuse_many_layers(value: Any, name: str = "") -> None:
    """Building the layers that a file claims to have may take forever, even without memory."""
    if isinstance(value, dict):
        for inner, item in value.items():
            _refuse_many_layers(item, inner)
    elif isinstance(value, list):
        for item in value:
            _refuse_many_layers(item, name)
    elif isinstance(value, int) and value > MOST_LAYERS and re.search("layer|depth|block|stage", name):
        raise UserError(f"the checkpoint describes an encoder with {name} {value}; at most {MOST_LAYERS} are built.")


def _refuse_contradictions(
    path: Path, config: EncoderConfig, arch: str | None, prefix: str | None, stem_padding: int | None
) -> None:
    if arch is not None:
        _check_architecture(arch, config)
    if prefix not in (None, "", "encoder."):
        raise UserError(f"{path} is a checkpoint of osiris: its encoder has the prefix 'encoder.', not {prefix!r}.")
    if stem_padding not in (None, 3 if config.stem == "large" else 1):
        raise UserError(f"{path} is a checkpoint of osiris: leave out --stem-padding {stem_padding}.")


def from_entry(entry: str) -> nn.Module:
    """Call `package.module:function` (the current directory is importable) and check that it returned a module."""
    function = import_entry(entry)
    encoder = function() if callable(function) and not isinstance(function, nn.Module) else function
    if not isinstance(encoder, nn.Module):
        raise UserError(f"{entry!r} returned {type(encoder).__name__}, not a torch.nn.Module from images to features.")
    return encoder


def from_foreign(
    path: Path, record: Mapping[str, Any], arch: str | None, prefix: str | None, stem_padding: int | None
) -> LoadedEncoder:
    """A ResNet of this family from a state dict of another library.

    CaSSLe and solo-learn pad the 3x3 stem by 2 instead of 1, which no state dict shows: files of Lightning are assumed
    to be theirs unless `stem_padding` says otherwise.
    """
    state = map_keys(find_state(record), prefix)
    config = infer_config(state)
    if arch is not None:
        _check_architecture(arch, config)
    encoder = build_encoder(config)
    wanted = encoder.state_dict()
    if config.norm == "gn":
        state = {name: value for name, value in state.items() if not name.endswith("num_batches_tracked")}
    problems = {
        "missing": sorted(set(wanted) - set(state)),
        "not known": sorted(set(state) - set(wanted)),
        "of another shape": [name for name in wanted if name in state and wanted[name].shape != state[name].shape],
    }
    if any(problems.values()):
        text = "; ".join(f"{len(names)} {what}, such as {names[0]}" for what, names in problems.items() if names)
        raise UserError(f"{path} does not fit a ResNet of this family: {text}. Use a Python entry (module:function).")
    encoder.load_state_dict(state)
    if stem_padding is None and config.stem == "small" and "pytorch-lightning_version" in record:
        stem_padding = 2
    description = {name: value for name, value in config.description.items() if name != "family"}
    stem = encoder.conv1
    assert isinstance(stem, nn.Conv2d)
    if stem_padding is not None and stem.padding != (stem_padding, stem_padding):
        stem.padding = (stem_padding, stem_padding)
        description["stem_padding"] = stem_padding
    return LoadedEncoder(encoder, description)


def read_file(path: Path) -> tuple[Mapping[str, Any], dict[str, Any]]:
    """(content, metadata of osiris if it wrote the file) of a safetensors or torch file, tensors on the CPU."""
    if not path.is_file():
        raise UserError(f"{path} is not a file. Give a weights file, or a Python entry `package.module:function`.")
    if path.suffix == ".safetensors":
        return load_tensors(path)
    try:
        record = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise UserError(
            f"{path} cannot be read without running code from it, which is refused ({type(error).__name__})."
            " Open it where you trust it and save its state dict as safetensors."
        ) from error
    if not isinstance(record, Mapping):
        raise UserError(f"{path} holds a {type(record).__name__}, not a state dict.")
    if record.keys() == {"engine"}:
        raise UserError(f"{path} is the training state of a run; give {path.parent}/weights.safetensors instead.")
    return record, {}


def find_state(record: Mapping[str, Any]) -> dict[str, Tensor]:
    """The state dict inside a checkpoint, whatever it is wrapped in."""
    inner: Any = record
    for _ in range(MOST_WRAPPERS):
        record = inner
        tensors = {str(name): value for name, value in record.items() if isinstance(value, Tensor)}
        if any(name.endswith("conv1.weight") for name in tensors):
            return tensors
        inner = next((record[name] for name in CONTAINERS if isinstance(record.get(name), Mapping)), None)
        if inner is None:
            break
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
    """The part of the names before `conv1.weight` of the encoder."""
    present, end = set(names), "layer1.0.conv1.weight"
    prefixes = sorted({name.removesuffix(end) for name in names if name.endswith(end)})
    prefixes = [prefix for prefix in prefixes if prefix + "conv1.weight" in present]
    originals = [prefix for prefix in prefixes if not any(word in re.split(r"[._]", prefix) for word in COPIES)]
    candidates = originals or prefixes
    if len(candidates) == 1:
        return candidates[0]
    if not candidates:
        raise UserError(f"there is no ResNet encoder in this state dict (names such as {', '.join(names[:4])}).")
    raise UserError(f"the file holds several encoders; choose one by its prefix: {', '.join(map(repr, candidates))}.")


def infer_config(state: Mapping[str, Tensor]) -> EncoderConfig:
    """The shape of the encoder, from the shapes of its tensors. They do not show strides: the stem's is assumed 1."""
    if any(re.search(r"\.conv3\.weight$", name) for name in state):
        raise UserError("this encoder has bottleneck blocks (ResNet-50 or larger): use a Python entry module:function.")
    if "conv1.weight" not in state or state["conv1.weight"].ndim != 4:
        raise UserError("there is no ResNet encoder under this prefix: no conv1.weight with four dimensions.")
    width, _, kernel, _ = state["conv1.weight"].shape
    stages = [{name.split(".")[1] for name in state if name.startswith(f"layer{stage}.")} for stage in range(1, 5)]
    return EncoderConfig(
        width=width,
        blocks=tuple(map(len, stages)),
        norm="bn" if "bn1.running_mean" in state else "gn",
        stem="large" if kernel == 7 else "small",
    )


def _check_architecture(arch: str, config: EncoderConfig) -> None:
    if arch not in ARCHITECTURES:
        raise unknown("architecture", arch, ARCHITECTURES)
    if (config.width, config.blocks) != ARCHITECTURES[arch]:
        raise UserError(f"the file holds an encoder of width {config.width} with blocks {config.blocks}, not a {arch}.")
