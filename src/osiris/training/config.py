"""Everything needed to run a run again, in one frozen value (no torch here: `--help` must be fast)."""

from __future__ import annotations

import dataclasses
import os
import types
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from osiris.data.config import BenchmarkConfig
from osiris.errors import UserError
from osiris.evaluation.config import ProtocolConfig
from osiris.framework.config import MethodConfig
from osiris.models.config import EncoderConfig, ProjectorConfig


@dataclass(frozen=True)
class LearningConfig:
    """How long, how fast, on how much."""

    epochs: int = 200
    """Passes over each task."""
    batch_size: int = 256
    """|X|, over all processes."""
    memory_size: int = 500
    """Images in the memory M."""
    optimiser: Literal["sgd", "lars", "adamw", "muon"] = "sgd"
    """The paper uses SGD; `muon` learns most in few steps."""
    learning_rate: float = 0.03
    """Constant in the paper."""
    momentum: float = 0.9
    """Of SGD and LARS."""
    weight_decay: float = 5e-4
    """On tensors with more than one dimension only."""
    schedule: Literal["constant", "cosine"] = "constant"
    """`cosine` falls to zero within each task."""
    warmup_epochs: float = 0.0
    """Linear warm-up at the start of each task."""
    tau: float = 0.1
    """Temperature of all contrastive losses."""
    views: Literal["paper", "gentle"] = "paper"
    """How two views are made: as in the paper, or larger crops without blur and solarisation (32-pixel drawings)."""
    view_size: int | None = None
    """Side of the views in pixels (default: that of the images). Smaller views cost less; evaluation is the same."""


@dataclass(frozen=True)
class EngineConfig:
    """The machine: speed and safety, not what is learned (threads, precision and compile change the last bits)."""

    device: str = "auto"
    """auto, cpu, cuda, cuda:1, mps."""
    threads: int | None = None
    """CPU threads of a process; part of the config because it changes the last bits (default: all cores, recorded)."""
    precision: Literal["32", "bf16", "16"] = "32"
    """Autocast of the networks; losses are computed in float32."""
    tf32: bool = False
    """Allow TF32 matrix products on CUDA."""
    compile: bool = False
    """torch.compile the encoder."""
    micro_batch: int | None = None
    """Encode so many images at a time with cached gradients: the same gradients in less memory (GroupNorm only)."""
    save_every: float = 10.0
    """Minutes between checkpoints."""
    log_every: int = 20
    """Steps between logged lines."""
    skip_bad_steps: int = 0
    """How many steps with a non-finite loss may be left out before the run stops."""
    init: Path | None = None
    """Start the encoder from these weights (safetensors)."""
    track_overfitting: int | None = None
    """Every so many steps, compare the loss on past tasks with the loss on the memory."""
    tensorboard: bool = False
    """Also log to TensorBoard (needs the extra `tensorboard`)."""
    wandb: bool = False
    """Also log to Weights & Biases (needs the extra `wandb`; WANDB_MODE=offline works)."""


@dataclass(frozen=True)
class Config:
    """One run."""

    seed: int = 0
    """Changes initialisation, augmentation and memory; the class order stays fixed."""
    preset: str = "paper"
    """Where the defaults came from."""
    method: MethodConfig = field(default_factory=MethodConfig)
    data: BenchmarkConfig = field(default_factory=BenchmarkConfig)
    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    projector: ProjectorConfig = field(default_factory=ProjectorConfig)
    learning: LearningConfig = field(default_factory=LearningConfig)
    evaluation: ProtocolConfig = field(default_factory=ProtocolConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)

    def complete(self) -> Config:
        """With what depends on this machine filled in, so that it is recorded."""
        threads = self.engine.threads or max(1, (os.cpu_count() or 1) // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
        return dataclasses.replace(self, engine=dataclasses.replace(self.engine, threads=threads))

    def check(self) -> None:
        """Refuse numbers that cannot be meant."""
        learning = self.learning
        for name, value, low, high in (
            ("seed", self.seed, 0, 2**53),
            ("epochs", learning.epochs, 1, 100_000),
            ("batch-size", learning.batch_size, 4, 1_000_000),
            ("memory-size", learning.memory_size, 4, 100_000_000),
            ("learning-rate", learning.learning_rate, 1e-12, 1e3),
            ("momentum", learning.momentum, 0, 0.9999),
            ("weight-decay", learning.weight_decay, 0, 1e3),
            ("warmup-epochs", learning.warmup_epochs, 0, learning.epochs),
            ("tau", learning.tau, 1e-4, 1e3),
            ("view-size", learning.view_size, 8, 100_000),
            ("projector-hidden", self.projector.projector_hidden, 1, 1_000_000),
            ("projector-output", self.projector.projector_output, 2, 1_000_000),
            ("threads", self.engine.threads, 1, 4096),
            ("micro-batch", self.engine.micro_batch, 1, 1_000_000),
            ("log-every", self.engine.log_every, 1, 10**9),
            ("save-every", self.engine.save_every, 0, 1e6),
            ("skip-bad-steps", self.engine.skip_bad_steps, 0, 10**9),
            ("track-overfitting", self.engine.track_overfitting, 1, 10**9),
        ):
            if value is not None and not low <= value <= high:
                raise UserError(f"--{name} {value} is out of range; it goes from {low} to {high:g}.")
        if self.engine.micro_batch is not None and self.encoder.batch_norm:
            raise UserError("--micro-batch would change the statistics of BatchNorm; use --norm gn or leave it out.")


def to_dict(config: Any) -> dict[str, Any]:
    """JSON-ready: paths as text, tuples as lists."""

    def plain(value: Any) -> Any:
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
        if isinstance(value, (tuple, list)):
            return [plain(item) for item in value]
        return str(value) if isinstance(value, Path) else value

    return plain(config)


def from_dict(record: dict[str, Any], kind: type = Config) -> Any:
    """The inverse of `to_dict`; an unknown field means that the file is not ours, or from another version."""
    hints = get_type_hints(kind)
    unknown_fields = sorted(set(record) - set(hints))
    if unknown_fields:
        raise UserError(f"the config has fields that this version does not know: {', '.join(unknown_fields)}.")
    return kind(**{name: _restore(value, hints[name]) for name, value in record.items()})


def _restore(value: Any, hint: Any) -> Any:
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return from_dict(value, hint)
    options = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    if value is not None and Path in options:
        return Path(value)
    return tuple(value) if isinstance(value, list) else value
