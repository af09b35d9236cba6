"""What an index has twice, and what of it could go: nothing that a script could delete and that is the only one."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from osiris.cli import main
from osiris.data.looks import FACTS, Look, looking
from osiris.index import copies
from osiris.index.copies import DISTANCE, look_alikes, near_hashes, runs_in_time, series
from osiris.learner import Learner, duplicates
from pictures import picture
from tiny_runs import pictures

SIZE = (96, 72)


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("learner") / "state"
    learner = Learner(path, "ft", "smoke", image_size=16, memory_size=8, epochs=1, batch_size=8)
    learner.observe(pictures(4, seed=1)[0])
    return path


@pytest.fixture
def state(learned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copytree(learned, tmp_path / "state"))


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Twelve pictures in two folders, and copies of the first four."""
    folder = tmp_path / "photos"
    for name in ("a", "b", "copies"):
        (folder / name).mkdir(parents=True)
    for number in range(12):
        picture(number, SIZE).save(folder / "ab"[number % 2] / f"{number}.png")
    shutil.copy(folder / "a" / "0.png", folder / "copies" / "0 bytes.png")
    picture(1, SIZE).save(folder / "copies" / "1.jpg", quality=40)
    picture(2, SIZE).resize((48, 36), Image.Resampling.LANCZOS).save(folder / "copies" / "2.webp")
    exif = Image.Exif()
    exif[0x0112] = 6
    picture(3, SIZE).transpose(Image.Transpose.ROTATE_90).save(folder / "copies" / "3.jpg", quality=90, exif=exif)
    return folder


def names(state: Path, folder: Path) -> dict[str, list[list[tuple[str, bool]]]]:
    """Kind -> groups of (file, whether it could go)."""
    found: dict[str, list[list[tuple[str, bool]]]] = {}
    for group in Learner(state).duplicates().groups:
        images = [(str(one.path.relative_to(folder)), one.could_go) for one in group.images]
        found.setdefault(group.kind, []).append(images)
    return found


def test_kinds_of_copies(state: Path, photos: Path) -> None:
    Learner(state).index(photos)
    found = names(state, photos)
    assert found["the same bytes"] in (
        [[("a/0.png", False), ("copies/0 bytes.png", True)]],
        [[("copies/0 bytes.png", False), ("a/0.png", True)]],
    )
    assert sorted(found["the same picture"]) == [
        [("a/2.png", False), ("copies/2.webp", True)],
        [("b/1.png", False), ("copies/1.jpg", True)],
        [("b/3.png", False), ("copies/3.jpg", True)],
    ]
    assert not any(goes for group in found.get("look-alikes", []) for _, goes in group)
    assert Learner(state).duplicates().could_go == 4


def test_every_group_of_copies_keeps_one(state: Path, photos: Path) -> None:
    """Copies of copies: deleting what could go leaves each picture once, the best of it."""
    for number in range(3):
        shutil.copy(photos / "copies" / "1.jpg", photos / "copies" / f"1 {number}.jpg")
        shutil.copy(photos / "b" / "1.png", photos / "copies" / f"1 {number}.png")
    Learner(state).index(photos)
    found = Learner(state).duplicates()
    goes = {one.path for group in found.groups for one in group.images if one.could_go}
    assert found.could_go == len(goes) == 3 + 7
    for path in goes:
        path.unlink()
    Learner(state).index(photos)
    assert Learner(state).duplicates().could_go == 0
    left = {path.name for path in photos.rglob("*.*")}
    assert len(left) == 12 and all(name.endswith("png") for name in left)


def test_files_that_are_gone_are_no_copies(state: Path, photos: Path) -> None:
    """Marked as gone, or gone since the index was made: the one that is left is the only one."""
    Learner(state).index(photos)
    (photos / "a" / "0.png").unlink()
    shutil.rmtree(photos / "b")
    answer = Learner(state).duplicates()
    kept = {one.path for group in answer.groups for one in group.images}
    assert all(path.exists() for path in kept) and answer.could_go == 1
    assert "files are gone, or changed since they were indexed" in answer.notices[-1]
    Learner(state).index(photos)
    assert Learner(state).duplicates().could_go == 1


def test_names_of_one_file_are_one(state: Path, photos: Path) -> None:
    shutil.rmtree(photos / "copies")
    (photos / "b" / "link.png").symlink_to(photos / "a" / "0.png")
    os.link(photos / "a" / "2.png", photos / "b" / "hard.png")
    Learner(state).index(photos)
    assert Learner(state).duplicates().could_go == 0


def test_an_edited_picture_is_another(state: Path, photos: Path) -> None:
    """Other colours, a mark, another brightness, half of it: none of them could go."""
    shutil.rmtree(photos / "copies")
    pixels = np.asarray(picture(5, SIZE)).astype(int)
    marked, bright = pixels.copy(), (pixels + 25).clip(0, 255)
    marked[30:45, 30:60] = 255 - marked[30:45, 30:60]
    edits = {
        "grey": pixels.mean(axis=2, keepdims=True).repeat(3, 2),
        "marked": marked,
        "bright": bright,
        "swapped": pixels[..., ::-1],
        "half": pixels[:, :48],
        "mirrored": pixels[:, ::-1],
    }
    for name, edit in edits.items():
        Image.fromarray(edit.astype(np.uint8)).save(photos / f"{name}.png")
    Image.new("RGB", SIZE, "white").save(photos / "white.png")
    Image.new("RGB", SIZE, (250, 250, 250)).save(photos / "nearly.png")
    Learner(state).index(photos)
    assert Learner(state).duplicates().could_go == 0


