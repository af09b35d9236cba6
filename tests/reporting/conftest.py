"""Runs that reports are made of: two that are trained once for all tests of this folder, and copies of one of them that
pass for other methods and seeds."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from markupsafe import Markup

from osiris.config import Config
from osiris.framework.composition import method_to_dict
from osiris.framework.methods import find_method
from osiris.presets import configure
from osiris.reporting.figure import Figure
from osiris.reporting.page import make_report
from osiris.reporting.writer import ReportWriter
from osiris.training.run import Opening, train

GAINS = {"ft": 0.0, "er": 2.0, "lump": 4.0, "cassle": 3.0, "osiris-r": 6.0, "osiris-d": 8.0, "offline": 9.0}
"""Points that a copy adds to every accuracy, so that its rank is known."""


def tiny_config(method: str) -> Config:
    base = configure("tinyworld", "smoke")
    return replace(
        base,
        method=replace(base.method, method=method),
        data=replace(base.data, train_per_class=6, bank_per_class=6, test_per_class=3),
        encoder=replace(base.encoder, width=8),
        projector=replace(base.projector, projector_hidden=16, projector_output=8),
        learning=replace(base.learning, epochs=1, batch_size=8, memory_size=16),
        evaluation=replace(base.evaluation, k=2, evaluate_every=2),
        engine=replace(base.engine, track_overfitting=1),
    )


def copy_as(real: Path, folder: Path, method: str, seed: int, norm: str = "gn") -> Path:
    """The run `real` under another name, with every accuracy shifted by a known amount and a little noise."""
    out = folder / f"{method.replace('/', '-')}-{norm}-{seed}"
    shutil.copytree(real, out, ignore=shutil.ignore_patterns("*.pt", ".lock"))
    metrics = json.loads((out / "metrics.json").read_text())
    shift = GAINS.get(method, 1.0) - (5.0 if norm == "bn" else 0.0)
    noise = np.random.default_rng([seed, len(method)])
    metrics |= {"method": method, "seed": seed}
    metrics["fingerprint"]["encoder"]["norm"] = norm
    if norm == "bn":
        metrics["fingerprint"]["hash"] = "bn" + metrics["fingerprint"]["hash"][2:]
    if method in ("offline", "d1-only"):
        metrics |= {"continual": False, "evaluations": metrics["evaluations"][-1:], "curve": []}
        (out / "progress.json").unlink()  # it names ten episodes
        lines = (out / "log.jsonl").read_text().splitlines(keepends=True)
        (out / "log.jsonl").write_text("".join(line for line in lines if '"task": 1,' in line))
    for entry in metrics["protocols"].values():
        move = shift + float(noise.normal(0, 0.2))
        entry["accuracy_matrix"] = [[value + move for value in row] for row in entry["accuracy_matrix"]]
        for letter, sign in (("A", 1), ("F", -0.2), ("K", 0.3), ("C", 1), ("T", 0.5)):
            entry[letter] += sign * move
        if not metrics["continual"]:
            entry |= {"F": None, "K": None, "T": None, "accuracy_matrix": entry["accuracy_matrix"][-1:]}
    (out / "metrics.json").write_text(json.dumps(metrics))
    config = json.loads((out / "config.json").read_text())
    config["composition"] = method_to_dict(find_method(method))
    config["config"]["method"]["method"], config["config"]["seed"] = method, seed
    config["config"]["encoder"]["norm"] = norm
    (out / "config.json").write_text(json.dumps(config))
    if metrics["continual"]:
        raw, mapped = (
            [[float(shift + seed)] * task for task in range(10)] for shift in (20 + GAINS.get(method, 1.0), 70)
        )
        sizes = {"k": 10, "queries": 60, "gallery": 61, "map_images": 59, "same_class": [50.0] * 10}
        indexes = {"raw": {"recall": raw, "same_class": raw}, "mapped": {"recall": mapped, "same_class": mapped}}
        (out / "compatibility.json").write_text(json.dumps(sizes | indexes))
    environment = json.loads((out / "environment.json").read_text())
    environment[0]["command"] = f"osiris train --method {method} --seed {seed} --norm {norm}"
    (out / "environment.json").write_text(json.dumps(environment))
    return out


@pytest.fixture(scope="session")
def real_runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """ft and osiris-d, really trained on a handful of tinyworld's images."""
    root = tmp_path_factory.mktemp("real")
    runs = {method: root / f"{method}-0" for method in ("ft", "osiris-d")}
    for method, path in runs.items():
        train(Opening(tiny_config(method), path, quiet=True))
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
