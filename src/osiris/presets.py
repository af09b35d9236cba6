"""Presets as data, and `configure`, which makes the complete config of a run from one.

`paper` follows the text, `paper-released` the authors' runs, `gpu` is `paper` in lower precision; `fast` learns in
minutes on a laptop, `fast-long` in an hour; `climb` is that of online learning from a stream; `smoke` is for tests.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from osiris.config import Config, LearningConfig, with_options
from osiris.data.catalogue import parse_name
from osiris.data.folder import first_episode_size
from osiris.errors import UserError, unknown
from osiris.framework.config import BY_SUMS, MethodConfig
from osiris.models.config import ARCHITECTURES, EncoderConfig, ProjectorConfig

Options = Mapping[str, Any]
INTERVALS: dict[str, Options] = {"cifar100": {"pocon_interval": 2000}, "tiny-imagenet": {"pocon_interval": 4000}}
RELEASED: Options = {"learning_rate": 0.015, "weight_decay": 1e-3}
"""The authors' two-process runs halve the gradient of f and g: lr 0.015 with weight decay 1e-3 is equivalent."""
GPU: Options = {"precision": "bf16", "compile": True}
"""By a count of operations, half an hour instead of three for split-cifar100-20 on an A100 (docs/performance.md). It
has not been measured on one."""
FAST: Options = {
    **{"family": "fast", "width": 64, "blocks": (1, 1), "projector_hidden": 512, "projector_output": 64},
    **{"epochs": 1, "batch_size": 64, "memory_size": 500, "threads": 1, "log_every": 10},
    **{"optimiser": "muon", "momentum": 0.6, "weight_decay": 0.01, "learning_rate": 0.04},
    **{"schedule": "cosine", "warmup_epochs": 0.1, "views": "gentle"},
}
"""The `fast` encoder on small views, one epoch per task, Muon with a learning rate that falls to zero within each task.
docs/log.md says how it was found."""
FAST_PUBLISHED: Options = {"bank_per_class": 100, "test_per_class": 50, "view_size": 24, "k": 20}
FAST_OWN: Options = {"epochs": 10, "warmup_epochs": 0.1 * 10, "k": 10}
FAST_DRAWN: Options = {
    **{"batch_size": 32, "memory_size": 200, "learning_rate": 0.1},
    **{"bank_per_class": 60, "test_per_class": 40, "k": 10},
}
"""For the drawings of tinyworld."""
LONG: Options = {"width": 128, "epochs": 6, "warmup_epochs": 0.1 * 6, "learning_rate": 0.03}
"""An encoder twice as wide, more epochs. A third stage makes it worse (docs/log.md)."""
SMOKE: Options = {
    **{"width": 8, "blocks": (1, 1, 1, 1), "stem_stride": 2, "projector_hidden": 32, "projector_output": 16},
    **{"epochs": 2, "batch_size": 32, "memory_size": 32, "threads": 1, "log_every": 1, "k": 2, "random_encoders": 1},
}

STREAM: Options = {"epochs": 1, "schedule": "constant", "warmup_epochs": 0.0}
"""Of a stream, whose length is not known before it ends."""
FAST_STREAM: Options = {"batch_size": 16, "usual_replay": 48, "memory_size": 200, "learning_rate": 0.05}
CLIMB: Options = {
    **{"width": 64, "blocks": (2, 2, 2, 2), "norm": "bn", "projector_hidden": 512, "projector_output": 2048},
    **{"stream": "tasks", "batch_size": 10, "passes": 3, "usual_replay": 128, "memory_size": 2500, "points": 20},
    **{"protocols": ("class-agnostic-probe", "class-agnostic"), "epochs": 1, "learning_rate": 0.1},
    **{"weight_decay": 1e-4, "tau": 0.5, "views": "gentle"},
}
"""The protocol of CLIMB and CLA (docs/streams.md says in what it differs)."""

PRESETS: dict[str, dict[str, Options]] = {
    "paper": {"all": {}, **INTERVALS},
    "paper-released": {"all": RELEASED, **INTERVALS},
    "gpu": {"all": GPU, **INTERVALS},
    "fast": {"all": FAST, "published": FAST_PUBLISHED, "own": FAST_OWN, "tinyworld": FAST_DRAWN},
    "fast-long": {
        "all": {**FAST, **LONG},
        "published": FAST_PUBLISHED,
        "own": {**FAST_OWN, "epochs": 20, "warmup_epochs": 0.1 * 20},
        "tinyworld": {**FAST_DRAWN, "learning_rate": LONG["learning_rate"]},
    },
    "smoke": {
        "all": SMOKE,
        "published": {"train_per_class": 12, "bank_per_class": 12, "test_per_class": 4},
        "own": {"batch_size": 8},
    },
    "climb": {"all": CLIMB},
}
"""Preset -> the options that it changes: for all images, for published or the user's own ones, and for a data set."""
MEANINGLESS = "the preset smoke is for tests: it learns for seconds, so its numbers mean nothing."


