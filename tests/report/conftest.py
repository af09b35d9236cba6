"""Runs that reports are made of: trained once for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from report_runs import copy_as, tiny_config


@pytest.fixture(scope="session")
def real_runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    """ft and osiris-d, really trained on a handful of tinyworld's images."""
    from osiris.training.loop import train

    root = tmp_path_factory.mktemp("real")
    runs = {method: root / f"{method}-0" for method in ("ft", "osiris-d")}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OSIRIS_CACHE", str(root / "cache"))
        for method, path in runs.items():
            train(tiny_config(method), path, quiet=True)
        yield runs


@pytest.fixture(scope="session")
def many_runs(real_runs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Five methods and an ablation with two seeds each, and ft with BatchNorm."""
    folder = tmp_path_factory.mktemp("many")
    names = ("ft", "lump", "osiris-r", "osiris-d", "osiris-d/no-cross", "offline")
    runs = [copy_as(real_runs["osiris-d"], folder, name, seed) for name in names for seed in (0, 1)]
    return runs + [copy_as(real_runs["osiris-d"], folder, "ft", seed, "bn") for seed in (0, 1)]


@pytest.fixture(scope="session")
def full_report(many_runs: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    from osiris.report.page import make_report

    return make_report(many_runs, tmp_path_factory.mktemp("full") / "report", "All <methods> & more")
