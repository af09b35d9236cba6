"""Pretrained encoders of Hugging Face transformers (`hf:NAME`) and timm (`timm:NAME`), from the hub or a directory.

Weights are read from safetensors files only, and no code of a model repository is run. Both libraries are optional
and are imported here, when an encoder of theirs is used.
"""

from __future__ import annotations

import inspect
import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import torch
from huggingface_hub import hf_hub_download, try_to_load_from_cache
from huggingface_hub.constants import HF_HUB_DISABLE_PROGRESS_BARS
from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
from huggingface_hub.utils import enable_progress_bars, logging
from torch import Tensor, nn

from osiris.console import notice
from osiris.errors import UserError, import_extra
from osiris.files import load_tensors, read_json
from osiris.models.external import Architecture

CLASS_TOKEN = ("vit", "deit", "vit_msn")
"""Model types of transformers whose features are the class token after the last norm (their pooler is a classifier)."""
POOLED = (
    *("dinov2", "dinov2_with_registers", "dinov3_vit", "dinov3_convnext", "beit", "clip_vision_model"),
    *("siglip_vision_model", "swin", "swinv2", "convnext", "convnextv2", "resnet", "regnet"),
)
"""Model types of transformers whose features are `pooler_output`."""
IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
DEFAULT_SIZE = 224


@dataclass(frozen=True)
class Preprocessing:
    """The images that a pretrained encoder expects."""

    image_size: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]


def preprocessing(name: str) -> Preprocessing:
    """The preprocessing that the files of a model describe; by default 224 pixels and the statistics of ImageNet."""
    library, _, model = name.partition(":")
    try:
        if library == "timm":
            config = _timm_model(model).config
            record = {"image_mean": config.get("mean"), "image_std": config.get("std")}
            size = (config.get("input_size") or (3, DEFAULT_SIZE))[-1]
        else:
            record = _json(model, "preprocessor_config.json")
            config = _json(model, "config.json")
            size = _side(record.get("crop_size")) or _side(record.get("size"))
            size = size or _side(config.get("image_size") or config.get("vision_config", {}).get("image_size"))
        mean, std = record.get("image_mean") or IMAGENET[0], record.get("image_std") or IMAGENET[1]
        return msgspec.convert({"image_size": size or DEFAULT_SIZE, "mean": mean, "std": std}, Preprocessing)
    except (AttributeError, TypeError, LookupError, OverflowError, msgspec.ValidationError) as error:
        raise UserError(f"the files of {name} do not say which images it expects ({error}).") from error


def _side(size: Any) -> int | None:
    """224, {"height": 224, "width": 224} or {"shortest_edge": 224}."""
    if isinstance(size, dict):
        size = size.get("height") or size.get("shortest_edge")
    return int(size) if isinstance(size, int | float) else None


def load_pretrained(name: str) -> nn.Module:
    """The encoder with its pretrained weights."""
    library, _, model = name.partition(":")
    return _load_timm(model) if library == "timm" else _load_transformers(model)


def rebuild(name: str, architecture: Architecture) -> nn.Module:
    """The encoder without weights, from what a checkpoint records. Neither the hub nor a directory is needed."""
    try:
        if name.startswith("timm:"):
            return TimmEncoder(_create_timm(architecture["timm"]))
        from_record = _transformers("AutoConfig").for_model
        record = {key: value for key, value in architecture["transformers"].items() if "attn_implementation" not in key}
        config = _checked(from_record(**record), name)
        return TransformersEncoder(_transformers("AutoModel").from_config(config, dtype=torch.float32))
    except UserError:
        raise
    except Exception as error:  # the description is not trusted, and the libraries raise many types
        reason = " ".join(str(error).split())[:300]
        raise UserError(f"the checkpoint does not describe its encoder {name} completely ({reason}).") from error


