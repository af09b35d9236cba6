"""osiris: unsupervised continual learning in PyTorch.

    import osiris

    run = osiris.train("osiris-d", "tinyworld", preset="smoke", out="runs/x")
    run.metrics["class-agnostic"].A

Names are imported when they are first used, so that `import osiris` does not wait for torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from osiris.api import compare, compatibility, evaluate, load_run, report, train
    from osiris.augment import views
    from osiris.data.benchmark import Benchmark
    from osiris.data.load import benchmark_from
    from osiris.errors import UserError
    from osiris.evaluation.own_metrics import Metric
    from osiris.exact.readout import Fitted
    from osiris.framework import losses, methods, terms
    from osiris.framework.augmentation import Augmentation
    from osiris.framework.methods import Method
    from osiris.framework.objectives import Objective
    from osiris.framework.readouts import ReadoutMap
    from osiris.grids.runner import sweep
    from osiris.learner import Learner, join
    from osiris.memory import Memory
    from osiris.models.external import register_encoder
    from osiris.runs.run import Run, load_runs

_HOME = {
    "Augmentation": "framework.augmentation",
    "Benchmark": "data.benchmark",
    "Fitted": "exact.readout",
    "Learner": "learner",
    "Memory": "memory",
    "Method": "framework.methods",
    "Metric": "evaluation.own_metrics",
    "Objective": "framework.objectives",
    "ReadoutMap": "framework.readouts",
    "Run": "runs.run",
    "UserError": "errors",
    "benchmark_from": "data.load",
    "compare": "api",
    "compatibility": "api",
    "evaluate": "api",
    "join": "learner",
    "load_run": "api",
    "load_runs": "runs.run",
    "register_encoder": "models.external",
    "report": "api",
    "sweep": "grids.runner",
    "train": "api",
}
"""Where a class or function is defined."""
_MODULES = {
    "losses": "framework.losses",
    "methods": "framework.methods",
    "terms": "framework.terms",
    "views": "augment.views",
}

__all__ = [
    "Augmentation",
    "Benchmark",
    "Fitted",
    "Learner",
    "Memory",
    "Method",
    "Metric",
    "Objective",
    "ReadoutMap",
    "Run",
    "UserError",
    "benchmark_from",
    "compare",
    "compatibility",
    "evaluate",
    "join",
    "load_run",
    "load_runs",
    "losses",
    "methods",
    "register_encoder",
    "report",
    "sweep",
    "terms",
    "train",
    "views",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        value: Any = import_module(f"osiris.{_MODULES[name]}")
    elif name in _HOME:
        value = getattr(import_module(f"osiris.{_HOME[name]}"), name)
    else:
        raise AttributeError(f"module 'osiris' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
