"""How much memory a run will need, before it starts: one step at its real size on the meta device, which computes
shapes and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from osiris import processes
from osiris.data.benchmark import Benchmark
from osiris.errors import UserError
from osiris.framework.methods import Method
from osiris.framework.representations import Representations
from osiris.framework.terms import StepContext, X, Y
from osiris.framework.trainable import TrainableMethod
from osiris.models import EncoderConfig, build_encoder
from osiris.training.config import Config
from osiris.training.engine import build_model
from osiris.training.plan import SMALLEST, phases

EVALUATION_BATCH = 512
GIGABYTE = 2**30


@dataclass(frozen=True)
class Estimate:
    """Bytes of one process on the training device."""

    networks: int
    """Parameters with their gradients and optimiser state, frozen copies, what terms remember."""
    memory: int
    """The memory M."""
    activations: int
    """What one step keeps for its backward pass, its views and its largest intermediate results."""
    evaluation: int
    """One batch of evaluation and the features of bank and test: instead of the activations, not besides them."""

    @property
    def total(self) -> int:
        return self.networks + self.memory + max(self.activations, self.evaluation)

    def __str__(self) -> str:
        parts = {"activations": self.activations, "networks": self.networks, "memory": self.memory}
        parts["evaluation"] = self.evaluation
        return ", ".join(f"{name} {value / GIGABYTE:.2f} GB" for name, value in parts.items())


def estimate_memory(config: Config, method: Method, benchmark: Benchmark) -> Estimate:
    """Of a step in a later task (the first needs less), in one process of as many as there are."""
    world = processes.world_size()
    with torch.device("meta"), processes.alone():
        model = build_model(config, method, benchmark)
        state = _state_bytes(model, config.learning.optimiser)
        activations = _step_bytes(config, benchmark, model, world)
        shape = benchmark.bank.images.shape
        largest = _largest_activation(model.networks.encoder, EVALUATION_BATCH, shape)
    images = len(benchmark.bank) + (0 if benchmark.test is None else len(benchmark.test))
    evaluation = 3 * largest + images * config.encoder.features * 4
    return Estimate(state, _bytes(model.memory.buffers()), activations, evaluation)


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _state_bytes(model: TrainableMethod, optimiser: str) -> int:
    """Gradient and momentum beside each trained parameter (AdamW: two moments); the rest once."""
    trained = _bytes(parameter for parameter in model.parameters() if parameter.requires_grad)
    frozen = _bytes(parameter for parameter in model.parameters() if not parameter.requires_grad)
    buffers = _bytes(model.buffers()) - _bytes(model.memory.buffers())
    return trained * (4 if optimiser == "adamw" else 3) + frozen + buffers


class _Saved:
    """Counts what autograd keeps for the backward pass: every storage once, parameters not at all."""

    def __init__(self, known: list[Tensor]) -> None:
        self.storages = {tensor.untyped_storage()._cdata: 0 for tensor in known}
        self.kept: list[Tensor] = []

    def pack(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in self.storages:
            self.storages[storage._cdata] = storage.nbytes()
            self.kept.append(tensor)  # while it lives nobody else gets its address
        return tensor

    @property
    def total(self) -> int:
        return sum(self.storages.values())


def _saved_bytes(run: Callable[[], object], known: list[Tensor]) -> int:
    saved = _Saved(known)
    with torch.autograd.graph.saved_tensors_hooks(saved.pack, lambda tensor: tensor):
        result = run()
    del result
    return saved.total


def _step_bytes(config: Config, benchmark: Benchmark, model: TrainableMethod, world: int) -> int:
    networks = model.networks
    stream = phases(benchmark, model.method, config.learning.epochs, config.learning.batch_size)
    task, count = len(stream) - 1, max(phase.batch_sizes[1] for phase in stream)
    shape, micro = benchmark.train.images.shape, config.engine.micro_batch
    rows = {X: -(-count // world)}
    if replayed := model.replayed(task, count):
        rows[Y] = -(-replayed // world)
    context = StepContext(model.memory, torch.zeros(rows.get(Y, 0), dtype=torch.int64), config.seed, task, 0)
    made = model.make({name: torch.zeros(2, number, *shape) for name, number in rows.items()}, context)
    known = [*model.parameters(), *model.buffers()]

    def step() -> tuple[Tensor, dict[str, Tensor]]:
        as_is = lambda: torch.autocast("cpu", enabled=False)  # noqa: E731
        rep = Representations(networks, made, encode=model.inputs(task), micro_batch=micro, autocast=as_is)
        return model(rep, context)

    kept = _saved_bytes(step, known)
    piece = sum(2 * made[name].shape[1] for name in model.inputs(task))
    if micro is not None and micro < piece:
        # Only inputs are kept; the backward pass computes one piece after the other again.
        images = torch.zeros(micro, *shape)
        kept += _saved_bytes(lambda: networks.encoder(images), known) + _bytes(made.values())
        piece = micro
    if config.engine.precision != "32":
        kept = kept * 3 // 4  # convolutions keep half as much, normalisation stays in float32
    inputs = 2 * _bytes(made.values())  # the views, and both views in one batch
    return kept + inputs + 2 * _largest_activation(networks.encoder, piece, shape)


@torch.no_grad()
def _largest_activation(encoder: nn.Module, images: int, shape: tuple[int, int, int]) -> int:
    """Bytes of the largest output of any layer for so many images."""
    largest = [0]

    def look(module: nn.Module, inputs: object, output: Tensor) -> None:
        largest[0] = max(largest[0], output.numel() * output.element_size())

    hooks = [module.register_forward_hook(look) for module in encoder.modules()]
    training = encoder.training
    encoder.eval()(torch.zeros(images, *shape))
    encoder.train(training)
    for hook in hooks:
        hook.remove()
    return largest[0]


def available_memory(device: torch.device) -> int | None:
    """Free bytes on the device, or None where nobody can tell."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    if device.type != "cpu":
        return None
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return None
    limits = [free]
    for limit, used in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        try:
            limits.append(int(Path(limit).read_text()) - int(Path(used).read_text()))
        except (OSError, ValueError):
            continue  # no such version of control groups, or no limit
    return max(0, min(limits))


