"""An index follows what its encoder learns: a readout exactly and at once, other encoders with the next search."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from osiris.cli import main
from osiris.data.images import ArrayImages
from osiris.errors import UserError
from osiris.index.store import Index
from osiris.learner import Learner, indexed
from pictures import write_pictures
from tiny_runs import benchmark, config, pictures, train

OPTIONS: dict[str, Any] = {"image_size": 16, "memory_size": 8, "epochs": 1, "batch_size": 8}


def readout(path: Path, seed: int) -> Path:
    """Runs of different seeds have the same frozen network, and have seen different images."""
    data = benchmark()
    split = replace(data.train, images=ArrayImages(255 - pictures(14, seed)[0] // seed))
    train(config("readout"), path, replace(data, train=split, bank=split))
    return path


@pytest.fixture(scope="module")
def states(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A state with a readout, and what it is after other images."""
    folder = tmp_path_factory.mktemp("readout")
    return readout(folder / "before", 1), readout(folder / "after", 3)


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A state that learns by gradients, and the same after one more episode."""
    folder = tmp_path_factory.mktemp("taught")
    Learner(folder / "before", "ft", "smoke", **OPTIONS).observe(pictures(4, seed=1)[0])
    shutil.copytree(folder / "before", folder / "after")
    Learner(folder / "after").observe(pictures(4, seed=9)[0])
    return folder / "before", folder / "after"


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    write_pictures(tmp_path / "photos", 40, seed=1)
    return tmp_path / "photos"


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OSIRIS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "state"


def becomes(state: Path, other: Path) -> None:
    """What a state has learned changes; its index stays."""
    if (state / "index").exists():
        shutil.move(state / "index", state.parent / "index")
        shutil.rmtree(state)
    shutil.copytree(other, state)
    if (state.parent / "index").exists():
        shutil.move(state.parent / "index", state / "index")


def found(state: Path, query: Path) -> list[tuple[str, float]]:
    return [(hit.path.name, round(hit.similarity, 5)) for hit in Learner(state).search(query, count=40).hits]


def test_a_readout_is_followed_at_once(states: tuple[Path, Path], photos: Path, state: Path, tmp_path: Path) -> None:
    """After an episode, and after it was taken back: search is that of a new index, and nothing is embedded."""
    before, after = states
    becomes(state, before)
    query = write_pictures(tmp_path / "query", 1, seed=77)[0]
    Learner(state).index(photos)
    kept = {file.name: file.read_bytes() for file in (state / "index").glob("*.arrow")}
    first = found(state, query)
    becomes(state, after)
    answer = Learner(state).search(query, count=40)
    assert answer.notices == [] and answer.searched == 40
    assert Learner(state).index(photos).again == 0
    assert {file.name: file.read_bytes() for file in (state / "index").glob("*.arrow")} == kept
    becomes(tmp_path / "fresh" / "state", after)
    Learner(tmp_path / "fresh" / "state").index(photos)
    assert found(state, query) == found(tmp_path / "fresh" / "state", query) != first
    becomes(state, before)
    assert found(state, query) == first


def test_search_through_a_readout_is_that_of_embedded_images(
    states: tuple[Path, Path], photos: Path, state: Path
) -> None:
    """Although vectors are kept in half precision."""
    becomes(state, states[0])
    learner, paths = Learner(state), sorted(photos.iterdir())
    learner.index(photos)
    (part,) = Index(state / "index").parts
    assert part.rows.vectors.dtype == np.float16
    rows = learner.embed(paths)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    for number in (3, 17):
        hits = learner.search(paths[number], count=40).hits
        assert hits[0].path == paths[number]
        for hit in hits:
            assert hit.similarity == pytest.approx(float(rows[paths.index(hit.path)] @ rows[number]), abs=5e-3)


def test_numbers_that_half_precision_cannot_hold_are_kept_whole(states: tuple[Path, Path]) -> None:
    newest = Learner(states[0])._newest()
    features = torch.rand(5, sum(newest.embedder.encoder.layers.sizes))  # pyright: ignore
    assert newest.as_kept(features).dtype == np.float16
    for factor in (1e-7, 1e6):
        scaled = features.clone()
        scaled[:, :8] *= factor
        np.testing.assert_array_equal(newest.as_kept(scaled), scaled.numpy())


def test_search_brings_a_small_index_up_to_date(
    taught: tuple[Path, Path], photos: Path, state: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, after = taught
    becomes(state, before)
    Learner(state).index(photos)
    becomes(state, after)
    capsys.readouterr()
    assert main(["search", str(state), str(photos / "5.png"), "--json"]) == 0
    said = capsys.readouterr()
    assert "40 images were embedded again, because the encoder has learned more" in said.err
    becomes(tmp_path / "fresh" / "state", after)
    Learner(tmp_path / "fresh" / "state").index(photos)
    names = [Path(hit["path"]).name for hit in json.loads(said.out)["hits"]]
    assert names == [name for name, _ in found(tmp_path / "fresh" / "state", photos / "5.png")][:12]
    assert Learner(state).search(photos / "5.png").notices == []


def test_search_opens_only_files_of_folders_that_were_named_here(
    taught: tuple[Path, Path], photos: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An index that was received is searched by the encoder that made it."""
    before, after = taught
    becomes(state, before)
    Learner(state).index(photos)
    first = found(state, photos / "5.png")
    becomes(state, after)
    monkeypatch.setenv("OSIRIS_CACHE", str(state.parent / "another machine"))
    answer = Learner(state).search(photos / "5.png", count=40)
    assert [(hit.path.name, round(hit.similarity, 5)) for hit in answer.hits] == first
    assert "this is by the encoder after episode 1, not by the newest one" in answer.notices[-1]
    assert {part.version.episode for part in Index(state / "index").parts} == {1}
    assert "embedded again" in Learner(state).search(photos / "5.png", photos).notices[0]


