"""Own data from the command line to the metrics: `osiris train` on folders, arrays and data sets, labelled or not."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from osiris.cli import main
from osiris.files import read_json
from pictures import picture, write_pictures

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


def test_a_folder_decoded_on_the_fly_gives_the_same_numbers(folder: Path, tmp_path: Path) -> None:
    cached = train(f"folder:{folder}", tmp_path / "cached")
    lazy = train(f"folder:{folder}", tmp_path / "lazy", "--decode-limit-mb", "0")
    assert lazy["protocols"] == cached["protocols"] and lazy["fingerprint"] == cached["fingerprint"]


def test_a_folder_without_labels(plain: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    metrics = train(f"folder:{plain}", tmp_path / "run")
    assert not metrics["labelled"]
    assert "cannot be computed" in " ".join(capsys.readouterr().out.replace("│", " ").split())


def test_a_folder_cut_by_class_in_random_order(folder: Path, tmp_path: Path) -> None:
    metrics = train(f"split-folder:{folder}-2", tmp_path / "run", "--class-order", "seed:1", "--image-size", "16")
    assert metrics["fingerprint"]["image_size"] == [16, 16]


@pytest.mark.parametrize("labelled", [True, False])
def test_arrays(tmp_path: Path, labelled: bool) -> None:
    images = np.stack([np.asarray(picture(number)) for number in range(40)])
    fields: dict[str, Any] = {"images": images, "episodes": np.arange(40) // 20}
    if labelled:
        fields["labels"] = np.arange(40) % 2
    np.savez(tmp_path / "own.npz", **fields)
    assert train(f"arrays:{tmp_path / 'own.npz'}", tmp_path / "run")["labelled"] is labelled


def test_a_dataset_with_an_episode_column(tmp_path: Path) -> None:
    import datasets

    rows: dict = {"photo": [], "day": [f"2024-01-{1 + number // 20:02d}" for number in range(40)], "label": []}
    for number in range(40):
        buffer = io.BytesIO()
        picture(number).save(buffer, format="PNG")
        rows["photo"].append({"bytes": buffer.getvalue(), "path": None})
        rows["label"].append("even" if number % 2 else "odd")
    dataset = datasets.Dataset.from_dict(rows).cast_column("photo", datasets.Image())
    dataset.to_parquet(tmp_path / "own.parquet")
    flags = ["--image-column", "photo", "--episode-column", "day"]
    assert train(f"dataset:{tmp_path / 'own.parquet'}", tmp_path / "run", *flags)["labelled"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--benchmark", "folder:{tmp}/nowhere"], "is not a folder"),
        (["--benchmark", "arrays:{tmp}/nowhere.npz"], "cannot read"),
        (["--benchmark", "dataset:{tmp}/photos", "--episode-column", "day"], "has only the columns"),
        (["--benchmark", "folder:{tmp}/photos", "--strict"], "cannot be decoded"),
        (["--benchmark", "split-folder:{tmp}/photos-9"], "cannot be divided into 9 tasks"),
        (
            ["--benchmark", "split-folder:{tmp}/photos-2", "--class-order", "{tmp}/no.json"],
            "cannot read the class order",
        ),
    ],
)
def test_bad_input(
    folder: Path, tmp_path: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "a" / "cat" / "0.png").write_bytes(b"no image")
    filled = [argument.format(tmp=tmp_path) for argument in arguments]
    assert main(["train", *SMOKE, *filled, "--out", str(tmp_path / "run")]) == 2
    assert message in capsys.readouterr().err
