"""Runs that reports are made of: trained once for all tests of this folder."""

from __future__ import annotations

from pathlib import Path

import pytest
from markupsafe import Markup

from osiris.report.figure import Figure
from osiris.report.page import make_report
from osiris.report.writer import ReportWriter
from osiris.training.loop import train
from report_runs import copy_as, tiny_config


@pytest.fixture(scope="session")
def real_runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """ft and osiris-d, really trained on a handful of tinyworld's images."""
    root = tmp_path_factory.mktemp("real")
    runs = {method: root / f"{method}-0" for method in ("ft", "osiris-d")}
    for method, path in runs.items():
        train(tiny_config(method), path, quiet=True)
    return runs


@pytest.fixture(scope="session")
def many_runs(real_runs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Five methods and an ablation with two seeds each, and ft with BatchNorm."""
    folder = tmp_path_factory.mktemp("many")
    names = ("ft", "lump", "osiris-r", "osiris-d", "osiris-d/no-cross", "offline")
    runs = [copy_as(real_runs["osiris-d"], folder, name, seed) for name in names for seed in (0, 1)]
    return runs + [copy_as(real_runs["osiris-d"], folder, "ft", seed, "bn") for seed in (0, 1)]


@pytest.fixture(scope="session")
def report(many_runs: list[Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Figure]]:
    figures: dict[str, Figure] = {}
    write = ReportWriter.figure

    def recorded(self: ReportWriter, figure: Figure) -> Markup:
        figures[figure.name.removeprefix("tinyworld-")] = figure
        return write(self, figure)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ReportWriter, "figure", recorded)
        page = make_report(many_runs, tmp_path_factory.mktemp("full") / "report", "All <methods> & more")
    return page, figures


@pytest.fixture(scope="session")
def full_report(report: tuple[Path, dict[str, Figure]]) -> Path:
    return report[0]


@pytest.fixture(scope="session")
def drawn(report: tuple[Path, dict[str, Figure]]) -> dict[str, Figure]:
    """The figures of the report, by name."""
    return report[1]