def preset_config(preset: str, benchmark: str) -> Config:
    """The config of a preset for a benchmark; an empty name means the user's own images, one episode at a time."""
    if preset not in PRESETS:
        raise unknown("preset", preset, PRESETS)
    name, changes = parse_name(benchmark) if benchmark else None, PRESETS[preset]
    kinds = ["all", "published", name.place] if name is not None and name.kind == "known" else ["all", "own"]
    options = {option: value for kind in kinds for option, value in changes.get(kind, {}).items()}
    return with_options(Config(), options | {"preset": preset, "benchmark": benchmark})


def own_data(benchmark: str) -> bool:
    """Whether the images are the user's own; presets then use all of them. An empty name means that they arrive one
    episode at a time. A benchmark that was made in Python has no place that its name leads to, and does not count."""
    try:
        return not benchmark or parse_name(benchmark).kind != "known"
    except UserError:
        return False


def choose_preset(device: str = "auto") -> tuple[str, str]:
    """The preset of a run that names none, and why."""
    from osiris.devices import choose_device  # imports torch

    kind = choose_device(device).type
    if kind == "cpu":
        return "fast", "there is no GPU"
    faster = " (--preset gpu, in bf16 and compiled, needs a sixth of the time: estimated, not measured yet)"
    return "paper", f"there is a GPU{faster if kind == 'cuda' else ''}"


FEWEST_SLOTS = 36
"""The smallest memory that a preset chooses: room for a batch of 32 images and up to three that join it at the end
of an epoch."""
FEWEST_STEPS = 100
MOST_EPOCHS = 50
"""`fast` and `fast-long` learn from a small episode for at least FEWEST_STEPS steps, or for MOST_EPOCHS epochs if that
is less."""
PRETRAINED_STEPS = 20
"""FEWEST_STEPS for a pretrained encoder: many steps on few images would destroy what it has learned before."""


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
        if config.pretrained:
            epochs = max(learning.epochs, round(PRETRAINED_STEPS * batch / images))
            learning = replace(learning, warmup_epochs=0.1 * epochs)
        else:
            epochs = max(learning.epochs, min(math.ceil(FEWEST_STEPS * batch / images), MOST_EPOCHS))
        learning = replace(learning, epochs=epochs)
    return replace(config, learning=learning)


def for_stream(config: Config, options: Options) -> Config:
    """A preset for a stream, if `options` or the benchmark ask for one."""
    name = config.data.benchmark
    film = bool(name) and not own_data(name) and parse_name(name).order.startswith("walk")
    if not film and config.data.stream is None and options.get("stream") is None:
        return config
    return with_options(config, {**STREAM, **(FAST_STREAM if config.preset.startswith("fast") else {})})


def describe(config: Config) -> str:
    """The options that were chosen for the user's own images, for a notice."""
    learning = config.learning
    return f": epochs {learning.epochs}, batch {learning.batch_size}, memory {learning.memory_size} images"


SLOWER = {"barlow", "vicreg", "byol", "simsiam", "mocov3", "swav"}
"""Objectives with BatchNorm in their heads: with Muon they learn at 0.3 of the rate of NT-Xent (docs/objectives.md)."""


