"""Own data from the command line to the metrics: `osiris train` on folders, labelled or not."""

from __future__ import annotations

from pathlib import Path

import pytest

from osiris.cli import main
from osiris.files import read_json
from pictures import write_pictures

SMOKE = ["--preset", "smoke", "--method", "osiris-d", "--batch-size", "12", "--quiet"]


def train(benchmark: str, out: Path, *flags: str) -> dict:
    assert main(["train", "--benchmark", benchmark, *SMOKE, "--out", str(out), *flags]) == 0
    return read_json(out / "metrics.json")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "photos"
    for seed, (episode, name) in enumerate([("a", "cat"), ("a", "dog"), ("b", "cat"), ("b", "emu")]):
        write_pictures(root / episode / name, 10, seed)
    return root


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    root = tmp_path / "plain"
    for seed, episode in enumerate("ab"):
        write_pictures(root / episode, 14, seed)
    return root


def test_a_labelled_folder(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "a" / "cat" / "0.png").write_bytes(b"no image")
    metrics = train(f"folder:{folder}", tmp_path / "run")
    assert metrics["labelled"] and metrics["fingerprint"]["tasks"] == 2
    told = " ".join(capsys.readouterr().err.split())
    assert "1 image(s) could not be decoded and were skipped" in told and "is held out for testing" in told


def test_a_folder_without_labels(plain: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    metrics = train(f"folder:{plain}", tmp_path / "run")
    assert not metrics["labelled"]
    assert "cannot be computed" in " ".join(capsys.readouterr().out.replace("│", " ").split())


def test_a_folder_cut_by_class_in_random_order(folder: Path, tmp_path: Path) -> None:
    metrics = train(f"split-folder:{folder}-2", tmp_path / "run", "--class-order", "seed:1", "--image-size", "16")
    assert metrics["fingerprint"]["image_size"] == [16, 16]