def bound_memory(config: Config, method: Method, benchmark: Benchmark) -> int:
    """Bytes that a run certainly does not reach, by counting on the fingers. The meta device costs seconds of imports,
    which a small run need not spend."""
    encoder, (_, height, width) = config.encoder, benchmark.train.images.shape
    pixels = height * width / (16 if encoder.stem == "large" else encoder.stem_stride**2)
    # A block has two convolutions and perhaps a third, each followed by a norm and an activation that keep as much.
    values = sum(
        (9 * blocks + 3) * encoder.width * 2**stage * max(1, pixels / 4**stage)
        for stage, blocks in enumerate(encoder.blocks)
    )
    parameters = sum(
        (18 * blocks + 1) * (encoder.width * 2**stage) ** 2 for stage, blocks in enumerate(encoder.blocks)
    ) + 2 * encoder.features * (config.projector.projector_hidden + 4 * encoder.features)
    images = max(EVALUATION_BATCH, 4 * (config.learning.batch_size + SMALLEST))
    networks = 1 + len(method.terms)
    held = 8 * config.learning.memory_size * height * width
    features = encoder.features * (len(benchmark.bank) + len(benchmark.test or ()))
    return int(4 * (networks * (images * values + 8 * parameters) + features) + held)


def check_memory(config: Config, method: Method, benchmark: Benchmark, device: torch.device) -> None:
    """Refuse what cannot fit, with what would."""
    available = available_memory(device)
    if available is None or bound_memory(config, method, benchmark) * processes.local_world_size() < available:
        return
    sharing = processes.local_world_size() if device.type == "cpu" else 1
    estimate = estimate_memory(config, method, benchmark)
    if estimate.total * sharing <= available:
        return
    hint = "a smaller --batch-size or a smaller encoder (--width)"
    if not config.encoder.batch_norm:
        for micro in (256, 128, 64, 32, 16):
            smaller = replace(config, engine=replace(config.engine, micro_batch=micro))
            if estimate_memory(smaller, method, benchmark).total * sharing <= available:
                hint = f"--micro-batch {micro} (the same gradients, encoded in pieces), or {hint}"
                break
    raise UserError(
        f"this run needs about {estimate.total * sharing / GIGABYTE:.1f} GB of memory on {device} ({estimate}), and "
        f"{available / GIGABYTE:.1f} GB are free. Use {hint}."
    )


@torch.no_grad()
def encoder_flops(config: EncoderConfig, image_size: int) -> int:
    """Floating-point operations of one image's forward pass (a multiplication and an addition count as two).

    Those of the convolutions, which are all but a few; torch's own counter agrees and takes seconds to import.
    """
    counted = [0]

    def count(module: nn.Module, inputs: object, output: Tensor) -> None:
        assert isinstance(module, nn.Conv2d)
        counted[0] += 2 * output.numel() * module.weight[0].numel()

    encoder = build_encoder(config).eval()
    for module in encoder.modules():
        if isinstance(module, nn.Conv2d):
            module.register_forward_hook(count)
    encoder(torch.zeros(1, 3, image_size, image_size))
    return counted[0]
