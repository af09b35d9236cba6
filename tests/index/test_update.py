"""Keeping an index up to date with folders that change, and with an encoder that changes."""

import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from osiris.data.images import UndecodableImage, decode
from osiris.errors import UserError
from osiris.evaluation.embedder import EmbeddedBatch
from osiris.index import content, maps, update
from osiris.index.gallery import Gallery
from osiris.index.records import Version
from osiris.index.status import index_status
from osiris.index.store import Index
from pictures import picture, write_pictures

FIRST, SECOND = (Version(episode=episode, digest=str(episode) * 32) for episode in (1, 2))


class Encoder:
    """Projects the pixels; what it has embedded is in `seen`."""

    def __init__(self, turn: float = 0.0) -> None:
        random = torch.Generator().manual_seed(0)
        first, second = torch.randn(2, 300, 16, generator=random)
        self.weight, self.seen = first + turn * second, list[str]()
        self.before: Callable[[], object] = lambda: None

    def batches(
        self, read: Callable[[Sequence[int]], list[Any]], count: int, decode: Callable[[Any, int], np.ndarray] = decode
    ) -> Iterator[EmbeddedBatch]:
        for row in range(count):
            self.before()
            (path,) = read([row])
            self.seen.append(path.name)
            try:
                pixels = torch.from_numpy(decode(path, 10)).flatten().float() - 128
                yield EmbeddedBatch([row], (pixels @ self.weight)[None], {})
            except UndecodableImage as error:
                yield EmbeddedBatch([], torch.empty(0, 16), {row: error})


def run(index: Index, folders: Path | list[Path], encoder: Encoder, version: Version = FIRST, **named: Any):
    encoder.seen.clear()
    places = [folders] if isinstance(folders, Path) else folders
    return update.update(index, places, encoder, version, **named)  # pyright: ignore[reportArgumentType]


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    write_pictures(tmp_path / "photos", 6, seed=1)
    return tmp_path / "photos"


@pytest.fixture
def index(tmp_path: Path) -> Index:
    return Index(tmp_path / "state" / "index")


def test_only_new_and_changed_files_are_embedded(photos: Path, index: Index) -> None:
    encoder = Encoder()
    done = run(index, photos, encoder)
    assert done.new == 6 and len(encoder.seen) == 6
    picture(99).save(photos / "new.png")
    picture(98).save(photos / "2.png")
    (photos / "3.png").unlink()
    shutil.move(photos / "4.png", photos.parent / "4.png")
    done = run(index, photos, encoder)
    assert (done.new, done.changed, done.unchanged, done.gone) == (1, 1, 3, 2)
    assert sorted(encoder.seen) == ["2.png", "new.png"]
    status = index_status(Index(index.folder), FIRST)
    assert (status.images, status.gone) == (5, 2)
    shutil.move(photos.parent / "4.png", photos / "4.png")
    done = run(index, photos, encoder)
    assert done.unchanged == 6 and encoder.seen == [], "a file that has come back is not embedded again"
    assert (index_status(Index(index.folder), FIRST).images, done.gone) == (6, 1)


def contents(index: Index) -> dict[str, bytes]:
    """File that counts -> its vector."""
    parts = Index(index.folder).parts
    return {
        path: vector.tobytes()
        for part in parts
        for path, vector, live in zip(part.rows.paths.to_pylist(), part.rows.vectors, part.live.tolist())
        if live
    }


def test_files_that_were_moved_renamed_or_touched_are_found_by_their_content(photos: Path, index: Index) -> None:
    encoder = Encoder()
    run(index, photos, encoder)
    before = contents(index)
    (photos / "1.png").rename(photos / "renamed.png")
    (photos / "more").mkdir()
    (photos / "2.png").rename(photos / "more" / "2.png")
    os.utime(photos / "3.png", (1, 1))
    shutil.copy(photos / "4.png", photos / "more" / "copy.png")
    done = run(index, photos, encoder)
    assert encoder.seen == [], "nothing is embedded"
    assert (done.new, done.changed, done.gone, done.found, done.copies, done.unchanged) == (0, 0, 0, 3, 1, 3)
    now = contents(index)
    assert len(now) == 7 and not index_status(Index(index.folder), FIRST).gone
    for old, new in (("1.png", "renamed.png"), ("2.png", "more/2.png"), ("3.png", "3.png"), ("4.png", "more/copy.png")):
        assert now[str(photos / new)] == before[str(photos / old)]
    done = run(index, photos, encoder)
    assert (done.unchanged, done.found, encoder.seen) == (7, 0, [])


