"""osiris: unsupervised continual learning in PyTorch.

    import osiris

    run = osiris.train("osiris-d", "tinyworld", preset="smoke", out="runs/x")
    run.metrics["class-agnostic"].A

Names are imported when they are first used, so that `import osiris` does not wait for torch.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from osiris.api import compare, load_run, report, train
    from osiris.data.benchmark import Benchmark
    from osiris.data.benchmarks import benchmark_from
    from osiris.errors import UserError
    from osiris.evaluation.runs import Run, load_runs
    from osiris.framework import losses, methods, terms
    from osiris.framework.methods import Method
    from osiris.learner import Learner
    from osiris.models.external import register_encoder
    from osiris.sweep.runner import sweep

_HOME = {
    "Benchmark": "osiris.data.benchmark",
    "Learner": "osiris.learner",
    "Method": "osiris.framework.methods",
    "Run": "osiris.evaluation.runs",
    "UserError": "osiris.errors",
    "benchmark_from": "osiris.data.benchmarks",
    "compare": "osiris.api",
    "load_run": "osiris.api",
    "load_runs": "osiris.evaluation.runs",
    "losses": "osiris.framework",
    "methods": "osiris.framework",
    "register_encoder": "osiris.models.external",
    "report": "osiris",
    "sweep": "osiris",
    "terms": "osiris.framework",
    "train": "osiris.api",
}
"""Name -> the module that defines it, or the package whose module it is."""

__all__ = [
    "Benchmark",
    "Learner",
    "Method",
    "Run",
    "UserError",
    "benchmark_from",
    "compare",
    "load_run",
    "load_runs",
    "losses",
    "methods",
    "register_encoder",
    "report",
    "sweep",
    "terms",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'osiris' has no attribute {name!r}")
    home = import_module(_HOME[name])
    is_module = hasattr(home, "__path__") and find_spec(f"{home.__name__}.{name}") is not None
    globals()[name] = import_module(f"{home.__name__}.{name}") if is_module else getattr(home, name)
    return globals()[name]


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


class CallablePackage(ModuleType):
    """`osiris.report` and `osiris.sweep` are packages and functions: calling the package calls the function."""

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        home = {"osiris.report": "osiris.api", "osiris.sweep": "osiris.sweep.runner"}[self.__name__]
        return getattr(import_module(home), self.__name__.removeprefix("osiris."))(*arguments, **options)
