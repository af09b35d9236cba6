"""Small things that tests share: a benchmark, an engine, and a method in the middle of its second task."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import naive
from osiris.config import Config, EngineConfig, LearningConfig
from osiris.data.benchmark import Benchmark, Split
from osiris.data.images import ArrayImages
from osiris.framework.composition import resolve
from osiris.framework.config import MethodConfig
from osiris.framework.methods import Method, find_method
from osiris.framework.objectives import Objective
from osiris.framework.representations import Networks, Representations
from osiris.framework.terms import StepContext
from osiris.framework.trainable import TrainableMethod
from osiris.models.config import EncoderConfig, ProjectorConfig
from osiris.models.encoder import build_encoder
from osiris.randomness import generator
from osiris.training.engine import Engine, Stepped, StepResult
from osiris.training.schedule import Episode, plan_episodes

ENCODER = EncoderConfig(width=8, blocks=(1, 1, 1, 1))
PAPER = [
    *("ft", "er", "er+", "er++", "der", "lump", "osiris-r"),
    *("ewc", "cassle", "pocon", "osiris-d", "offline", "d1-only"),
]
"""The methods of the paper. Tests that hold numbers name them; the others follow the zoo, also where it grows."""
HEADS = ProjectorConfig(projector_hidden=16, projector_output=6)
SMALL = {"mocov2+": "mocov2+(queue_size=5)", "swav": "swav(clusters=7)"}
OBJECTIVES = [SMALL.get(kind, kind) for kind, cls in Objective.kinds().items() if cls.__module__.startswith("osiris.")]


def composed(method: str = "osiris-d", objective: str | None = None, **options: Any) -> Method:
    """A method as the options of the command line compose it."""
    return resolve(MethodConfig(method, objective=objective, **options))


def tiny_benchmark(tasks: int = 3, per_task: int = 20, size: int = 8) -> Benchmark:
    """Smooth coloured blobs, another colour for each task."""
    random = np.random.default_rng(1)
    count = tasks * per_task
    coarse = random.integers(0, 256, (count, 3, 2, 2)).astype(np.float64)
    tint = np.repeat(random.uniform(0.3, 1, (tasks, 3)), per_task, axis=0)[:, :, None, None]
    array = (np.kron(coarse, np.ones((1, 1, size // 2, size // 2))) * tint).astype(np.uint8)
    task = torch.arange(tasks).repeat_interleave(per_task)
    split = Split(ArrayImages(array), task, task.clone())
    return Benchmark(
        name="tiny",
        train=split,
        bank=split,
        test=split,
        class_names=tuple(f"class {label}" for label in range(tasks)),
        tasks=tuple((label,) for label in range(tasks)),
        mean=(0.5, 0.5, 0.5),
        std=(0.25, 0.25, 0.25),
    )


def tiny_engine(
    method: str | Method, seed: int = 0, benchmark: Benchmark | None = None, norm: str = "gn", **learning: float
) -> tuple[Engine, list[Episode]]:
    method = find_method(method) if isinstance(method, str) else method
    benchmark = tiny_benchmark() if benchmark is None else benchmark
    values = {"epochs": 2, "batch_size": 8, "memory_size": 12, "learning_rate": 0.05, **learning}
    config = Config(
        seed=seed,
        encoder=EncoderConfig(width=8, blocks=(1, 1, 1, 1), norm=norm),  # pyright: ignore[reportArgumentType]
        projector=HEADS,
        learning=LearningConfig(**values),  # pyright: ignore[reportArgumentType]
        engine=EngineConfig(device="cpu", threads=1),
    )
    engine = Engine(config, method, benchmark, torch.device("cpu"))
    return engine, plan_episodes(benchmark, method, config.learning)


def train(engine: Engine, stretch: list[Episode]) -> list[StepResult]:
    """What the loop does, without evaluation and files."""
    results = []
    for phase in stretch:
        results += [event.result for event in engine.learn(phase) if isinstance(event, Stepped)]
    return results


@dataclass
class Situation:
    """A method in its second task, every network and buffer different from every other, in float64."""

    model: TrainableMethod
    views: dict[str, Tensor]
    context: StepContext

    @property
    def networks(self) -> Networks:
        return self.model.networks

    def represent(self, **options: Any) -> Representations:
        views = self.model.make(self.views, self.context)
        return Representations(self.networks, views, encode=self.model.inputs(self.context.task), **options)

    def values(self, **options: Any) -> tuple[Tensor, dict[str, Tensor]]:
        return self.model(self.represent(**options), self.context)

    def gradients(self) -> dict[str, Tensor]:
        """By name, zero where there is none."""
        named = {**dict(self.networks.named_parameters()), **dict(self.model.terms.named_parameters("terms"))}
        return {
            name: torch.zeros_like(value) if value.grad is None else value.grad.clone()
            for name, value in named.items()
            if value.requires_grad
        }

    def naive(self) -> naive.Model:
        """The same parameters for the naive computation (shared: the gradients are accumulated in one place)."""
        model = naive.Model(self.networks, self.model.terms, dict(self.views), self.networks.batch_norm)
        memory, slots = self.model.memory, self.context.slots
        model.stored = {name: memory.get_buffer(f"field_{name}")[slots] for name in memory.fields}
        model.nu = next((term.nu(self.context) for term in self.model.terms.values() if hasattr(term, "nu")), 0.0)  # pyright: ignore
        return model


def situation(
    method: str | Method, norm: str = "gn", x: int = 4, y: int = 3, task: int = 1, seed: int = 0
) -> Situation:
    method = find_method(method) if isinstance(method, str) else method
    encoder = EncoderConfig(width=8, blocks=(1, 1, 1, 1), norm=norm)  # pyright: ignore[reportArgumentType]
    model = TrainableMethod(method, build_encoder(encoder, seed), HEADS, 9, (3, 8, 8), seed=seed).double()
    memory = model.memory
    memory.advance(9)
    _scramble(model.networks, seed)
    _scramble(model.terms, seed + 1)
    random = generator(seed, "test.views")
    for name in memory.fields:
        field = memory.get_buffer(f"field_{name}")
        stored = torch.randn(field.shape, generator=random, dtype=torch.float64)
        field.copy_(nn.functional.normalize(stored, dim=1))
    y = x if method.replay == 1 else y
    views = {"X": _views(x, random)}
    if model.replayed(task, x):
        views["Y"] = _views(y, random)
    context = StepContext(memory, torch.tensor([7, 2, 0, 5, 8, 1])[:y], seed, task, step=3)
    return Situation(model, views, context)


def _views(count: int, random: torch.Generator) -> Tensor:
    return torch.randn(2, count, 3, 8, 8, generator=random, dtype=torch.float64)


@torch.no_grad()
def _scramble(module: nn.Module, seed: int) -> None:
    """No zero-initialised norms, no two equal networks, positive variances and Fisher values."""
    random = generator(seed, "test.scramble")
    for name, value in [*module.named_parameters(), *module.named_buffers()]:
        if not value.is_floating_point():
            continue
        noise = torch.randn(value.shape, generator=random, dtype=torch.float64)
        value.add_(0.3 * noise)
        if "running_var" in name or "fisher" in name:
            value.abs_().add_(0.1)


def assert_like_naive(case: Situation, reference: Callable[[naive.Model], naive.Parts]) -> None:
    """L, every term by name, and the gradient of every parameter."""
    value, terms = case.values()
    value.backward()
    gradients = case.gradients()
    case.model.zero_grad()
    parts = reference(case.naive())
    expected = naive.total(parts)
    expected.backward()
    wanted = {name: part for name, (_, part) in parts.items()}
    torch.testing.assert_close({**terms, "": value}, {**wanted, "": expected}, rtol=1e-8, atol=1e-9)
    torch.testing.assert_close(gradients, case.gradients(), rtol=1e-6, atol=1e-9)
