"""A script of a user of the Python interface. It is type-checked, never run: see tests/test_api.py for that."""

from pathlib import Path

import numpy as np
from torch import Tensor, nn

import osiris
from osiris import Method, losses, methods, terms


def main() -> None:
    run: osiris.Run = osiris.train("osiris-d", "tinyworld", preset="smoke", seed=0, out="runs/x", epochs=2)
    accuracy: float | None = run.metrics["class-agnostic"].A
    encoder: nn.Module = run.encoder(task=-1)
    features: Tensor = run.embed(np.zeros((2, 32, 32, 3), dtype=np.uint8))
    bench: osiris.Benchmark = osiris.benchmark_from("photos", image_size=32)
    own: Method = methods.FT | methods.past(terms.Contrast("Y", space="g"), weight=0.5)
    other = osiris.train(own, bench, preset="smoke", encoder=lambda: nn.Sequential(nn.Flatten(), nn.Linear(3072, 64)))
    osiris.train(own, bench, encoder=encoder)
    name: str = osiris.register_encoder(nn.Identity, name="pixels")
    learner = osiris.Learner("state", encoder="hf:facebook/dinov2-small", image_size=112).observe("photos")
    vectors: np.ndarray = learner.embed("new.jpg")
    page: Path = osiris.report([run, other, "runs/*"], out="report")
    print(
        accuracy,
        encoder,
        name,
        vectors,
        losses.contrast(features.view(2, 1, -1), 0.1),
        page,
        osiris.compare([run]).markdown(),
    )
    print(osiris.load_run("runs/x").metrics.task_names)
