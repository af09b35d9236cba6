"""How much memory a run will need, before it starts: steps with a few images, extrapolated to the real batch."""

from __future__ import annotations

import math
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import psutil
import torch
from torch import Tensor, nn

from osiris import processes
from osiris.devices import available_memory
from osiris.errors import UserError
from osiris.framework.representations import Representations
from osiris.framework.terms import StepContext, X, Y
from osiris.models.config import EncoderConfig
from osiris.models.encoder import build_encoder
from osiris.models.normalisation import frozen_statistics
from osiris.training.engine import Engine
from osiris.training.schedule import Episode, kept_bytes
from osiris.training.summing import SummingEngine

EVALUATION_BATCH = 512
TIMED_IMAGES = 16
GIGABYTE = 2**30
WORKSPACE = GIGABYTE
"""What cuDNN, cuBLAS and the gaps between tensors take on a GPU, beyond the tensors themselves."""
PIECES = (256, 128, 64, 32, 16)
"""Values of --micro-batch to try."""


def estimate_memory(engine: Engine, episodes: list[Episode], micro_batch: int | None = None) -> dict[str, int]:
    """Bytes on the device of this process: `networks` (with gradients, optimiser state and frozen copies), `memory`,
    `images` of the largest episode that are kept there, `activations` of a step in a later task, which needs most, and
    `evaluation`, at another time than activations."""
    model, benchmark, world = engine.model, engine.benchmark, processes.world_size()
    trained = _bytes(p for p in model.parameters() if p.requires_grad)
    frozen = _bytes(p for p in model.parameters() if not p.requires_grad)
    memory = _bytes(engine.memory.buffers())
    copies = 4 if engine.config.learning.optimiser == "adamw" else 3  # with the gradient, and one moment or two
    evaluated = len(benchmark.bank) + len(benchmark.test or ())
    with processes.alone(), frozen_statistics(model):
        largest, features = _largest_output(engine)
        activations = _step_bytes(engine, episodes, micro_batch, largest, world)
    evaluation = 3 * largest * EVALUATION_BATCH + evaluated * features * 4
    networks = trained * copies + frozen + _bytes(model.buffers()) - memory
    keep = engine.config.engine.images_on_device
    kept = [kept_bytes(episode.images, engine.device, keep) for episode in episodes if episode.images is not None]
    parts = {"networks": networks, "memory": memory, "images": max(kept, default=0)}
    return parts | {"activations": activations, "evaluation": evaluation}