class TransformersEncoder(nn.Module):
    """A vision model of transformers, which is `.model`: normalised images to features."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self.class_token = model.config.model_type in CLASS_TOKEN
        if self.class_token:
            model.pooler = None  # a head for classification, without a part in the features
        resizes = "interpolate_pos_encoding" in inspect.signature(model.forward).parameters
        self.options = {"interpolate_pos_encoding": True} if resizes else {}

    @property
    def architecture(self) -> Architecture:
        return {"transformers": json.loads(self.model.config.to_json_string(use_diff=False))}

    def forward(self, images: Tensor) -> Tensor:
        outputs = self.model(pixel_values=images, **self.options)
        return outputs.last_hidden_state[:, 0] if self.class_token else outputs.pooler_output.flatten(1)


def _transformers(name: str) -> Any:
    transformers = import_extra("transformers", "--encoder hf:...", "transformers")
    transformers.utils.logging.disable_progress_bar()  # of loading, and with it that of downloads
    if not HF_HUB_DISABLE_PROGRESS_BARS:
        enable_progress_bars()
    return getattr(transformers, name)


def _load_transformers(model: str) -> nn.Module:
    try:
        config = _transformers("AutoConfig").from_pretrained(model, trust_remote_code=False)
        config = _checked(getattr(config, "vision_config", config), f"hf:{model}")
        network, info = _transformers("AutoModel").from_pretrained(
            model, config=config, dtype=torch.float32, use_safetensors=True, output_loading_info=True
        )
    except UserError:
        raise
    except Exception as error:  # the files are not trusted, and the library raises many types
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UserError(
            f"hf:{model} cannot be loaded: {reason} Give the name of a model on the hub that has safetensors weights, "
            "or a directory with config.json and model.safetensors."
        ) from error
    encoder = TransformersEncoder(network)
    missing = sorted({f"model.{key}" for key in info["missing_keys"]} & encoder.state_dict().keys())
    if missing:
        raise UserError(
            f"hf:{model} has no weights for {missing[0]} and {len(missing) - 1} others of {config.model_type}."
        )
    return encoder


def _checked(config: Any, name: str) -> Any:
    """The config of a vision model whose features are known, without the kernels that a file might name."""
    if config.model_type not in (*CLASS_TOKEN, *POOLED):
        supported = ", ".join((*CLASS_TOKEN, *POOLED))
        raise UserError(
            f"{name} is a model of the type {config.model_type}; supported are {supported}. Wrap it in a module from "
            "images to features and pass that in Python (encoder=...)."
        )
    config._attn_implementation = None
    return config


class TimmEncoder(nn.Module):
    """A model of timm without its classifier, which is `.model`: normalised images to features."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self.architecture: Architecture = {"timm": str(model.default_cfg["architecture"])}

    def forward(self, images: Tensor) -> Tensor:
        return self.model(images)


@dataclass(frozen=True)
class _TimmModel:
    architecture: str
    config: dict[str, Any]
    """mean, std, input_size, classifier, as timm calls them."""
    repository: str
    """A repository of the hub, or a directory."""


def _timm() -> Any:
    return import_extra("timm", "--encoder timm:...", "timm")


def _timm_model(model: str) -> _TimmModel:
    if Path(model).is_dir():
        record = _json(model, "config.json")
        if not isinstance(record.get("architecture"), str):
            raise UserError(
                f"{model}/config.json names no timm architecture; use a directory as timm's hub pages have."
            )
        return _TimmModel(record["architecture"], record.get("pretrained_cfg", {}), model)
    config = _timm().get_pretrained_cfg(model)
    if config is None or not config.hf_hub_id:
        raise UserError(
            f"timm:{model}: timm knows no pretrained weights of this name on the hub (timm.list_pretrained)."
        )
    return _TimmModel(model, config.to_dict(), config.hf_hub_id)


def _create_timm(architecture: str) -> nn.Module:
    if not re.fullmatch(r"[\w.]+", architecture):  # such as hf-hub:..., which would be fetched
        raise UserError(f"{architecture!r} is not the name of a timm architecture.")
    try:
        return _timm().create_model(architecture, pretrained=False, num_classes=0)
    except RuntimeError as error:
        raise UserError(f"timm:{architecture} cannot be built: {error}") from error


def _load_timm(model: str) -> nn.Module:
    found = _timm_model(model)
    weights = _file(found.repository, "model.safetensors")
    if weights is None:
        raise UserError(f"timm:{model}: {found.repository} has no model.safetensors; other formats are not read.")
    network = _create_timm(found.architecture)
    classifiers = found.config.get("classifier") or ()
    classifiers = (classifiers,) if isinstance(classifiers, str) else tuple(classifiers)
    unused = tuple(f"{name}." for name in classifiers)
    state = {key: value for key, value in load_tensors(weights)[0].items() if not key.startswith(unused)}
    try:
        network.load_state_dict(state)
    except RuntimeError as error:
        raise UserError(
            f"timm:{model}: {weights} does not fit the architecture {found.architecture}: {error}"
        ) from error
    return TimmEncoder(network)


def _json(model: str, name: str) -> dict[str, Any]:
    path = _file(model, name)
    try:
        record = {} if path is None else read_json(path)
    except ValueError as error:
        raise UserError(f"{path} is damaged: {error}.") from None
    if not isinstance(record, dict):
        raise UserError(f"{path} is damaged: it should hold a JSON object.")
    return record


@cache
def _announce(model: str) -> None:
    """Once for each model."""
    notice(f"{model}: asking the Hugging Face hub for its files. They are downloaded once.")


def _file(model: str, name: str) -> Path | None:
    """A file of a model: in its directory, or on the hub (and then in the hub's cache)."""
    if Path(model).is_dir():
        return path if (path := Path(model) / name).is_file() else None
    logging.set_verbosity_error()  # the error below says the same as a line for each attempt
    try:
        if try_to_load_from_cache(model, name) is None:
            _announce(model)
        return Path(hf_hub_download(model, name))
    except LocalEntryNotFoundError as error:  # offline
        raise UserError(
            f"{model} is neither a directory nor in the cache, and the hub cannot be reached. Connect to the network "
            "once, give a directory with its files, or leave out --encoder."
        ) from error
    except EntryNotFoundError:
        return None
    except (HfHubHTTPError, HFValidationError) as error:
        raise UserError(f"{model} is neither a directory nor a model on the hub ({type(error).__name__}).") from error
