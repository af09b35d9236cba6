"""Presets: functions that return a complete frozen config for a benchmark.

`paper` follows the text, `paper-released` the authors' runs; `fast` learns in minutes on a laptop, `fast-long` in an
hour; `smoke` is for tests.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from osiris.errors import UserError, unknown
from osiris.models.config import ARCHITECTURES, EncoderConfig
from osiris.training.config import Config, with_options


def paper(benchmark: str) -> Config:
    """Appendix B: ResNet-18, 200 epochs, batch 256, memory 500, k = 200."""
    interval = 4000 if "tiny-imagenet" in benchmark else 2000 if "cifar" in benchmark else None
    return with_options(Config(), {"preset": "paper", "benchmark": benchmark, "pocon_interval": interval})


def paper_released(benchmark: str) -> Config:
    """The authors' two-process runs halve the gradient of f and g: lr 0.015 with weight decay 1e-3 is equivalent."""
    changes = {"preset": "paper-released", "learning_rate": 0.015, "weight_decay": 1e-3}
    return with_options(paper(benchmark), changes)


def fast(benchmark: str) -> Config:
    """Learns in minutes on one core of a laptop: the `fast` encoder on small views of all images, one epoch per task,
    Muon with a learning rate that falls to zero within each task. docs/log.md says how it was found."""
    own, drawn = own_data(benchmark), "tinyworld" in benchmark
    epochs = 10 if own else 1
    encoder = {"family": "fast", "width": 64, "blocks": (1, 1), "projector_hidden": 512, "projector_output": 64}
    length = {"epochs": epochs, "batch_size": 32 if drawn else 64, "memory_size": 200 if drawn else 500}
    optimiser = {"optimiser": "muon", "momentum": 0.6, "weight_decay": 0.01, "learning_rate": 0.1 if drawn else 0.04}
    schedule = {"schedule": "cosine", "warmup_epochs": 0.1 * epochs}
    data = {"bank_per_class": 60 if drawn else 100, "test_per_class": 40 if drawn else 50, "view_size": 24}
    others = {"views": "gentle", "k": 10 if own or drawn else 20, "threads": 1, "log_every": 10}
    options = encoder | length | optimiser | schedule | ({} if own else data) | others
    return with_options(Config(), {"preset": "fast", "benchmark": benchmark} | options)


def fast_long(benchmark: str) -> Config:
    """`fast` for about an hour: an encoder twice as wide, more epochs. A third stage makes it worse (docs/log.md)."""
    epochs = 20 if own_data(benchmark) else 6
    changes = {"preset": "fast-long", "width": 128, "epochs": epochs, "warmup_epochs": 0.1 * epochs}
    return with_options(fast(benchmark), changes | {"learning_rate": 0.03})


def own_data(benchmark: str) -> bool:
    """Whether the images are the user's own: then all of them are used."""
    return benchmark.startswith(("folder:", "dataset:", "arrays:"))


def smoke(benchmark: str) -> Config:
    """The whole chain in seconds. Its numbers mean nothing."""
    own = own_data(benchmark)
    encoder = {"width": 8, "blocks": (1, 1, 1, 1), "stem_stride": 2, "projector_hidden": 32, "projector_output": 16}
    learning = {"epochs": 2, "batch_size": 8 if own else 32, "memory_size": 32, "threads": 1, "log_every": 1}
    data = {"train_per_class": 12, "bank_per_class": 12, "test_per_class": 4}
    options = encoder | learning | ({} if own else data) | {"k": 2, "random_encoders": 1}
    return with_options(Config(), {"preset": "smoke", "benchmark": benchmark} | options)


PRESETS: dict[str, Callable[[str], Config]] = {
    "paper": paper,
    "paper-released": paper_released,
    "fast": fast,
    "fast-long": fast_long,
    "smoke": smoke,
}


def choose_preset(device: str = "auto") -> tuple[str, str]:
    """The preset of a run that names none, and why."""
    from osiris.training.devices import choose_device

    return ("fast", "there is no GPU") if choose_device(device).type == "cpu" else ("paper", "there is a GPU")


