"""`osiris map`: what is on the page, what it opens, and what it refuses."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from osiris.cli import main
from osiris.data import images as decoding
from osiris.data.thumbnails import store, thumbnails
from osiris.index.places import read_places
from osiris.learner import Learner
from osiris.learner import overview as overview_module
from osiris.learner.overview import _month
from pictures import picture, write_pictures
from tiny_runs import pictures

OPTIONS: dict[str, Any] = {"image_size": 16, "memory_size": 8, "epochs": 1, "batch_size": 8}


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("map") / "state"
    Learner(path, "ft", "smoke", **OPTIONS).observe(pictures(4, seed=1)[0], name="2026-08")
    return path


@pytest.fixture
def state(learned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    write_pictures(tmp_path / "photos" / "2026-08", 10, seed=1)
    write_pictures(tmp_path / "photos" / "2026-09", 6, seed=2)
    shutil.copy(tmp_path / "photos" / "2026-08" / "3.png", tmp_path / "photos" / "2026-09" / "copy.png")
    monkeypatch.chdir(tmp_path)
    path = Path(shutil.copytree(learned, tmp_path / "state"))
    assert main(["index", "state", "photos"]) == 0
    yield path


def read(page: Path) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page.read_text())
    assert found
    return json.loads(found[1])


def test_a_page_of_all_images(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["map", "state", "photos"]) == 0
    assert "map.html: 17 images" in capsys.readouterr().out
    data = read(Path("map.html"))
    assert data["names"] == [
        *(f"2026-08/{number}.png" for number in range(10)),
        *(f"2026-09/{name}.png" for name in (*range(6), "copy")),
    ]
    assert data["steps"] == ["2026-08", "2026-09"] == data["kinds"]["month"]["names"]
    (group,) = [group for group in data["twins"] if group["kind"] == "the same bytes"]
    assert sorted(group["images"]) == [3, 16] and group["goes"] == [False, True]
    assert data["link"] is None and str(Path.cwd()) not in Path("map.html").read_text()
    assert main(["map", "state", "photos/2026-09", "--link", "--out", "one.html", "--title", "<b>"]) == 0
    data = read(Path("one.html"))
    assert data["link"] == [f"photos/2026-09/{name}.png" for name in (*range(6), "copy")]
    assert data["title"] == "<b>" and "<b>" not in Path("one.html").read_text()


def test_new_images_are_added_to_the_old_map(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["map", "state", "photos"]) == 0
    before = read_places(state / "index")
    write_pictures(Path("photos/2026-10"), 3, seed=3)
    assert main(["index", "state", "photos"]) == 0 and main(["map", "state", "photos"]) == 0
    after = read_places(state / "index")
    assert "20 images, 3 of them added to the map" in capsys.readouterr().out
    assert len(after) == 19 and {digest: after[digest] for digest in before} == before
    page = Path("map.html").read_bytes()
    assert main(["map", "state", "photos"]) == 0 and Path("map.html").read_bytes() == page
    assert main(["map", "state", "photos", "--anew"]) == 0 and read_places(state / "index") != after
    assert main(["forget", "state", "photos/2026-10/0.png"]) == 0
    assert len(read_places(state / "index")) == 18


def test_only_files_below_the_given_folders_are_opened(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OSIRIS_CACHE", str(state / "cache"))  # without thumbnails of other tests
    opened = list[Path]()
    monkeypatch.setattr(decoding, "_open", lambda path, real=decoding._open: (opened.append(path), real(path))[1])
    assert main(["map", "state"]) == 0 and not opened
    assert main(["map", "state", "photos/2026-09"]) == 0
    assert {path.parent.name for path in opened} == {"2026-09"}
    opened.clear()
    assert main(["map", "state", "photos/2026-09"]) == 0 and not opened, "they are decoded once"


def test_thumbnails_of_files_that_have_changed(tmp_path: Path) -> None:
    paths = write_pictures(tmp_path, 3, seed=4, size=(300, 100))
    from osiris.data.looks import file_digest

    digests = [file_digest(path) for path in paths]
    picture(99).save(paths[1])
    paths[2].unlink()
    found = [*thumbnails(paths, digests)]
    assert found[0] is not None and found[0].size == (128, 43) and found[1] is None and found[2] is None
    assert store().exists()


@pytest.mark.parametrize(
    ("path", "taken", "month"),
    [
        ("/a/2026-08/x.jpg", 0, "2026-08"),
        ("/a/2025/IMG_20261103_101112.jpg", 0, "2026-11"),
        ("/a/b/x.jpg", 0, "2001-09"),
        ("/a/2026-08/x.jpg", 10**9 + 40 * 86400, "2001-10"),
        ("/a/202613/20269.jpg", 0, "2001-09"),
    ],
)
def test_months(path: str, taken: int, month: str) -> None:
    assert _month(path, taken, 10**18) == month


def test_novelty_is_the_distance_to_what_was_there_before() -> None:
    vectors = np.eye(4, dtype=np.float32)[[0, 0, 1, 1, 0, 2]]
    step = np.array([0, 0, 1, 1, 2, 2])
    near, novelty = overview_module._compare(vectors, step, "comparing")
    assert novelty.tolist() == [0, 0, 1, 1, 0, 1]
    assert near.rows[2:4, 0].tolist() == [3, 2] and {*near.rows[0, :2].tolist()} == {1, 4}
    assert near.cosines[0].tolist() == [1, 1, 0, 0, 0]


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["state", "photos", "--out", "map.png"], "use a name that ends in .html"),
        (["photos", "photos"], "has not finished an episode yet"),
        (["state", "elsewhere"], "the index has no images below"),
    ],
)
def test_refusals(state: Path, command: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["map", *command]) == 2
    assert message in " ".join(capsys.readouterr().err.split())