def test_what_is_printed(state: Path, photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["index", str(state), str(photos)]) == 0
    capsys.readouterr()
    assert main(["duplicates", str(state), "photos"]) == 0
    out = capsys.readouterr().out
    size = (photos / "b" / "1.png").stat().st_size
    lines = out.splitlines()
    first = lines.index(f"    photos/b/1.png  96 x 72, {size:,} bytes")
    assert lines[first - 1].endswith("  the same picture")
    assert lines[first + 1].startswith("    photos/copies/1.jpg  96 x 72, ") and lines[first + 1].endswith(", could go")
    assert "3 of the same picture" in out and "4 images could go" in out
    assert main(["duplicates", str(state), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["could_go"] == 4 and {"path", "width", "height", "bytes", "taken", "could_go", "similarity"} == {
        *said["groups"][0]["images"][0]
    }


def test_near_hashes_are_those_of_a_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "CHUNK", 50)
    random = np.random.default_rng(0)
    hashes = random.integers(0, 2**63, 40, dtype=np.uint64)
    near = hashes.repeat(6)
    for at in range(len(near)):
        for bit in random.choice(64, random.integers(0, DISTANCE // 2 + 2), replace=False):
            near[at] ^= np.uint64(1) << np.uint64(bit)
    found = [pair for left, right in near_hashes(near) for pair in zip(left.tolist(), right.tolist())]
    expected = {
        (a, b)
        for a in range(len(near))
        for b in range(a + 1, len(near))
        if int(near[a] ^ near[b]).bit_count() <= DISTANCE
    }
    assert set(found) == expected and len(found) == len(expected) > 100


def test_look_alikes_are_no_chains() -> None:
    left, right = np.array([0, 1, 2, 3, 4, 8]), np.array([1, 2, 3, 4, 5, 9])
    pairs = set(zip(left.tolist(), right.tolist()))
    for group in look_alikes(left, right):
        first, *others = group.members.tolist()
        assert all((min(first, one), max(first, one)) in pairs for one in others)


def test_what_a_file_says(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112], exif[0x0132] = 6, "2026:11:02 03:04:05"
    picture(1, SIZE).save(tmp_path / "turned.jpg", exif=exif)
    looks: dict[Path, Look] = {}
    looking(looks)(tmp_path / "turned.jpg", 16)
    facts = looks[tmp_path / "turned.jpg"].facts
    assert (int(facts["width"]), int(facts["height"])) == (72, 96), "as it is seen"
    assert np.datetime64(int(facts["taken"]), "s") == np.datetime64("2026-11-02T03:04:05")
    assert facts.dtype == FACTS and facts["digest"].any()


def test_runs_of_pictures_that_were_taken_one_after_the_other() -> None:
    files = {  # name -> seconds since 1970, 0: not known
        "/a/IMG_0001.jpg": 1000,
        "/a/IMG_0009.jpg": 1010,
        "/a/IMG_0002.jpg": 1021,
        "/a/IMG_0003.jpg": 0,
        "/a/IMG_0004.jpg": 0,
        "/a/IMG_0006.jpg": 0,
        "/a/IMG_0007.png": 0,
        "/a/DSC9.jpg": 0,
        "/a/DSC10.jpg": 0,
        "/a/x.jpg": 0,
        "/b/IMG_0010.jpg": 1010,
        "/b/IMG_0011.jpg": 1010,
    }
    names = [*files]
    runs = runs_in_time(names, np.array([*files.values()]))
    assert [[names[at] for at in run] for run in runs] == [
        ["/a/IMG_0001.jpg", "/a/IMG_0009.jpg"],
        ["/a/DSC9.jpg", "/a/DSC10.jpg"],
        ["/a/IMG_0003.jpg", "/a/IMG_0004.jpg"],
        ["/b/IMG_0010.jpg", "/b/IMG_0011.jpg"],
    ]


def test_a_series_is_near_to_its_first_picture() -> None:
    """Not to the one before: there are no chains."""
    angles = np.radians([0, 20, 40, 60, 62, 150])
    vectors = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    run = np.array([5, 0, 1, 2, 3, 4])
    groups = series([run], lambda rows: vectors[rows], float(np.cos(np.radians(45))))
    assert [group.members.tolist() for group in groups] == [[0, 1, 2], [3, 4]]
    assert {group.kind for group in groups} == {"a series"}


def test_a_burst_is_a_series_and_nothing_of_it_could_go(
    state: Path, photos: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(duplicates, "UNUSUAL", 0.2)  # the encoder has learned nothing
    exif = Image.Exif()
    scene = picture(77, (96, 72))
    for number in range(3):
        exif.get_ifd(0x8769)[0x9003] = f"2026:08:01 10:00:0{2 * number}"
        brighter = scene.point([min(255, value + 14 * number) for value in range(256)] * 3)
        brighter.save(photos / "a" / f"burst {3 - number}.jpg", exif=exif)
    Learner(state).index(photos)
    groups = Learner(state).duplicates().groups
    (found,) = [group for group in groups if group.kind == "a series"]
    assert [one.path.name for one in found.images] == ["burst 3.jpg", "burst 2.jpg", "burst 1.jpg"], "in order of time"
    assert not any(one.could_go for one in found.images)
    names = {one.path.name for group in groups if group.kind == "look-alikes" for one in group.images}
    assert not names & {"burst 2.jpg", "burst 1.jpg"}
    (photos / "a" / "burst 2.jpg").unlink()
    (found,) = [group for group in Learner(state).duplicates().groups if group.kind == "a series"]
    assert [one.path.name for one in found.images] == ["burst 3.jpg", "burst 1.jpg"]
    capsys.readouterr()
    assert main(["duplicates", str(state)]) == 0
    assert "1 of a series" in capsys.readouterr().out