def configure(
    benchmark: str | None = None,
    preset: str | None = None,
    encoder: str | None = None,
    options: Mapping[str, Any] | None = None,
    images: int | None = None,
    base: Config | None = None,
) -> Config:
    """The complete config of a run. The command line, the Python interface, the learner and grids all make it here;
    text becomes values by `config.typed` before.

    Args:
        benchmark: Its name; empty for a run that is given its episodes one at a time. Default: tinyworld.
        preset: Where the defaults come from. Default: `paper` on a GPU, `fast` on a CPU.
        encoder: A name, see `with_encoder`. Default: the preset's.
        options: Values of any options; method and seed are among them. The defaults of others depend on `objective`,
            `pretrained` and `init`.
        images: The number of images of the first episode, if they are the user's own and the benchmark's name does not
            lead to them.
        base: The settings of another run, instead of a preset. Nothing is sent to a dashboard because a file says so:
            `wandb` and `tensorboard` must be asked for again.
    """
    options = dict(options or {})
    if base is not None:
        base = with_options(base, {"tensorboard": False, "wandb": False})
        named = {"benchmark": benchmark, "preset": preset}
        options = {name: value for name, value in named.items() if value is not None} | options
        return with_options(base if encoder is None else with_encoder(base, encoder), options)
    benchmark = "tinyworld" if benchmark is None else benchmark
    name = preset or choose_preset(str(options.get("device", "auto")))[0]
    config = preset_config(name, "" if images is not None else benchmark)
    if encoder is not None or options.get("init") is not None:
        config = config if encoder is None else with_encoder(config, encoder)
        if options.get("pretrained", config.pretrained or options.get("init") is not None):
            size = with_options(config, {"image_size": options.get("image_size")}).data.image_size
            config = pretrained_defaults(suited(config), size)
        else:
            config = suited(config)
    place = benchmark.removeprefix("folder:")
    config = for_episodes(config, first_episode_size(Path(place)) if place and place != benchmark else images)
    config = for_stream(config, options)
    if config.learning.optimiser == "muon" and str(options.get("objective") or "").split("(")[0] in SLOWER:
        config = with_options(config, {"learning_rate": round(0.3 * config.learning.learning_rate, 6)})
    if not benchmark and config.pretrained and config.method == MethodConfig() and "method" not in options:
        options["method"] = "readout"
    config = with_options(config, {"benchmark": benchmark} | options)
    refuse_options_of_training(config, options)
    return config


def refuse_options_of_training(config: Config, given: Mapping[str, Any]) -> None:
    """Methods that learn by sums have no steps, no losses and no memory."""
    name = config.method.method
    training = {*vars(LearningConfig()), *vars(ProjectorConfig()), *vars(MethodConfig())} - {"method"}
    unused = [one for one, value in given.items() if one in training and value is not None]
    unused += ["readout"] * (name == "smt" and given.get("readout") is not None)
    if name in BY_SUMS and unused:
        raise UserError(
            f"--{unused[0].replace('_', '-')} changes nothing in {name!r}, which learns by sums in one pass. Leave it "
            "out, or name a method that trains the encoder, such as --method osiris-d."
        )


def with_encoder(config: Config, encoder: str) -> Config:
    """The config with another encoder: `resnet18`, `resnet34`, `hf:NAME`, `timm:NAME`, `own:NAME`. If it is the encoder
    that the config has already, nothing changes."""
    if encoder == config.encoder.encoder:
        return config
    if encoder in ARCHITECTURES:
        width, blocks = ARCHITECTURES[encoder]
        return replace(config, encoder=EncoderConfig(width=width, blocks=blocks))
    if not encoder.startswith(("hf:", "timm:", "own:")):
        known = ", ".join(ARCHITECTURES)
        raise UserError(
            f"unknown encoder {encoder!r}; use hf:NAME, timm:NAME, package.module:function, {known}, or a module in "
            "Python."
        )
    from osiris.models.external import is_pretrained  # imports torch

    return replace(config, encoder=EncoderConfig(encoder=encoder, pretrained=is_pretrained(encoder)))


def suited(config: Config) -> Config:
    """The defaults of a preset, changed to suit an encoder that the preset was not made for (docs/encoders.md).

    Views have the size of the images. Muon rescales filters, so it is replaced by AdamW.
    """
    changes: dict[str, Any] = {"view_size": None}
    if config.encoder.encoder is not None and config.learning.optimiser == "muon":
        changes |= {"optimiser": "adamw", "learning_rate": 1e-3, "weight_decay": 0.05}
    return with_options(config, changes)


def pretrained_defaults(config: Config, image_size: int | None) -> Config:
    """Defaults that do little harm to a pretrained encoder: a low learning rate, few steps, half of its layers and all
    statistics frozen, and a quarter of what an episode changes (`merge`). See docs/results/pretrained.md."""
    name = config.encoder.encoder
    changes: dict[str, Any] = {"optimiser": "adamw", "learning_rate": 1e-4, "weight_decay": 0.05, "schedule": "cosine"}
    changes |= {"freeze": 0.5, "statistics": "frozen", "merge": 0.25, "views": "paper", "projector_output": 128}
    changes |= {"pretrained": True, "random_encoders": 1}  # every seed starts from the same weights
    if config.preset.startswith("fast") and own_data(config.data.benchmark):
        changes["epochs"] = 3
    changes["warmup_epochs"] = 0.1 * changes.get("epochs", config.learning.epochs)
    if name is not None and name.startswith(("hf:", "timm:")):
        from osiris.models.pretrained import preprocessing  # imports torch

        changes["image_size"] = preprocessing(name).image_size
    elif image_size is not None and image_size >= 96:
        # As good as views of the whole size, at half the cost.
        changes["view_size"] = image_size * 2 // 3 // 32 * 32
    return with_options(config, changes)
