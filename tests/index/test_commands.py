"""`osiris index`, `search`, `duplicates`, `novel`: what they print, refuse and leave behind, whatever happens."""

import json
import os
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.ipc
import pytest
from PIL import Image

import fork_server
from osiris.cli import main
from osiris.data import images as decoding
from osiris.index.store import Index
from osiris.learner import Learner
from pictures import picture, write_pictures
from tiny_runs import pictures

OPTIONS: dict[str, Any] = {"image_size": 16, "memory_size": 8, "epochs": 1, "batch_size": 8}


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("learner") / "state"
    Learner(path, "ft", "smoke", **OPTIONS).observe(pictures(4, seed=1)[0])
    return path


@pytest.fixture(scope="module")
def learned_twice(learned: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("learner") / "state"
    shutil.copytree(learned, path)
    Learner(path).observe(pictures(4, seed=9)[0])
    return path


@pytest.fixture
def state(learned: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(learned, tmp_path / "state"))


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    write_pictures(tmp_path / "photos", 8, seed=1)
    shutil.copy(tmp_path / "photos" / "3.png", tmp_path / "photos" / "3 copy.png")
    return tmp_path / "photos"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")


def shown(capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    captured = capsys.readouterr()
    return captured.out, " ".join(captured.err.split())


def indexed(state: Path) -> list[str]:
    return sorted(
        Path(path).name
        for part in Index(state / "index").parts
        for path, live in zip(part.rows.paths.to_pylist(), part.live.tolist())
        if live
    )


def test_what_people_do_with_it(state: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["index", str(state), str(photos)]) == 0
    out, _ = shown(capsys)
    assert "8 new, 1 copies of known files" in out
    assert "index: 9 images; 9 of the encoder after episode 1 (the current one)" in out
    vectors = np.concatenate([part.rows.vectors for part in Index(state / "index").parts])
    features = Learner(state).embed([photos / name for name in sorted(os.listdir(photos))])  # noqa: PTH208
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    assert {tuple(row) for row in vectors.round(3).tolist()} == {
        tuple(row) for row in (features / np.linalg.norm(features, axis=1, keepdims=True)).round(3).tolist()
    }

    assert main(["search", str(state), str(photos / "5.png"), "--count", "3", "--json"]) == 0
    found = json.loads(shown(capsys)[0])
    assert found["searched"] == 9 and len(found["hits"]) == 3 and found["hits"][0]["path"] == str(photos / "5.png")
    assert main(["search", str(state), str(photos / "5.png"), "--count", "3"]) == 0
    assert not list(Path().iterdir()), "no folder is named, so no file is opened and there is no sheet"
    assert main(["search", str(state), str(photos), str(photos / "5.png")]) == 0
    assert Path("search.png").exists()

    assert main(["duplicates", str(state), str(photos)]) == 0
    assert "1 of the same bytes" in (out := shown(capsys)[0]) and "; 1 images could go" in out
    assert Path("duplicates.png").exists()
    assert main(["duplicates", str(state), "--json"]) == 0
    groups = json.loads(shown(capsys)[0])["groups"]
    assert {Path(hit["path"]).name for hit in groups[0]["images"]} == {"3.png", "3 copy.png"}

    Image.fromarray(np.zeros((20, 20, 3), np.uint8)).save(photos / "black.png")
    assert main(["novel", str(state), str(photos), "--count", "20", "--json"]) == 0
    images = json.loads(shown(capsys)[0])["images"]
    assert len(images) == 10 and [one["similarity"] for one in images] == sorted(one["similarity"] for one in images)
    assert Path(images[0]["path"]).name == "black.png" and images[-1]["similarity"] == pytest.approx(1, abs=1e-5)
    assert all(one["path"] != one["nearest"] for one in images), "an image of the index is compared with the others"
    assert main(["novel", str(state), str(photos)]) == 0 and Path("novel.png").exists()
    shown(capsys)
    assert main(["status", str(state)]) == 0
    assert "index: 9 images" in shown(capsys)[0]
    assert main(["index", str(state), str(photos), "--json"]) == 0
    assert json.loads(shown(capsys)[0])["done"]["new"] == 1


def test_without_an_index(state: Path, photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["search", str(state), str(photos), str(photos / "5.png")]) == 0
    assert "9 images were embedded for this search; osiris index STATE FOLDER keeps" in shown(capsys)[1]
    for command in (["search", "{}", str(photos / "5.png")], ["duplicates", "{}"], ["novel", "{}", str(photos)]):
        assert main([part.format(state) for part in command]) == 2
        assert "has no index" in shown(capsys)[1]
    assert not (state / "index").exists()


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["index", "{state}"], "name the folders of the images"),
        (["index", "{state}", "{photos}/nowhere"], "is not a folder of images"),
        (["index", "{state}", "{photos}", "--recall", "2"], "--recall 2.0: give a number from 0 to 1"),
        (["index", "{state}", "{photos}", "--minutes", "0"], "--minutes 0.0: give a positive number"),
        (["index", "{photos}", "{photos}"], "has not finished an episode yet"),
        (["search", "{state}"], "give the image to search for"),
        (["search", "{state}", "{photos}"], "is not a file; give the image"),
        (["search", "{state}", "{photos}/1.png", "--out", "s.png"], "name the folders of the images too"),
        (["search", "{state}", "{photos}", "{photos}/1.png", "--out", "s.txt"], "use a name that ends in .png"),
        (["novel", "{state}", "{photos}", "--count", "0"], "--count 0: give a positive number"),
    ],
)
def test_refusals(
    command: list[str], message: str, learned: Path, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([part.format(state=learned, photos=photos) for part in command]) == 2
    assert message in shown(capsys)[1]
    assert not (learned / "index").exists() and not (photos / "index").exists()


def test_after_an_episode(learned_twice: Path, state: Path, photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The vectors of the state before are not compared with new ones until they are brought up to date."""
    assert main(["index", str(state), str(photos)]) == 0
    shutil.copytree(state / "index", learned_twice / "index")
    shown(capsys)
    assert main(["status", str(learned_twice)]) == 0
    assert "after episode 1, which cannot be compared" in shown(capsys)[0]
    assert main(["index", str(learned_twice), str(photos)]) == 0
    out, _ = shown(capsys)
    assert "9 embedded again" in out and "9 of the encoder after episode 2 (the current one)" in out
    hits = Learner(learned_twice).search(photos / "5.png").hits
    assert hits[0].path == photos / "5.png" and hits[0].similarity == pytest.approx(1, abs=1e-5)


def test_images_of_the_memory_make_a_map(
    learned_twice: Path, state: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Vectors of both encoders, as long as the weights of the earlier one are there."""
    old, new = Learner(state), Learner(learned_twice)
    before = new._memory_pairs(old._compared().version)
    assert before is not None
    held = new._state().memory.images.numpy().transpose(0, 2, 3, 1)
    for learner, vectors in zip((old, new), before):
        features = learner.embed(held)
        np.testing.assert_allclose(vectors, features / np.linalg.norm(features, axis=1, keepdims=True), atol=1e-5)
    assert Learner(state)._memory_pairs(new._compared().version) is None


def test_forget_reaches_the_index(state: Path, photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["index", str(state), str(photos)])
    (photos / "2.png").unlink()
    for name, known in (("1.png", 1), ("2.png", 1)):
        assert main(["forget", str(state), str(photos / name)]) == 0
        assert f"{known} file(s) were removed from the index" in shown(capsys)[1]
        assert name not in indexed(state)
    assert len(indexed(state)) == 7
    assert not any(b"/1.png" in file.read_bytes() for file in (state / "index").iterdir())
    assert main(["forget", str(state), str(photos / "2.png")]) == 2


def test_killed_at_any_moment(state: Path, photos: Path, tmp_path: Path) -> None:
    """The index holds what it held before, or that and the new files; the next call completes it."""
    output, counted = tmp_path / "output", tmp_path / "counted"
    typed = ["index", str(state), str(photos)]
    assert main(typed) == 0
    old = indexed(state)
    for number in (1, 2):
        picture(50 + number).save(photos / f"new {number}.png")
    (photos / "0.png").unlink()
    shutil.copytree(state, tmp_path / "copy")
    assert fork_server.run("doomed", output, arguments=typed, death=None, counted=str(counted), moves=True) == 0
    new, moments = indexed(state), int(counted.read_text())
    assert moments >= 4 and {*new} == {*old, "new 1.png", "new 2.png"} - {"0.png"}
    for death in range(1, moments + 1):
        shutil.rmtree(state)
        shutil.copytree(tmp_path / "copy", state)
        assert fork_server.run("doomed", output, arguments=typed, death=death, moves=True) == -signal.SIGKILL
        assert set(indexed(state)) in ({*old}, {*old} - {"0.png"}, {*new})
        assert main(typed) == 0 and indexed(state) == new
        assert len(list((state / "index").glob("*.arrow"))) == len(Index(state / "index").parts)


def test_a_full_disk_is_one_line_and_the_old_index_stays(state: Path, photos: Path, tmp_path: Path) -> None:
    output, typed = tmp_path / "output", ["index", str(state), str(photos)]
    assert fork_server.run("full", output, arguments=typed, most=600) == 2
    assert "Make room, or choose another path." in output.read_text() and "Traceback" not in output.read_text()
    assert not Index(state / "index").exists
    assert main(typed) == 0
    before = indexed(state)
    picture(50).save(photos / "new.png")
    assert fork_server.run("full", output, arguments=typed, most=600) == 2
    assert indexed(state) == before and not list((state / "index").glob(".*.tmp"))
    assert main(typed) == 0 and "new.png" in indexed(state)


def test_two_processes(state: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The second is told who is at work; a search sees the index as it was."""
    assert main(["index", str(state), str(photos)]) == 0
    with Index(state / "index"):
        assert main(["index", str(state), str(photos)]) == 2
        assert f"index is in use by process {os.getpid()}" in shown(capsys)[1]
        assert main(["forget", str(state), str(photos / "1.png")]) == 2
        assert main(["search", str(state), str(photos / "5.png")]) == 0
    write_pictures(photos / "more", 40, seed=4)
    typed = ["index", str(state), str(photos)]
    both = [fork_server.start("command", tmp_path / f"output {n}", arguments=typed) for n in range(2)]
    while any(process.exitcode is None for process in both):
        assert len(indexed(state)) >= 9, "a reader always finds a whole index"
        time.sleep(0.02)
    codes = sorted(fork_server.wait(process) or 0 for process in both)
    assert codes in ([0, 0], [0, 2]) and len(indexed(state)) == 49


def test_a_received_index_is_data(
    state: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Paths that it names are not opened, and names cannot control the terminal."""
    secret = write_pictures(tmp_path / "secret", 1, seed=7)[0]
    main(["index", str(state), str(photos)])
    part, _ = Index(state / "index").parts
    names = [str(secret), f"{photos}/../secret/0.png", f"{photos}/\x1b[31m<b>.png", f"{photos}/1.png"]
    with Index(state / "index") as index:
        index.forget([str(photos)])
        index.append(part.version, names, np.zeros((4, 2), np.int64), part.rows.vectors[:4])
    opened = list[Path]()
    monkeypatch.setattr(decoding, "_open", lambda path, real=decoding._open: (opened.append(path), real(path))[1])
    shown(capsys)
    assert main(["search", str(state), str(photos), str(photos / "5.png"), "--out", "s.png"]) == 0
    out, err = shown(capsys)
    assert "\x1b[31m" not in out + err and "<b>.png" in out
    assert set(opened) <= {photos / "5.png", photos / "1.png", Path(f"{photos}/\x1b[31m<b>.png")}
    assert main(["index", str(state), str(photos), "--refresh"]) == 0
    assert main(["duplicates", str(state)]) == 0
    assert not [path for path in opened if "secret" in str(path)]


def test_undoing_the_first_episode_removes_the_index(state: Path, photos: Path) -> None:
    main(["index", str(state), str(photos)])
    Learner(state).undo()
    assert not state.exists()
    assert Learner(state).index_status() is None


def test_other_tools_read_a_part(state: Path, photos: Path) -> None:
    main(["index", str(state), str(photos)])
    part, _ = Index(state / "index").parts
    table = pyarrow.ipc.open_file(str(state / "index" / part.name)).read_all()
    assert table.num_rows == 8 and table.schema.field("vector").type.list_size == part.rows.vectors.shape[1]
    frame = table.to_pandas()
    assert frame["mtime"].dt.year.min() >= 2020 and len(frame["vector"][0]) == part.rows.vectors.shape[1]
