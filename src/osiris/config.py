"""The config of a run: everything that is needed to repeat it (no torch here: `osiris list` must be fast)."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_type_hints

from msgspec import Meta

from osiris.conversion import converted, options_of
from osiris.cores import core_count
from osiris.data.config import BenchmarkConfig
from osiris.errors import UserError, unknown
from osiris.evaluation.config import ProtocolConfig
from osiris.files import flat
from osiris.framework.config import MethodConfig
from osiris.models.config import EncoderConfig, ProjectorConfig

T = TypeVar("T")
MERGED_STATISTICS = (
    "--merge averages weights, and the statistics of BatchNorm do not fit averaged weights; use --statistics frozen or "
    "leave it out."
)


@dataclass(frozen=True)
class LearningConfig:
    """Optimisation: how long, how fast, with how much memory."""

    epochs: Annotated[int, Meta(ge=1, le=100_000)] = 200
    """Passes over each task."""
    batch_size: Annotated[int, Meta(ge=4, le=1_000_000)] = 256
    """|X|, over all processes."""
    passes: Annotated[int, Meta(ge=1, le=10_000)] = 1
    """Steps in a row on each batch, each with views and a Y of its own; the memory is offered the batch once."""
    memory_size: Annotated[int, Meta(ge=4, le=100_000_000)] = 500
    """Images in the memory M."""
    optimiser: Literal["sgd", "lars", "adamw", "muon"] = "sgd"
    """The paper uses SGD; `muon` learns most in few steps."""
    learning_rate: Annotated[float, Meta(ge=1e-12, le=1e3)] = 0.03
    """Learning rate; constant in the paper."""
    momentum: Annotated[float, Meta(ge=0, le=0.9999)] = 0.9
    """Momentum of SGD, LARS and Muon."""
    weight_decay: Annotated[float, Meta(ge=0, le=1e3)] = 5e-4
    """Weight decay of tensors with more than one dimension; others have none."""
    schedule: Literal["constant", "cosine"] = "constant"
    """`cosine` falls to zero within each task."""
    warmup_epochs: Annotated[float, Meta(ge=0, le=100_000)] = 0.0
    """Linear warm-up at the start of each task."""
    tau: Annotated[float, Meta(ge=1e-4, le=1e3)] = 0.1
    """Temperature of all contrastive losses."""
    views: str = "paper"
    """The augmentations: `paper`; `gentle`: larger crops without blur and solarisation (for simple drawings);
    `module:name`."""
    view_size: Annotated[int, Meta(ge=8, le=100_000)] | None = None
    """Side of the views in pixels; None means that of the images. Smaller views train faster."""
    freeze: Annotated[float, Meta(ge=0, le=1)] | None = None
    """The part of the encoder's layers that is not trained, from the first on (0: train all; 1: only what follows the
    layers). Pretrained encoders: 0.5."""
    statistics: Literal["frozen", "batch"] = "batch"
    """Statistics that BatchNorm in the encoder uses: those of each batch, or those that the encoder came with
    (`frozen`). Pretrained encoders: frozen."""
    dropout: bool = False
    """Leave dropout and stochastic depth of the encoder active."""
    merge: Annotated[float, Meta(gt=0, le=1)] = 1.0
    """At the end of an episode the encoder becomes this share of what was learned, plus the rest of what it was before
    (1: only what was learned). This begins with the second episode, or with the first one if the encoder is
    pretrained. Pretrained encoders: 0.25."""


@dataclass(frozen=True)
class EngineConfig:
    """Speed and safety. These options do not change results, except for the last bits (threads, precision, compile)."""

    device: str = "auto"
    """auto, cpu, cuda, cuda:1, mps."""
    threads: Annotated[int, Meta(ge=1, le=4096)] | None = None
    """CPU threads of a process; their number changes the last bits of results. None means all cores that it may use."""
    precision: Literal["32", "bf16", "16"] = "32"
    """Autocast of the networks; losses are computed in float32."""
    tf32: bool = False
    """Allow TF32 matrix products on CUDA."""
    compile: bool = False
    """torch.compile the encoder."""
    micro_batch: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    """Encode this many images at a time with cached gradients: the same gradients in less memory (GroupNorm only)."""
    images_on_device: bool | None = None
    """Keep all training images on the GPU; None means if they take a tenth of its memory or less."""
    save_every: Annotated[float, Meta(ge=0, le=1e6)] = 10.0
    """Minutes between checkpoints."""
    log_every: Annotated[int, Meta(ge=1, le=10**9)] = 20
    """Steps between logged lines."""
    skip_bad_steps: Annotated[int, Meta(ge=0, le=10**9)] = 0
    """Skip up to this many steps with a non-finite loss before the run stops."""
    init: Path | None = None
    """Start the encoder from these weights (safetensors)."""
    track_overfitting: Annotated[int, Meta(ge=1, le=10**9)] | None = None
    """Steps between comparisons of the loss on past tasks with the loss on the memory; None means never."""
    tensorboard: bool = False
    """Also log to TensorBoard (needs the extra `tensorboard`)."""
    wandb: bool = False
    """Also log to Weights & Biases (needs the extra `wandb`; WANDB_MODE=offline works)."""


@dataclass(frozen=True)
class Config:
    """One run."""

    seed: Annotated[int, Meta(ge=0, le=2**53)] = 0
    """Changes initialisation, augmentation and memory; the class order stays fixed."""
    preset: str = "paper"
    """The preset that the defaults come from."""
    method: MethodConfig = field(default_factory=MethodConfig)
    data: BenchmarkConfig = field(default_factory=BenchmarkConfig)
    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    projector: ProjectorConfig = field(default_factory=ProjectorConfig)
    learning: LearningConfig = field(default_factory=LearningConfig)
    evaluation: ProtocolConfig = field(default_factory=ProtocolConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)

    def complete(self) -> Config:
        """The config with those options filled in that depend on this machine, so that they are recorded."""
        threads = self.engine.threads or max(1, core_count() // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
        return dataclasses.replace(self, engine=dataclasses.replace(self.engine, threads=threads))

    def check(self) -> None:
        """Refuse wrong types, unknown choices and numbers out of range, wherever the config comes from, and what does
        not fit together."""
        from_dict(to_dict(self))
        if self.learning.warmup_epochs > self.learning.epochs:
            raise UserError(f"--warmup-epochs {self.learning.warmup_epochs} is more than --epochs; use fewer.")
        self.encoder.check()
        self.check_names()
        batch_statistics = self.encoder.batch_norm and self.learning.statistics == "batch"
        if self.engine.micro_batch is not None and batch_statistics:
            raise UserError("--micro-batch would change the statistics of BatchNorm; use --norm gn or leave it out.")
        if self.learning.merge < 1 and batch_statistics:
            raise UserError(MERGED_STATISTICS)

    def check_names(self) -> None:
        """Refuse unknown augmentations, metrics and readouts; those of the user's own must have been imported."""
        if (self.learning.views, self.encoder.readout, self.evaluation.metrics) != (
            LearningConfig.views,
            EncoderConfig.readout,
            ProtocolConfig.metrics,
        ):
            from osiris.own import build_parts  # imports torch

            build_parts(self)

    @property
    def pretrained(self) -> bool:
        """Whether the run starts from an encoder that has learned before."""
        return self.encoder.pretrained or self.engine.init is not None