def total(parts: dict[str, int]) -> int:
    return parts["networks"] + parts["memory"] + parts["images"] + max(parts["activations"], parts["evaluation"])


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _step_bytes(engine: Engine, episodes: list[Episode], micro_batch: int | None, largest: int, world: int) -> int:
    """What autograd keeps is a polynomial of the batch size: parameters once, activations with each image,
    similarities with each pair. Three small steps determine it."""
    task, shape = max(episodes[-1].task, episodes[-1].past is not None), _view_shape(engine)  # with all terms
    count = -(-max(episode.batch_sizes[1] for episode in episodes) // world)
    replayed = engine.model.replayed(task, count)
    names = (X, Y) if replayed else (X,)
    rows = (count + replayed) / len(names)

    def step(number: int) -> object:
        return _loss(engine, task, number, names)

    def encode(number: int) -> Tensor:
        with engine.autocast():
            return engine.networks.encoder(torch.zeros(number, *shape, device=engine.device))

    two, three, four = (_saved_bytes(engine, lambda number=number: step(number)) for number in (2, 3, 4))
    kept = two + (three - two) * (rows - 2) + (four - 2 * three + two) * (rows - 2) * (rows - 3) / 2
    images = 2 * rows * len(engine.model.inputs(task))
    views = images * 4 * math.prod(shape)
    if micro_batch is not None and micro_batch < images:
        # Only the inputs are kept; the backward pass computes one piece after the other again.
        one = _saved_bytes(engine, lambda: encode(3)) - _saved_bytes(engine, lambda: encode(2))
        kept, images = kept + (micro_batch - images) * one + views, micro_batch
    return int(kept + 2 * views + 2 * largest * images)


def _view_shape(engine: Engine) -> tuple[int, ...]:
    size = engine.config.learning.view_size
    return engine.benchmark.train.images.shape if size is None else (3, size, size)


def _loss(engine: Engine, task: int, number: int, names: tuple[str, ...]) -> Tensor:
    """The loss of a batch of so many black images. Nothing is updated."""
    context = StepContext(engine.memory, torch.arange(number, device=engine.device), engine.config.seed, task, 0)
    views = {name: torch.zeros(2, number, *_view_shape(engine), device=engine.device) for name in names}
    inputs = engine.model.inputs(task)
    rep = Representations(engine.networks, engine.model.make(views, context), None, inputs, None, engine.autocast)
    return engine.model(rep, context)[0]


def estimate_seconds(engine: Engine | SummingEngine, episode: Episode) -> float:
    """How long an episode will take, from the passes of a few images."""
    if isinstance(engine, SummingEngine):
        return estimate_embedding(engine, episode.count + engine.summed.images_before) / processes.world_size()
    number = min(TIMED_IMAGES, episode.batch_size)
    trained = [parameter for parameter in engine.model.parameters() if parameter.requires_grad]
    names = (X, Y) if engine.model.replayed(episode.task, number) else (X,)
    times = []
    with processes.alone(), frozen_statistics(engine.model):
        for _ in range(3):  # the first one is slower
            started = time.perf_counter()
            loss = _loss(engine, episode.task, number, names)
            gradients = torch.autograd.grad(loss, trained, allow_unused=True)
            sum(float(gradient.sum()) for gradient in gradients[:1] if gradient is not None)  # wait for the device
            times.append(time.perf_counter() - started)
    return min(times) / number * episode.count * episode.epochs / processes.world_size()


def estimate_embedding(engine: Engine | SummingEngine, images: int) -> float:
    """Seconds to compute the features of so many images, from the forward pass of a few."""
    black = torch.zeros(TIMED_IMAGES, *engine.benchmark.train.images.shape, device=engine.device)
    times = []
    with processes.alone(), frozen_statistics(engine.networks.encoder), torch.no_grad():
        for _ in range(3):
            started = time.perf_counter()
            float(engine.networks.encoder(black).sum())
            times.append(time.perf_counter() - started)
    return min(times) / TIMED_IMAGES * images


def _saved_bytes(engine: Engine, run: Callable[[], object]) -> int:
    """What autograd keeps for the backward pass of `run`: every storage once, parameters and buffers not at all."""
    sizes = {tensor.untyped_storage().data_ptr(): 0 for tensor in engine.model.state_dict().values()}
    alive: list[Tensor] = []  # while a tensor lives, no other one gets its address

    def pack(tensor: Tensor) -> Tensor:
        sizes.setdefault(tensor.untyped_storage().data_ptr(), tensor.untyped_storage().nbytes())
        alive.append(tensor.detach())  # an output that its own node keeps is a cycle, which is never freed
        return alive[-1]

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = run()
    del result
    return sum(sizes.values())


@torch.no_grad()
def _largest_output(engine: Engine) -> tuple[int, int]:
    """(bytes of the largest output of any layer of the encoder for one image, number of features)"""
    sizes: list[int] = []

    def look(module: nn.Module, inputs: object, output: object) -> None:
        if isinstance(output, Tensor):
            sizes.append(output.numel() * output.element_size() // 2)

    hooks = [module.register_forward_hook(look) for module in engine.networks.encoder.modules()]
    images = torch.zeros(2, *engine.benchmark.bank.images.shape, device=engine.device)
    features = engine.networks.encoder(images)
    for hook in hooks:
        hook.remove()
    return max(sizes), features.shape[1]


def check_memory(engine: Engine | SummingEngine, episodes: list[Episode]) -> None:
    """Refuse a run that cannot fit, and say what would."""
    if isinstance(engine, SummingEngine):
        return check_sums(engine.summed.bytes_needed)
    available = available_memory(engine.device)
    if available is None:
        return
    cuda = engine.device.type == "cuda"
    sharing = processes.local_world_size() if engine.device.type == "cpu" else 1
    available = max(0, available - WORKSPACE) if cuda else available
    parts = estimate_memory(engine, episodes, engine.config.engine.micro_batch)
    needed = total(parts) * sharing
    if needed <= available:
        return
    hint = _what_fits(engine, episodes, lambda parts: total(parts) * sharing <= available)
    details = ", ".join(f"{name} {size / GIGABYTE:.2f} GB" for name, size in parts.items() if size)
    kept = f" ({WORKSPACE / GIGABYTE:.0f} GB is left for kernels)" if cuda else ""
    raise UserError(
        f"this run needs about {needed / GIGABYTE:.1f} GB of memory on {engine.device} ({details}), and "
        f"{available / GIGABYTE:.1f} GB are free{kept}. Use {hint}."
    )


def check_sums(needed: int) -> None:
    """Sums are computed on the CPU, whatever device the network is on."""
    available = psutil.virtual_memory().available
    if needed > available:
        raise UserError(
            f"the sums over images need {needed / GIGABYTE:.1f} GB of memory, and {available / GIGABYTE:.1f} GB are "
            "free. Choose fewer --codes (method smt) or an encoder with fewer features (readout), or close other "
            "programs."
        )


def _what_fits(engine: Engine, episodes: list[Episode], fits: Callable[[dict[str, int]], bool]) -> str:
    """Options with which an estimate fits."""
    hint = "a smaller --batch-size or a smaller encoder (--width)"
    for micro_batch in () if engine.networks.batch_norm else PIECES:
        if fits(estimate_memory(engine, episodes, micro_batch)):
            return f"--micro-batch {micro_batch} (the same gradients, encoded in pieces), or {hint}"
    return hint


@contextmanager
def explain_out_of_memory(engine: Engine | SummingEngine, episodes: list[Episode]) -> Iterator[None]:
    """Turn memory that runs out on the device into one sentence, with what needs a fifth less for activations."""
    if isinstance(engine, SummingEngine):
        yield
        return
    try:
        yield
    except torch.OutOfMemoryError as error:
        traceback.clear_frames(error.__traceback__)  # the tensors of the step
        if engine.device.type == "cuda":
            torch.cuda.empty_cache()
        present = [episode for episode in episodes if episode.images is not None]
        try:
            most = 0.8 * estimate_memory(engine, present, engine.config.engine.micro_batch)["activations"]
            hint = _what_fits(engine, present, lambda parts: parts["activations"] <= most)
        except torch.OutOfMemoryError:  # another program has taken the rest
            hint = f"--micro-batch {PIECES[-1]}, or a device that no other program uses"
        raise UserError(f"the memory of {engine.device} is used up. Resume with {hint}.") from None


@torch.no_grad()
def encoder_flops(config: EncoderConfig, image_size: int) -> int:
    """Floating-point operations of the forward pass of one image (a multiplication and an addition count as two).

    Only convolutions are counted, which make up almost all of them. torch's own counter agrees, but takes seconds to
    import; it is used for encoders that osiris does not define itself.
    """
    encoder, images = build_encoder(config).eval(), torch.zeros(1, 3, image_size, image_size)
    if config.encoder is not None:
        from torch.nn.attention import SDPBackend, sdpa_kernel
        from torch.utils.flop_counter import FlopCounterMode

        with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
            encoder(images)
        return counter.get_total_flops()
    counts: list[int] = []

    def count(module: nn.Module, inputs: object, output: Tensor) -> None:
        assert isinstance(module, nn.Conv2d)
        counts.append(2 * output.numel() * module.weight[0].numel())

    for module in encoder.modules():
        if isinstance(module, nn.Conv2d):
            module.register_forward_hook(count)
    encoder(images)
    return sum(counts)
