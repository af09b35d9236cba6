"""Encoders and projectors. Names load on first use: configs are read by `--help`, which must not wait for torch."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from osiris.models.config import EncoderConfig, ProjectorConfig  # noqa: F401

if TYPE_CHECKING:
    from osiris.models.encoder import Encoder, build_encoder, feature_count, is_external, without_memory  # noqa: F401
    from osiris.models.heads import adapter, mlp, predictor, projector  # noqa: F401


def __getattr__(name: str) -> Any:
    for module in () if name.startswith("__") else ("encoder", "heads"):
        if hasattr(home := import_module(f"osiris.models.{module}"), name):
            return getattr(home, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