OPTIONS = options_of(Config)
"""Every option of a run, and its type."""
SECTION_OF = {
    option: name
    for name, part in get_type_hints(Config).items()
    if dataclasses.is_dataclass(part) and isinstance(part, type)
    for option in options_of(part)
}


def with_options(config: Config, options: Mapping[str, Any]) -> Config:
    """The config with other values for some options, which may belong to any section of it."""
    return _with_options(config, options, strict=True)


def typed(options: Mapping[str, Any]) -> dict[str, Any]:
    """The values of options that were given as text."""
    config = _with_options(Config(), {name: _none(name, value) for name, value in options.items()}, strict=False)
    sections = {name: getattr(config, SECTION_OF[name]) if name in SECTION_OF else config for name in options}
    return {name: getattr(section, name) for name, section in sections.items()}


def _none(option: str, text: Any) -> Any:
    """`None` means no value, for options that may have none."""
    return None if text == "None" and type(None) in get_args(OPTIONS.get(option)) else text


def _with_options(config: Config, options: Mapping[str, Any], strict: bool) -> Config:
    record = to_dict(config)
    for option, value in options.items():
        if option not in SECTION_OF and option not in ("seed", "preset"):
            raise unknown("option", option, sorted(SECTION_OF))
        (record[SECTION_OF[option]] if option in SECTION_OF else record)[option] = value
    return from_dict(record, strict=strict)


def to_dict(config: Any) -> dict[str, Any]:
    """JSON-ready: paths as text, tuples as lists."""
    return json.loads(json.dumps(dataclasses.asdict(config), default=str))


def from_dict(record: Any, kind: type[T] = Config, strict: bool = True) -> T:
    """The inverse of `to_dict`. Unknown fields, wrong types and unknown choices are errors; `strict=False` converts
    text to the type of its field."""
    config = converted(record, kind, strict)
    unknown_fields = sorted(flat(record).keys() - flat(to_dict(config)).keys())
    if unknown_fields:
        raise UserError(
            f"this version of osiris does not know the field {unknown_fields[0]}. Remove it, or use the version of "
            "osiris that wrote the file."
        )
    return config
