"""How much memory a run will need, before it starts: steps with a few images, extrapolated to the real batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from osiris import processes
from osiris.errors import UserError
from osiris.framework.representations import Representations
from osiris.framework.terms import StepContext, X, Y
from osiris.models import EncoderConfig, build_encoder
from osiris.models.normalisation import frozen_statistics
from osiris.training.devices import available_memory
from osiris.training.engine import Engine
from osiris.training.schedule import Phase

EVALUATION_BATCH = 512
GIGABYTE = 2**30


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes of one process on the training device."""

    networks: int
    """Parameters with their gradients and optimiser state, frozen copies, and what terms remember."""
    memory: int
    """The memory M."""
    activations: int
    """What one step keeps for its backward pass, its views and its largest intermediate results."""
    evaluation: int
    """One batch of evaluation and the features of bank and test images. Not needed at the same time as activations."""

    @property
    def total(self) -> int:
        return self.networks + self.memory + max(self.activations, self.evaluation)

    def __str__(self) -> str:
        return ", ".join(f"{name} {value / GIGABYTE:.2f} GB" for name, value in vars(self).items())


def estimate_memory(engine: Engine, plan: list[Phase], micro_batch: int | None = None) -> MemoryEstimate:
    """For a step of a later task, which needs the most, in this process."""
    learning, benchmark, encoder = engine.config.learning, engine.benchmark, engine.networks.encoder
    trained = _bytes(p for p in engine.model.parameters() if p.requires_grad)
    frozen = _bytes(p for p in engine.model.parameters() if not p.requires_grad)
    memory = _bytes(engine.memory.buffers())
    buffers = _bytes(engine.model.buffers()) - memory
    copies = 4 if learning.optimiser == "adamw" else 3  # with the gradient, and one moment or two
    images = len(benchmark.bank) + len(benchmark.test or ())
    world = processes.world_size()
    with processes.alone(), frozen_statistics(engine.model):
        largest, features = _largest_output(encoder, engine)
        activations = _step_bytes(engine, plan, micro_batch, largest, world)
    evaluation = 3 * largest * EVALUATION_BATCH + images * features * 4
    return MemoryEstimate(trained * copies + frozen + buffers, memory, activations, evaluation)


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _step_bytes(engine: Engine, plan: list[Phase], micro_batch: int | None, largest: int, world: int) -> int:
    """What autograd keeps is a polynomial of the batch size: parameters once, activations with each image,
    similarities with each pair. Three small steps determine it."""
    count = -(-max(phase.batch_sizes[1] for phase in plan) // world)
    task = plan[-1].task
    replayed = engine.model.replayed(task, count)
    rows = (count + replayed) / 2 if replayed else count
    two, three, four = (_kept_by_a_step(engine, number, task) for number in (2, 3, 4))
    slope, curvature = three - two, four - 2 * three + two
    kept = two + slope * (rows - 2) + curvature * (rows - 2) * (rows - 3) / 2
    inputs = engine.model.inputs(task)
    images = 2 * rows * len(inputs)
    views = images * 4 * math.prod(_view_shape(engine))
    if micro_batch is not None and micro_batch < images:
        # Only the inputs are kept; the backward pass computes one piece after the other again.
        kept += (micro_batch - images) * _kept_by_the_encoder(engine) + views
        images = micro_batch
    return int(kept + 2 * views + 2 * largest * images)


def _view_shape(engine: Engine) -> tuple[int, int, int]:
    size = engine.config.learning.view_size
    return engine.benchmark.train.images.shape if size is None else (3, size, size)


def _kept_by_a_step(engine: Engine, rows: int, task: int) -> int:
    model, shape, learning = engine.model, _view_shape(engine), engine.config.learning
    names = (X, Y) if model.replayed(task, learning.batch_size) else (X,)
    slots = torch.arange(rows, device=engine.device)
    context = StepContext(engine.memory, slots, engine.config.seed, task, 0, learning.tau)
    views = {name: torch.zeros(2, rows, *shape, device=engine.device) for name in names}
    made = model.make(views, context)

    def step() -> tuple[Tensor, dict[str, Tensor]]:
        rep = Representations(engine.networks, made, encode=model.inputs(task), autocast=engine.autocast)
        return model(rep, context)

    return _saved_bytes(engine, step)


def _kept_by_the_encoder(engine: Engine) -> int:
    """For each image."""

    def forward(images: int) -> Tensor:
        with engine.autocast():
            return engine.networks.encoder(torch.zeros(images, *_view_shape(engine), device=engine.device))

    return _saved_bytes(engine, lambda: forward(3)) - _saved_bytes(engine, lambda: forward(2))


def _saved_bytes(engine: Engine, run: Callable[[], object]) -> int:
    """What autograd keeps for the backward pass of `run`: every storage once, parameters and buffers not at all."""
    sizes = {tensor.untyped_storage().data_ptr(): 0 for tensor in engine.model.state_dict().values()}
    alive: list[Tensor] = []  # while a tensor lives, no other one gets its address

    def pack(tensor: Tensor) -> Tensor:
        sizes.setdefault(tensor.untyped_storage().data_ptr(), tensor.untyped_storage().nbytes())
        alive.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = run()
    del result
    return sum(sizes.values())


@torch.no_grad()
def _largest_output(encoder: nn.Module, engine: Engine) -> tuple[int, int]:
    """(bytes of the largest output of any layer for one image, number of features)"""
    sizes: list[int] = []

    def look(module: nn.Module, inputs: object, output: object) -> None:
        if isinstance(output, Tensor):
            sizes.append(output.numel() * output.element_size() // 2)

    hooks = [module.register_forward_hook(look) for module in encoder.modules()]
    features = encoder(torch.zeros(2, *engine.benchmark.bank.images.shape, device=engine.device))
    for hook in hooks:
        hook.remove()
    return max(sizes), features.shape[1]


def check_memory(engine: Engine, plan: list[Phase]) -> None:
    """Refuse a run that cannot fit, and say what would."""
    available = available_memory(engine.device)
    if available is None:
        return
    sharing = processes.local_world_size() if engine.device.type == "cpu" else 1
    estimate = estimate_memory(engine, plan, engine.config.engine.micro_batch)
    if estimate.total * sharing <= available:
        return
    hint = "a smaller --batch-size or a smaller encoder (--width)"
    if not engine.networks.batch_norm:
        for micro_batch in (256, 128, 64, 32, 16):
            if estimate_memory(engine, plan, micro_batch).total * sharing <= available:
                hint = f"--micro-batch {micro_batch} (the same gradients, encoded in pieces), or {hint}"
                break
    raise UserError(
        f"this run needs about {estimate.total * sharing / GIGABYTE:.1f} GB of memory on {engine.device} ({estimate}), "
        f"and {available / GIGABYTE:.1f} GB are free. Use {hint}."
    )


@torch.no_grad()
def encoder_flops(config: EncoderConfig, image_size: int) -> int:
    """Floating-point operations of the forward pass of one image (a multiplication and an addition count as two).

    Only convolutions are counted, which make up almost all of them. torch's own counter agrees, but takes seconds to
    import.
    """
    counts: list[int] = []

    def count(module: nn.Module, inputs: object, output: Tensor) -> None:
        assert isinstance(module, nn.Conv2d)
        counts.append(2 * output.numel() * module.weight[0].numel())

    encoder = build_encoder(config).eval()
    for module in encoder.modules():
        if isinstance(module, nn.Conv2d):
            module.register_forward_hook(count)
    encoder(torch.zeros(1, 3, image_size, image_size))
    return sum(counts)
