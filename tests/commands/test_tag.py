"""`osiris tag`: what it prints first, its table, side-cars, and what it refuses."""

import csv
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

from osiris.cli import main
from osiris.data.sidecar import write_sidecar
from osiris.learner import Learner
from osiris.learner.tags import read_tags
from tiny_runs import pictures

OPTIONS: dict[str, Any] = {"image_size": 16, "memory_size": 8, "epochs": 1, "batch_size": 8}


def plain(path: Path, colour: tuple[int, int, int], seed: int) -> Path:
    """A picture in one colour, with noise."""
    noise = np.random.default_rng(seed).integers(-20, 20, (24, 24, 3))
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray((np.array(colour) + noise).clip(0, 255).astype(np.uint8)).save(path)
    return path


COLOURS = {"red & <hot>": (220, 40, 40), "blue": (40, 40, 220)}


@pytest.fixture(scope="module")
def indexed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tag")
    Learner(folder / "state", "ft", "smoke", **OPTIONS).observe(pictures(4, seed=1)[0])
    for number, (name, colour) in enumerate(COLOURS.items()):
        for seed in range(6):
            plain(folder / "photos" / f"{number}-{seed}.png", colour, 100 * number + seed)
            plain(folder / "tagged" / name / f"{seed}.png", colour, 1000 + 100 * number + seed)
    Learner(folder / "state").index(folder / "photos")
    return folder


@pytest.fixture
def here(indexed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The paths of the index are those of the folder that it was made of."""
    monkeypatch.chdir(indexed)
    yield indexed
    for made in (*indexed.glob("*.csv"), *indexed.glob("photos/*.xmp"), *indexed.glob("*.html")):
        made.unlink()


def test_tags_of_two_colours(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tag", "state", "photos", "--from", "tagged"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("100% of the 12 examples get their tag when they are left out (95% interval 76 to 100")
    rows = [*csv.DictReader(Path("tags.csv").read_text().splitlines())]
    assert [Path(row["path"]).name for row in rows] == [f"{n}-{seed}.png" for n in range(2) for seed in range(6)]
    found = [row["tag"] for row in rows]
    assert set(found[:6]) <= {"red & <hot>", ""} and set(found[6:]) <= {"blue", ""} and found.count("") <= 6
    assert f"{12 - found.count('')} of 12 images have a tag" in out
    assert read_tags(Path("tags.csv")) == {row["path"]: row["tag"] for row in rows}
    assert not [*Path("photos").glob("*.xmp")], "only if asked"
    assert main(["map", "state", "photos", "--tags", "tags.csv"]) == 0
    page = Path("map.html").read_text()
    assert "red \\u0026 \\u003chot\\u003e" in page and "<hot>" not in page
    capsys.readouterr()
    assert main(["tag", "state", "--from", "tagged", "--sure", "1", "--json", "--out", "sure.csv"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["accuracy"][0] == 100 and all(one["tag"] is None for one in said["proposals"] if one["confidence"] < 1)


def test_side_cars_are_written_beside_images_and_nowhere_else(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.read_bytes() for path in Path("photos").iterdir()}
    Path("photos/1-0.png.xmp").write_text("of another program")
    typed = ["tag", "state", "photos", "--from", "tagged", "--xmp", "--sure", "0"]
    assert main(typed) == 0 and main(typed) == 0, "those of osiris are replaced"
    tags = {Path(path).name: tag for path, tag in read_tags(Path("tags.csv")).items() if tag}
    written = {path.name.removesuffix(".xmp"): path for path in Path("photos").glob("*.xmp")}
    assert set(written) == set(tags) | {"1-0.png"} and tags
    assert Path("photos/1-0.png.xmp").read_text() == "of another program"
    for name, tag in tags.items():
        if name != "1-0.png":
            items = ElementTree.parse(written[name]).iter("{http://www.w3.org/1999/02/22-rdf-syntax-ns#}li")
            assert [item.text for item in items] == [tag]
    assert {path: path.read_bytes() for path in before} == before, "images stay as they are"


def test_a_side_car_never_leaves_the_folders(tmp_path: Path) -> None:
    photos, secret = tmp_path / "photos", tmp_path / "secret"
    for folder in (photos, secret):
        plain(folder / "a.png", (1, 2, 3), 0)
    assert not write_sidecar(photos / ".." / "secret" / "a.png", "x", [photos])
    (photos / "link").symlink_to(secret)
    assert not write_sidecar(photos / "link" / "a.png", "x", [photos])
    (photos / "a.png.xmp").symlink_to(secret / "target")
    assert not write_sidecar(photos / "a.png", "x", [photos])
    assert not write_sidecar(photos / "none.png", "x", [photos])
    assert sorted(path.name for path in secret.iterdir()) == ["a.png"]
    (photos / "a.png.xmp").unlink()
    assert write_sidecar(photos / "a.png", "x", [photos])


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        (["state", "photos"], "--from FOLDER is missing"),
        (["state", "photos", "--from", "nowhere"], "is not a folder"),
        (["state", "photos", "--from", "photos"], "needs two subfolders of examples or more"),
        (["state", "photos", "--from", "tagged", "--sure", "2"], "give a number from 0 to 1"),
        (["state", "photos", "--from", "tagged", "--out", "tags.txt"], "use a name that ends in .csv"),
        (["state", "--from", "tagged", "--xmp"], "name their folders"),
        (["photos", "--from", "tagged"], "has not finished an episode yet"),
    ],
)
def test_refusals(here: Path, typed: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tag", *typed]) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert not [*here.glob("*.csv")]


def test_few_examples_and_odd_names_are_refused(here: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree("tagged", tmp_path / "few")
    for seed in range(4):
        (tmp_path / "few" / "blue" / f"{seed}.png").unlink()
    assert main(["tag", "state", "photos", "--from", str(tmp_path / "few")]) == 2
    assert "give 3 examples or more of blue" in " ".join(capsys.readouterr().err.split())
    shutil.copytree("tagged", tmp_path / "odd")
    (tmp_path / "odd" / "blue").rename(tmp_path / "odd" / "bl\nue\x1b[31m")
    typed = ["tag", "state", "photos", "--from", str(tmp_path / "odd")]
    assert main([*typed, "--xmp"]) == 2 and not [*Path("photos").glob("*.xmp")]
    assert "has characters that a side-car cannot hold" in capsys.readouterr().err
    assert main(typed) == 0 and "\x1b[31m" not in capsys.readouterr().out


def test_a_table_that_is_none(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("other.csv").write_text("a,b\n1,2\n")
    for name, message in (("other.csv", "is not a table of osiris tag"), ("none.csv", "does not exist")):
        assert main(["map", "state", "photos", "--tags", name]) == 2
        assert message in " ".join(capsys.readouterr().err.split())
