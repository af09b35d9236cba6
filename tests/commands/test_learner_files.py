"""`osiris embed`, `search` and `export` where something is wrong with the files that they read or write."""

import os
import shutil
import signal
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
from PIL import Image

import fork_server
from osiris.cli import main
from osiris.evaluation.embedder import Embedder
from osiris.learner import Learner
from tiny_runs import pictures


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("learner") / "state"
    Learner(path, "ft", "smoke", image_size=16, memory_size=8, epochs=1, batch_size=8).observe(pictures(4, seed=1)[0])
    return path


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    folder.mkdir()
    for number, image in enumerate(pictures(4, seed=2)[0]):
        Image.fromarray(image.transpose(1, 2, 0)).save(folder / f"{number:02d}.png")
    return folder


def embedded(path: Path) -> list[str]:
    """The names of the files in a table of features."""
    return [Path(name).name for name in pyarrow.parquet.read_table(path).column("path").to_pylist()]


def test_a_name_that_is_not_utf8_is_left_out_and_named(
    state: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(photos / "00.png", photos / os.fsdecode(b"caf\xe9.png"))
    out = tmp_path / "f.parquet"
    assert main(["embed", str(state), str(photos), "--out", str(out)]) == 0
    assert embedded(out) == [f"{number:02d}.png" for number in range(24)]
    assert "caf\\udce9.png was left out: its name is not UTF-8" in capsys.readouterr().err
    vectors = np.array(pyarrow.parquet.read_table(out).column("vector").to_pylist(), dtype=np.float32)
    np.testing.assert_array_equal(vectors, Learner(state).embed([photos / name for name in embedded(out)]))
    assert main(["search", str(state), str(photos), str(photos / "00.png"), "--out", str(tmp_path / "s.png")]) == 0


@pytest.mark.parametrize("name", ["e.csv", "e.npz", "e"])
def test_another_format_than_parquet_is_refused(
    name: str, state: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["embed", str(state), str(photos), "--out", str(tmp_path / name)]) == 2
    assert "use a name that ends in .parquet" in capsys.readouterr().err and not (tmp_path / name).exists()


def test_a_pipe_is_not_read(
    state: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo(tmp_path / "pipe.png")
    assert main(["embed", str(state), str(tmp_path / "pipe.png")]) == 2
    assert main(["search", str(state), str(photos), str(tmp_path / "pipe.png")]) == 2
    assert main(["forget", str(state), str(tmp_path / "pipe.png")]) == 2
    told = capsys.readouterr().err.strip().splitlines()
    assert "pipe.png was left out: it is not a file" in told[0] and len(told) == 3
    assert "pipe.png is not a file; give the image" in told[1]
    assert "pipe.png cannot be looked for in the memory: it is not a file" in told[2]


@pytest.mark.parametrize(
    ("command", "out"),
    [
        (["embed", "{state}", "{photos}"], "f.parquet"),
        (["search", "{state}", "{photos}", "{photos}/00.png", "--count", "3"], "s.png"),
        (["search", "{state}", "{photos}", "{photos}/00.png", "--count", "3"], "s.jpg"),
        (["export", "{state}"], "safetensors"),
        (["export", "{state}", "--format", "torchscript"], "torchscript"),
        (["export", "{state}", "--format", "onnx"], "onnx"),
    ],
)
def test_a_full_disk_is_one_line_and_the_old_output_stays(
    command: list[str], out: str, state: Path, photos: Path, tmp_path: Path
) -> None:
    if out == "onnx":
        pytest.importorskip("onnxruntime")
    output, place = tmp_path / "output", tmp_path / out
    typed = [part.format(state=state, photos=photos) for part in command] + ["--out", str(place)]
    assert fork_server.run("full", output, arguments=typed, most=4000) == 2, output.read_text()
    assert "Make room, or choose another path." in output.read_text() and "Traceback" not in output.read_text()
    assert not place.is_file() and not (place.is_dir() and list(place.iterdir()))
    assert main(typed) == 0

    def written() -> dict[Path, bytes]:
        files = [place] if place.is_file() else list(place.rglob("*"))
        return {path: path.read_bytes() for path in files}

    before = written()
    assert before and fork_server.run("full", output, arguments=typed, most=4000) == 2
    assert written() == before


def test_embed_killed_at_any_moment_leaves_the_old_table_or_the_new_one(
    state: Path, photos: Path, tmp_path: Path
) -> None:
    out, output, counted = tmp_path / "f.parquet", tmp_path / "output", tmp_path / "counted"
    typed = ["embed", str(state), str(photos), "--out", str(out)]
    assert fork_server.run("doomed", output, arguments=typed, death=None, counted=str(counted), moves=True) == 0
    old, new = embedded(out), [f"{number:02d}.png" for number in range(1, 24)]
    (photos / "00.png").unlink()
    moments = range(1, int(counted.read_text()) + 1)
    assert len(moments) >= 2, "before and after the file moves into its place"
    for death in moments:
        assert fork_server.run("doomed", output, arguments=typed, death=death, moves=True) == -signal.SIGKILL
        assert embedded(out) == (new if death == moments[-1] else old)
    assert fork_server.run("command", output, arguments=typed) == 0 and embedded(out) == new


def test_a_folder_that_changes_while_it_is_read(
    state: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """After its files were listed: one is removed, one is overwritten, one arrives, one becomes a folder."""
    embed = Embedder.__call__

    def changing(self: Embedder, *given: object, **named: bool):
        (photos / "03.png").unlink(missing_ok=True)
        (photos / "05.png").write_bytes(b"half an im")
        shutil.copy(photos / "00.png", photos / "new.png")
        (photos / "07.png").unlink()
        (photos / "07.png").mkdir()
        return embed(self, *given, **named)  # pyright: ignore[reportArgumentType]

    with monkeypatch.context() as patch:
        patch.setattr(Embedder, "__call__", changing)
        assert main(["embed", str(state), str(photos), "--out", str(tmp_path / "f.parquet")]) == 0
    told = capsys.readouterr().err
    assert embedded(tmp_path / "f.parquet") == [f"{n:02d}.png" for n in range(24) if n not in (3, 5, 7)]
    assert all(f"{number}.png was left out" in told for number in ("03", "05", "07")) and "new" not in told

    def removing(self: Learner, *given: Path):
        found = search(self, *given)  # pyright: ignore[reportArgumentType]
        shutil.rmtree(photos)
        return found

    search = Learner.search
    monkeypatch.setattr(Learner, "search", removing)
    assert main(["search", str(state), str(photos), str(photos / "00.png"), "--out", str(tmp_path / "s.png")]) == 0
    assert "cannot be read any more" in capsys.readouterr().err and (tmp_path / "s.png").exists()
    assert main(["embed", str(state), str(photos), "--out", str(tmp_path / "g.parquet")]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1 and not (tmp_path / "g.parquet").exists()
