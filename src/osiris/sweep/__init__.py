"""Grids of runs: planned, launched here or on a SLURM cluster, watched and summarised.

Calling the package, `osiris.sweep(methods, ...)`, runs a grid on this machine.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


class _CallablePackage(ModuleType):
    """The function `osiris.sweep` and the package `osiris.sweep` share a name; this makes both work."""

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return import_module("osiris.sweep.runner").sweep(*arguments, **options)


sys.modules[__name__].__class__ = _CallablePackage
