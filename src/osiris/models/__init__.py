"""Encoders and projectors. Names load on first use: configs are read by `--help`, which must not wait for torch."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from osiris.models.config import EncoderConfig, ProjectorConfig

if TYPE_CHECKING:
    from osiris.models.encoder import Encoder, build_encoder, feature_count, is_external, parameter_count
    from osiris.models.heads import adapter, mlp, predictor, projector

_HOME = {
    "Encoder": "encoder",
    "build_encoder": "encoder",
    "feature_count": "encoder",
    "is_external": "encoder",
    "parameter_count": "encoder",
    "adapter": "heads",
    "mlp": "heads",
    "predictor": "heads",
    "projector": "heads",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"osiris.models.{_HOME[name]}"), name)
    globals()[name] = value
    return value


__all__ = [
    "Encoder",
    "EncoderConfig",
    "ProjectorConfig",
    "adapter",
    "build_encoder",
    "feature_count",
    "is_external",
    "mlp",
    "parameter_count",
    "predictor",
    "projector",
]
