"""The networks of a run before it has learned: its own, and untrained ones to compare with."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor, nn

from osiris.augment.views import normalise
from osiris.config import MERGED_STATISTICS, Config
from osiris.data.benchmark import Benchmark
from osiris.data.catalogue import IMAGENET_MEAN, IMAGENET_STD
from osiris.errors import UserError
from osiris.evaluation.baselines import Baseline, untrained_baseline
from osiris.evaluation.fingerprint import json_digest, protocol_fingerprint
from osiris.exact.manifold import ManifoldConfig, layers
from osiris.files import cache_directory, load_tensors
from osiris.framework.methods import Method
from osiris.framework.summed import Summed, SummedManifold, SummedReadout
from osiris.framework.trainable import TrainableMethod
from osiris.models.config import EncoderConfig
from osiris.models.encoder import build_encoder, feature_count
from osiris.models.external import Architecture, Channels, freeze_layers, normalisation, statistics
from osiris.models.joined import LAYERS, join, joined
from osiris.models.manifold import MANIFOLD, manifold
from osiris.models.normalisation import set_mode

FIT_IMAGES = 500
"""Images of the first task that a `fast` encoder is fitted to."""

MOST_DIMENSIONS = 128
"""Per place, of the method `smt`: with 2,048 codes more of them are not better (docs/log.md), and features are wide."""


def build_model(
    config: Config, method: Method, benchmark: Benchmark, architecture: Architecture | None, planned: int
) -> TrainableMethod:
    """Networks, terms and memory of a run, on the default device. `architecture`: see `build_encoder`."""
    images, seed, learning = first_task_images(benchmark, config.encoder), config.seed, config.learning
    encoder = build_encoder(config.encoder, seed, images=images, architecture=architecture)
    if config.engine.init is not None and architecture is None:
        initialise(encoder, config.engine.init)
    if learning.freeze:
        freeze_layers(encoder, learning.freeze)
    set_mode(encoder, learning.statistics == "batch", learning.dropout)
    if config.learning.view_size is not None:
        feature_count(encoder, (3, config.learning.view_size, config.learning.view_size))
    sizes = config.learning.memory_size, benchmark.train.images.shape
    model = TrainableMethod(method, encoder, config.projector, *sizes, planned, seed)
    if config.engine.micro_batch is not None and model.networks.batch_norm:
        raise UserError("--micro-batch would change the statistics of the encoder's BatchNorm; leave it out.")
    if learning.merge < 1 and model.networks.batch_norm:
        raise UserError(MERGED_STATISTICS)
    return model


def build_summed(
    config: Config, method: Method, benchmark: Benchmark, device: torch.device, architecture: Architecture | None
) -> Summed:
    """What a method learns by sums, on the device. `architecture`: see `build_encoder`."""
    if method.sums == "manifold":
        codes = config.encoder.codes
        one = ManifoldConfig(codes=codes, dimensions=min(MOST_DIMENSIONS, codes // 8), seed=config.seed)
        record = [asdict(layer) for layer in layers(one)]
        encoder = manifold(record if architecture is None else architecture[MANIFOLD])
        return SummedManifold(encoder.to(device).eval(), benchmark.std)
    images, shape = first_task_images(benchmark, config.encoder), benchmark.train.images.shape
    known = architecture and {name: value for name, value in architecture.items() if name != LAYERS}
    network = build_encoder(config.encoder, config.seed, images=images, architecture=known)
    if config.engine.init is not None and architecture is None:
        initialise(network, config.engine.init)
    feature_count(network, shape)
    network.requires_grad_(False)
    if architecture is None:
        encoder = join(network, config.encoder.readout_size, shape)
    else:
        encoder = joined(network, architecture[LAYERS])
    settings = config.encoder
    return SummedReadout(
        encoder.to(device).eval(),
        settings.encoder,
        settings.readout or "joined",
        benchmark.mean,
        benchmark.std,
        shape[-1],
    )


def first_task_images(benchmark: Benchmark, encoder: EncoderConfig) -> Tensor | None:
    """Normalised images that a `fast` encoder is fitted to: some of the first task alone (of a stream: the first ones),
    the same for every method."""
    if encoder.encoder is not None or encoder.family != "fast":
        return None
    indices = benchmark.training_indices(benchmark.learned)  # if that is not 0, the fitted weights come from a state
    if benchmark.order is not None:
        indices = benchmark.order.rows[:FIT_IMAGES]
    indices = indices[torch.linspace(0, len(indices) - 1, min(FIT_IMAGES, len(indices))).long()]
    return normalise(benchmark.train.images.take(indices), benchmark.mean, benchmark.std)


def initialise(encoder: nn.Module, path: Path) -> None:
    """--init: start the encoder from given weights."""
    wanted = encoder.state_dict()
    network = "layers.network."  # of a file with a readout, which is left out
    given = {name.removeprefix(network): value for name, value in encoder_weights(path).items()}
    missing = [name for name in wanted if name not in given]
    shapes = [name for name in wanted if name in given and wanted[name].shape != given[name].shape]
    if missing or shapes:
        problem = f"{missing[0]} is missing" if missing else f"{shapes[0]} has another shape"
        raise UserError(
            f"--init {path} does not fit the encoder: {problem}. Check --encoder, or --width, --blocks, --stem and "
            "--norm."
        )
    encoder.load_state_dict({name: given[name] for name in wanted})


def encoder_weights(path: Path) -> dict[str, Tensor]:
    """The encoder's state from a task checkpoint, whose metadata says so, or from a file that holds nothing else."""
    tensors, metadata = load_tensors(path)
    prefix = "encoder." if "encoder" in metadata else ""
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def expected_normalisation(config: Config) -> tuple[Channels, Channels] | None:
    """(mean, std) as --normalise says, else as the encoder or the file of --init says; None if none of them does."""
    text, encoder, init = config.encoder.normalise, config.encoder.encoder, config.engine.init
    if text is not None:
        known = {"imagenet": (IMAGENET_MEAN, IMAGENET_STD), "half": ((0.5,) * 3, (0.5,) * 3)}
        try:
            mean, std = known[text] if text in known else (map(float, part.split(",")) for part in text.split("/"))
            return statistics(list(mean), list(std))
        except ValueError:
            raise UserError(
                f"--normalise {text}: use imagenet, half, or R,G,B/R,G,B (mean and deviation, which is positive)."
            ) from None
    if init is not None:
        metadata = load_tensors(init)[1]
        if metadata.get("mean") and metadata.get("std"):
            return statistics(metadata["mean"], metadata["std"])
    return None if encoder is None else normalisation(encoder)


def baseline_of(config: Config, benchmark: Benchmark, device: torch.device) -> Baseline | None:
    """R_i of untrained encoders, without zero-initialised last norms, which would make every block the identity. Those
    of the user's own are not cached: a name does not tell whether the code has changed."""
    identity = protocol_fingerprint(benchmark, config.evaluation, config.encoder.description).hash
    key = json_digest([identity, benchmark.mean, benchmark.std])
    images = first_task_images(benchmark, config.encoder)
    return untrained_baseline(
        lambda seed: build_encoder(config.encoder, seed, zero_init_last=False, images=images),
        benchmark,
        config.evaluation,
        cache_directory() / "baselines" if config.encoder.encoder is None else None,
        f"{key}-threads{torch.get_num_threads()}",
        device,
    )