def test_search_reads_while_another_process_updates(taught: tuple[Path, Path], photos: Path, state: Path) -> None:
    before, after = taught
    becomes(state, before)
    Learner(state).index(photos)
    first = found(state, photos / "5.png")
    becomes(state, after)
    with Index(state / "index"):
        answer = Learner(state).search(photos / "5.png", count=40)
    assert [(hit.path.name, round(hit.similarity, 5)) for hit in answer.hits] == first
    assert "the index stays as it is: " in answer.notices[0] and "is in use by process" in answer.notices[0]


def test_what_cannot_be_compared_is_left_out_and_counted(
    taught: tuple[Path, Path], photos: Path, state: Path, tmp_path: Path
) -> None:
    """Only if nothing can be compared, and the earlier weights are gone too, there is no answer."""
    before, after = taught
    becomes(state, before)
    gone, query = tmp_path / "gone", Path(shutil.copy(photos / "5.png", tmp_path / "query.png"))
    write_pictures(gone, 5, seed=6)
    Learner(state).index([photos, gone])
    becomes(state, after)
    shutil.rmtree(gone)
    answer = Learner(state).search(query, count=99)
    assert answer.searched == 40 and "5 images of the index are of another encoder" in answer.notices[-1]
    with Index(state / "index") as index:
        index.forget([str(photos)])
        index.commit()
    assert Learner(state).search(query).searched == 5, "by the encoder before"
    next((state / "episodes").glob("01-*/weights.safetensors")).unlink()
    with pytest.raises(UserError, match="5 vectors of the index are of the encoder after episode 1, which cannot"):
        Learner(state).search(query)


@pytest.mark.parametrize("command", ["index", "search", "novel"])
def test_an_episode_that_ends_meanwhile_is_noticed(
    command: str, taught: tuple[Path, Path], photos: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Right after the encoder was read; vectors have the version of the encoder that made them."""
    before, after = taught
    becomes(state, before)
    learner, read = Learner(state), Learner._newest
    learner.index(photos)
    write_pictures(photos / "more", 3, seed=5)
    begun = learner._compared().version

    def then_it_learns(self: Learner) -> Any:
        newest = read(self)
        becomes(state, after)
        return newest

    monkeypatch.setattr(Learner, "_newest", then_it_learns)
    if command == "index":
        notices = learner.index(photos).notices
        assert {part.version.digest for part in Index(state / "index").parts} == {begun.digest}
    else:
        notices = learner.search(photos / "5.png").notices if command == "search" else learner.novel(photos)[1]
    assert "has learned meanwhile" in notices[-1]


def test_weights_that_are_replaced_while_they_are_read_are_read_again(
    taught: tuple[Path, Path], state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The encoder and its version are of one moment."""
    before, after = taught
    becomes(state, before)
    weights = next((state / "episodes").glob("01-*/weights.safetensors"))
    other, read = next((after / "episodes").glob("02-*/weights.safetensors")), indexed.read_compared

    def then_replaced(*arguments: Any) -> Any:
        known = read(*arguments)
        monkeypatch.undo()
        weights.with_name("new").write_bytes(other.read_bytes())
        weights.with_name("new").replace(weights)
        return known

    monkeypatch.setattr("osiris.index.newest.read_compared", then_replaced)
    newest, expected = Learner(state)._newest(), Learner(after)._newest()
    assert newest.version.digest == expected.version.digest
    mine, theirs = (one.embedder.encoder.state_dict() for one in (newest, expected))
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)