FEWEST_SLOTS = 36
"""The smallest memory that a preset chooses: room for a batch of 32 images and the three that may join it."""
FEWEST_STEPS = 100
MOST_EPOCHS = 50
"""`fast` and `fast-long` learn from a small episode for so many steps, but not for more than so many epochs."""


def for_episodes(config: Config, images: int | None) -> Config:
    """A preset for episodes of this many images (None: not known yet).

    The memory holds at most a quarter of an episode, and a batch fits into it: a memory of all images would be the same
    as keeping them, and their copies in it would be each other's negatives. The fast presets learn from small episodes
    for more epochs.
    """
    if images is None:
        return config
    learning = config.learning
    memory = min(learning.memory_size, max(FEWEST_SLOTS, images // 4))
    batch = min(learning.batch_size, memory - 4)
    learning = replace(learning, memory_size=memory, batch_size=batch)
    if config.preset.startswith("fast"):
        epochs = min(math.ceil(FEWEST_STEPS * batch / images), MOST_EPOCHS)
        learning = replace(learning, epochs=max(learning.epochs, epochs))
    return replace(config, learning=learning)


def describe(config: Config) -> str:
    """What was chosen for own images."""
    learning = config.learning
    return f": epochs {learning.epochs}, batch {learning.batch_size}, memory {learning.memory_size} images"


SLOWER = {"barlow", "vicreg", "byol", "simsiam", "mocov3", "swav"}
"""Objectives with BatchNorm in their heads: with Muon they learn at 0.3 of the rate of NT-Xent (docs/objectives.md)."""


def preset(name: str, benchmark: str, encoder: str | None = None, objective: str | None = None) -> Config:
    """The defaults of a run. `objective`: what --objective says, with options or without."""
    if name not in PRESETS:
        raise unknown("preset", name, PRESETS)
    config = PRESETS[name](benchmark)
    place = benchmark.removeprefix("folder:")
    if place and place != benchmark:
        from osiris.data.folder import first_episode_size

        config = for_episodes(config, first_episode_size(Path(place)))
    config = config if encoder is None else _suited(with_encoder(config, encoder))
    if config.learning.optimiser == "muon" and (objective or "").split("(")[0] in SLOWER:
        config = with_options(config, {"learning_rate": round(0.3 * config.learning.learning_rate, 6)})
    return config


def with_encoder(config: Config, encoder: str) -> Config:
    """The config with another encoder: `resnet18`, `resnet34`, `hf:NAME`, `timm:NAME`, `own:NAME`."""
    if encoder in ARCHITECTURES:
        width, blocks = ARCHITECTURES[encoder]
        return replace(config, encoder=EncoderConfig(width=width, blocks=blocks))
    if not encoder.startswith(("hf:", "timm:", "own:")):
        known = ", ".join(ARCHITECTURES)
        raise UserError(f"unknown encoder {encoder!r}; use hf:NAME, timm:NAME, {known}, or a module in Python.")
    return replace(config, encoder=EncoderConfig(encoder=encoder))


def _suited(config: Config) -> Config:
    """The defaults of a preset, changed to suit an encoder that the preset was not made for (docs/encoders.md).

    Views have the size of the images. Muon rescales filters, so it is replaced by AdamW. A pretrained encoder also gets
    images of its own size, a low learning rate, and does not train the first half of its layers.
    """
    name, changes = config.encoder.encoder, {"view_size": None}
    if name is not None and config.learning.optimiser == "muon":
        changes |= {"optimiser": "adamw", "learning_rate": 1e-3, "weight_decay": 0.05}
    if name is not None and name.startswith(("hf:", "timm:")):
        from osiris.models.pretrained import preprocessing

        changes |= {"optimiser": "adamw", "learning_rate": 1e-4, "weight_decay": 0.05, "schedule": "cosine"}
        changes |= {"warmup_epochs": 0.1 * config.learning.epochs, "freeze": 0.5}
        changes |= {"image_size": preprocessing(name).image_size}
        changes |= {"random_encoders": 1}  # every seed starts from the same weights
    return with_options(config, changes)
