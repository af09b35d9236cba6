"""Presets: complete configs that fit their benchmark."""

from __future__ import annotations

import pytest

from osiris.models import build_encoder
from osiris.training.config import from_dict, to_dict
from osiris.training.presets import PRESETS, preset

BENCHMARKS = ("tinyworld", "split-cifar100-20", "folder:photos")


@pytest.mark.parametrize("benchmark", BENCHMARKS)
@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_a_valid_config_that_survives_json(name: str, benchmark: str) -> None:
    config = preset(name, benchmark)
    config.check()
    assert from_dict(to_dict(config)) == config and config.preset == name
    if name != "smoke":
        assert config.data.bank_per_class is None or config.evaluation.k <= config.data.bank_per_class / 5
    if name in ("smoke", "fast"):
        assert build_encoder(config.encoder).features == config.encoder.features