def test_many_copies_of_a_file_that_is_gone(photos: Path, index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than are written at once."""
    monkeypatch.setattr(content, "AT_ONCE", 2)
    encoder = Encoder()
    run(index, photos, encoder)
    for number in range(5):
        shutil.copy(photos / "1.png", photos / f"copy {number}.png")
    (photos / "1.png").unlink()
    done = run(index, photos, encoder)
    assert (encoder.seen, done.found, done.copies, len(contents(index))) == ([], 1, 4, 10)


def test_a_renamed_folder_is_not_embedded_again(photos: Path, index: Index) -> None:
    """Named alone, with its parent, and after the encoder has learned: the vectors stay those of their version."""
    encoder = Encoder()
    run(index, photos, encoder)
    before = sorted(contents(index).values())
    other = photos.rename(photos.parent / "2026-11")
    done = run(index, other, encoder)
    assert (encoder.seen, done.copies, done.found) == ([], 6, 0), "the old folder was not named, so nobody looked there"
    done = run(index, other.parent, encoder)
    assert (encoder.seen, done.gone, done.unchanged) == ([], 6, 6)
    last = other.rename(other.parent / "last")
    done = run(index, other.parent, encoder)
    assert (encoder.seen, done.found, done.copies) == ([], 6, 0)
    assert sorted(contents(index).values()) == before and {Path(path).parent for path in contents(index)} == {last}


def test_new_files_with_the_same_content_are_embedded_once(photos: Path, index: Index) -> None:
    for number in range(3):
        shutil.copy(photos / "4.png", photos / f"copy {number}.png")
    encoder = Encoder()
    done = run(index, photos, encoder)
    assert len(encoder.seen) == 6 and (done.new, done.copies) == (6, 3)
    assert len(contents(index)) == 9 and len(set(contents(index).values())) == 6


def test_other_content_of_the_same_size_is_embedded(tmp_path: Path, index: Index) -> None:
    (tmp_path / "flat").mkdir()
    for shade in range(2):
        Image.new("RGB", (10, 10), (shade, 0, 0)).save(tmp_path / "flat" / f"{shade}.bmp")
    encoder = Encoder()
    run(index, tmp_path / "flat", encoder)
    assert len(encoder.seen) == 2
    Image.new("RGB", (10, 10), (9, 0, 0)).save(tmp_path / "flat" / "9.bmp")
    assert run(index, tmp_path / "flat", encoder).new == 1 and encoder.seen == ["9.bmp"]


def test_folders_that_are_gone_are_shown(photos: Path, index: Index) -> None:
    write_pictures(photos / "2026-11", 2, seed=3)
    run(index, photos, Encoder())
    assert index_status(Index(index.folder), FIRST).missing == []
    shutil.rmtree(photos / "2026-11")
    status = index_status(Index(index.folder), FIRST)
    assert status.missing == [str(photos / "2026-11")]
    assert f"{photos}/2026-11 (`osiris forget STATE FOLDER` removes" in str(status)
    with index:
        index.forget([str(photos / "2026-11")])
        index.commit()
    assert index_status(Index(index.folder), FIRST).missing == []


def test_files_of_other_folders_stay_as_they_are(photos: Path, index: Index, tmp_path: Path) -> None:
    encoder = Encoder()
    write_pictures(tmp_path / "others", 3, seed=2)
    write_pictures(tmp_path / "photos 2", 2, seed=3)
    run(index, [photos, tmp_path / "others", tmp_path / "photos 2"], encoder)
    shutil.rmtree(tmp_path / "others")
    shutil.rmtree(tmp_path / "photos 2")
    assert run(index, [photos, photos], encoder).gone == 0
    assert index_status(Index(index.folder), FIRST).images == 11


def test_everything_that_was_left_out_is_counted(photos: Path, index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    (photos / "broken.png").write_bytes(b"not an image")
    (photos / "notes.txt").write_text("text")
    picture(9).save(photos / os.fsdecode(b"caf\xe9.png"))
    encoder = Encoder()
    encoder.before = lambda: (photos / "5.png").unlink(missing_ok=True)  # after the folder was listed
    done = run(index, photos, encoder)
    assert done.left_out == {"not UTF-8": 1, "cannot be decoded": 2} and done.new == 5
    said = " ".join(done.notices)
    for part in (
        "caf\udce9.png was left out: its name is not UTF-8",
        "broken.png was left out",
        "5.png was left out",
        "1 .txt",
    ):
        assert part in said
    assert index_status(Index(index.folder), FIRST).images == 5
    monkeypatch.setattr(update, "MOST_NAMED", 1)
    done = run(index, photos, encoder)
    assert done.notices[-1].startswith("1 more files were left out")
    assert (done.new, done.unchanged) == (0, 5), "a broken file is tried again, but is not new"


def test_a_changed_file_that_cannot_be_decoded_loses_its_vector(photos: Path, index: Index) -> None:
    run(index, photos, Encoder())
    (photos / "2.png").write_bytes(b"not an image any more")
    done = run(index, photos, Encoder())
    assert done.changed == 1 and "2.png was left out" in " ".join(done.notices)
    assert index_status(Index(index.folder), FIRST).images == 5
    assert run(index, photos, Encoder()).changed == 0
    picture(98).save(photos / "2.png")
    run(index, photos, Encoder())
    assert index_status(Index(index.folder), FIRST).images == 6


def test_features_that_are_not_finite_are_left_out(photos: Path, index: Index) -> None:
    encoder = Encoder()
    encoder.weight = encoder.weight * torch.nan
    assert run(index, photos, encoder).left_out == {"without finite features": 6}


def test_a_folder_without_images_makes_no_index(tmp_path: Path, index: Index) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="there are no images"):
        run(index, tmp_path / "empty", Encoder())
    assert not index.exists


def test_an_interruption_keeps_what_was_embedded(photos: Path, index: Index) -> None:
    encoder = Encoder()

    def interrupt() -> None:
        if len(encoder.seen) == 4:
            raise KeyboardInterrupt

    encoder.before = interrupt
    with pytest.raises(KeyboardInterrupt):
        run(index, photos, encoder)
    assert index_status(Index(index.folder), FIRST).images == 4
    encoder.before = lambda: None
    assert run(index, photos, encoder).new == 2


def test_a_kill_loses_little(photos: Path, index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was embedded is written in between."""
    monkeypatch.setattr(update, "COMMIT_ROWS", 2)
    encoder, found = Encoder(), list[int]()
    encoder.before = lambda: found.append(sum(len(part.rows) for part in Index(index.folder).parts))
    run(index, photos, encoder)
    assert found == [0, 0, 2, 2, 4, 4]


def expected_neighbours(folder: Path, encoder: Encoder, query: Path) -> list[str]:
    """By vectors of one encoder alone."""
    rows = {}
    for path in folder.iterdir():
        vector = (torch.from_numpy(decode(path, 10)).flatten().float() - 128) @ encoder.weight
        rows[path.name] = vector / vector.norm()
    return sorted(rows, key=lambda name: -float(rows[name] @ rows[query.name]))


@pytest.fixture
def many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """So many files that a sample is a part of them."""
    monkeypatch.setattr(maps, "SAMPLE", 60)
    monkeypatch.setattr(update, "SAMPLE", 60)
    monkeypatch.setattr(update, "FEWEST", 60)
    write_pictures(tmp_path / "many", 100, seed=5, size=(10, 10))
    return tmp_path / "many"


def test_after_an_episode_a_sample_is_embedded_and_the_others_are_mapped(many: Path, index: Index) -> None:
    old, new = Encoder(), Encoder(0.1)
    run(index, many, old)
    with pytest.raises(UserError, match="cannot be compared"):
        Gallery(Index(index.folder), SECOND)
    done = run(index, many, new, SECOND)
    assert done.again == len(new.seen) == 60 and done.unchanged == 100
    status = index_status(Index(index.folder), SECOND)
    assert [(one.episode, one.images, one.current) for one in status.versions] == [(1, 40, False), (2, 60, True)]
    found = status.versions[0].map
    assert found is not None and (found.pairs, found.gallery) == (60, 40) and found.recall > 0.5
    assert status.below(found.recall) == 0 and status.below(1.01) == 40
    assert f"recall@10 of about {found.recall:.2f} among 40 images (estimated from 12 of 60 images" in str(status)
    gallery = Gallery(Index(index.folder), SECOND)
    query = many / "7.png"
    vector = (torch.from_numpy(decode(query, 10)).flatten().float() - 128) @ new.weight
    _, rows = gallery.search((vector / vector.norm()).numpy()[None], 10)
    names = [Path(gallery.path(row)).name for row in rows[0].tolist()]
    assert len(set(names) & set(expected_neighbours(many, new, query)[:10])) >= 7
    assert run(index, many, new, SECOND).again == 0, "the map is there already"


def test_refresh_embeds_the_rest_and_can_be_stopped(many: Path, index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    run(index, many, Encoder())
    new, clock = Encoder(0.1), [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    new.before = lambda: clock.__setitem__(0, clock[0] + 1)
    done = run(index, many, new, SECOND, refresh=True, minutes=1.25)
    assert 75 <= done.again <= 77
    assert index_status(Index(index.folder), SECOND).versions[0].map is not None, "the rest is mapped"
    done = run(index, many, new, SECOND, refresh=True)
    status = index_status(Index(index.folder), SECOND)
    assert [(one.images, one.current) for one in status.versions] == [(100, True)]
    assert Index(index.folder).maps == [] and not list(index.folder.glob("map-*")), "no map is needed any more"


def test_few_files_are_all_embedded_again(photos: Path, index: Index) -> None:
    run(index, photos, Encoder())
    done = run(index, photos, Encoder(0.5), SECOND)
    assert done.again == 6 and len(Gallery(Index(index.folder), SECOND)) == 6


def test_a_map_serves_files_that_cannot_be_read_now(many: Path, index: Index, tmp_path: Path) -> None:
    """Those of folders that this call does not name."""
    write_pictures(tmp_path / "others", 20, seed=6)
    run(index, [many, tmp_path / "others"], Encoder())
    run(index, many, Encoder(0.1), SECOND, refresh=True)
    status = index_status(Index(index.folder), SECOND)
    assert [(one.images, one.map is not None) for one in status.versions] == [(20, True), (100, False)]


def test_images_of_the_memory_serve_where_files_are_gone(index: Index, tmp_path: Path, many: Path) -> None:
    write_pictures(tmp_path / "others", 20, seed=6)
    run(index, [many, tmp_path / "others"], Encoder())
    asked = list[Version]()

    def pairs(version: Version) -> tuple[np.ndarray, np.ndarray]:
        asked.append(version)
        values = np.random.default_rng(0).normal(size=(80, 16)).astype(np.float32)
        return values, values

    run(index, tmp_path / "others", Encoder(0.1), SECOND)
    assert index_status(Index(index.folder), SECOND).versions[0].map is None, "20 pairs are too few"
    run(index, tmp_path / "others", Encoder(0.1), SECOND, memory_pairs=pairs)
    found = index_status(Index(index.folder), SECOND).versions[0]
    assert asked == [FIRST] and found.map is not None and found.map.pairs == 80


def test_the_same_weights_after_another_episode_are_the_same_version(photos: Path, index: Index) -> None:
    """An episode that was refused leaves the encoder as it was."""
    encoder = Encoder()
    run(index, photos, encoder)
    run(index, photos, encoder, Version(episode=2, digest=FIRST.digest))
    assert encoder.seen == []


def test_paths_of_the_index_are_not_opened(
    photos: Path, index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also after an episode: a received index may name any file."""
    secret = write_pictures(tmp_path / "secret", 5, seed=8)
    run(index, [photos, tmp_path / "secret"], Encoder())
    opened = list[str]()
    monkeypatch.setattr(
        os, "stat", lambda path, *a, stat=os.stat, **b: (opened.append(str(path)), stat(path, *a, **b))[1]
    )
    new = Encoder(0.1)
    run(index, photos, new, SECOND, refresh=True)
    assert sorted(new.seen) == [f"{n}.png" for n in range(6)]
    assert not {str(path) for path in secret} & set(opened) and str(photos / "1.png") in opened


def test_a_long_update_is_announced(
    photos: Path, index: Index, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(index, photos, Encoder())
    assert "Ctrl-C keeps" not in capsys.readouterr().err
    monkeypatch.setattr(update, "WORTH_SAYING", 0.0)
    write_pictures(photos / "more", 3, seed=8)
    run(index, photos, Encoder())
    assert "3 images: about 0 s. Ctrl-C keeps what is done" in capsys.readouterr().err
