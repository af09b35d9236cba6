"""Encoders and projectors."""

from osiris.models.config import EncoderConfig, ProjectorConfig
from osiris.models.encoder import Encoder, parameter_count
from osiris.models.projector import adapter, predictor, projector


def build_encoder(config: EncoderConfig, seed: int = 0, zero_init_last: bool = True) -> Encoder:
    """An encoder whose weights depend on the seed alone."""
    from osiris.randomness import scoped

    with scoped(seed, "init.encoder"):
        return Encoder(config, zero_init_last)


__all__ = [
    "Encoder",
    "EncoderConfig",
    "ProjectorConfig",
    "adapter",
    "build_encoder",
    "parameter_count",
    "predictor",
    "projector",
]
