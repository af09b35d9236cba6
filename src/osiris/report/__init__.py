"""Figures, tables and the HTML page, from finished runs. Calling the package, `osiris.report(runs)`, makes the page."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any


class _CallablePackage(ModuleType):
    """The function `osiris.report` and the package `osiris.report` share a name; this makes both work."""

    def __call__(self, *arguments: Any, **options: Any) -> Path:
        return import_module("osiris.api").report(*arguments, **options)


sys.modules[__name__].__class__ = _CallablePackage
