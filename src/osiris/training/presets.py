"""Presets: functions that return a complete frozen config for a benchmark.

`paper` follows the text, `paper-released` the authors' runs, `cpu` is for a laptop, `smoke` for tests.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from osiris.data.config import BenchmarkConfig
from osiris.errors import unknown
from osiris.evaluation.config import ProtocolConfig
from osiris.framework.config import MethodConfig
from osiris.models.config import EncoderConfig, ProjectorConfig
from osiris.training.config import Config, EngineConfig, LearningConfig


def paper(benchmark: str) -> Config:
    """Appendix B: ResNet-18, 200 epochs, batch 256, memory 500, k = 200."""
    interval = 4000 if "tiny-imagenet" in benchmark else 2000 if "cifar" in benchmark else None
    return Config(
        preset="paper", data=BenchmarkConfig(benchmark=benchmark), method=MethodConfig(pocon_interval=interval)
    )


def paper_released(benchmark: str) -> Config:
    """The authors' two-process runs halve the gradient of f and g: lr 0.015 with weight decay 1e-3 is equivalent."""
    config = paper(benchmark)
    learning = replace(config.learning, learning_rate=0.015, weight_decay=1e-3)
    return replace(config, preset="paper-released", learning=learning)


def cpu(benchmark: str) -> Config:
    """A small member of the family on a part of the images: minutes to half an hour on a laptop core."""
    config = Config(preset="cpu", data=BenchmarkConfig(benchmark=benchmark))
    small = replace(
        config,
        encoder=EncoderConfig(width=16, blocks=(1, 1, 1, 1), stem_stride=2),
        projector=ProjectorConfig(projector_hidden=512, projector_output=64),
        engine=EngineConfig(threads=1, log_every=10),
    )
    if own_data(benchmark):
        learning = LearningConfig(epochs=50, batch_size=64, memory_size=500, learning_rate=0.06)
        return replace(small, learning=learning, evaluation=ProtocolConfig(k=10))
    if "tinyworld" in benchmark:
        return replace(
            small,
            data=replace(small.data, train_per_class=60, bank_per_class=60, test_per_class=40),
            learning=LearningConfig(epochs=20, batch_size=32, memory_size=60, learning_rate=0.06, views="gentle"),
            evaluation=ProtocolConfig(k=10),
        )
    return replace(
        small,
        data=replace(small.data, train_per_class=100, bank_per_class=100, test_per_class=50),
        learning=LearningConfig(epochs=16, batch_size=64, memory_size=250, learning_rate=0.06),
        evaluation=ProtocolConfig(k=20),
    )


def own_data(benchmark: str) -> bool:
    """Somebody's own images: all of them are used."""
    return benchmark.startswith(("folder:", "dataset:", "arrays:"))


def smoke(benchmark: str) -> Config:
    """The whole chain in seconds. Its numbers mean nothing."""
    config = Config(preset="smoke", data=BenchmarkConfig(benchmark=benchmark))
    batch_size = 8 if own_data(benchmark) else 32
    limited = replace(config.data, train_per_class=12, bank_per_class=12, test_per_class=4)
    return replace(
        config,
        data=config.data if own_data(benchmark) else limited,
        encoder=EncoderConfig(width=8, blocks=(1, 1, 1, 1), stem_stride=2),
        projector=ProjectorConfig(projector_hidden=32, projector_output=16),
        learning=LearningConfig(epochs=2, batch_size=batch_size, memory_size=32),
        evaluation=ProtocolConfig(k=2, random_encoders=1),
        engine=EngineConfig(threads=1, log_every=1),
    )


PRESETS: dict[str, Callable[[str], Config]] = {
    "paper": paper,
    "paper-released": paper_released,
    "cpu": cpu,
    "smoke": smoke,
}


def preset(name: str, benchmark: str) -> Config:
    if name not in PRESETS:
        raise unknown("preset", name, PRESETS)
    return PRESETS[name](benchmark)
