"""`osiris data` as a user types it."""

import shutil
from pathlib import Path

import pytest
from PIL import Image

from osiris.cli import main
from osiris.data.cache import VERSION
from osiris.data.config import BenchmarkConfig
from osiris.data.load import episode_from, is_at_hand, load_benchmark
from pictures import write_pictures


@pytest.fixture(autouse=True)
def cache_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OSIRIS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    root = tmp_path / "photos"
    for seed, (episode, name) in enumerate([("[one]", "cat"), ("[one]", "dog"), ("two", "cat")]):
        write_pictures(root / episode / name, 5, seed)
    return root


def test_what_it_prints(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", f"folder:{photos}"]) == 0
    output = capsys.readouterr()
    assert "1 [one]" in output.out and "cat, dog" in output.out
    assert "20x20, 12 train, 3 test" in output.out and "(verified)" not in output.out
    assert "a fifth of each class" in output.err
    assert main(["data", f"folder:{photos / 'two' / 'cat'}"]) == 0
    assert "without labels accuracy cannot be computed" in capsys.readouterr().out


def test_damage_in_the_cache_is_found_and_repaired(
    photos: Path, cache_directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["data", f"folder:{photos}"]) == 0
    (images,) = cache_directory.glob("*/images.bin")
    whole = images.read_bytes()
    images.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert main(["data", f"folder:{photos}", "--verify"]) == 0
    output = capsys.readouterr()
    assert "is damaged" in " ".join(output.err.split()) and "(verified)" in output.out
    assert images.read_bytes() == whole


def test_clean_removes_what_is_not_needed_any_more(
    photos: Path, tmp_path: Path, cache_directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def entries() -> set[str]:
        return {path.name for path in cache_directory.iterdir() if path.is_dir()}

    def load(folder: Path) -> str:
        location = load_benchmark(BenchmarkConfig(f"folder:{folder}")).location
        assert location is not None
        return location.name

    removed = tmp_path / "removed"
    write_pictures(removed / "a", 3, 5)
    stale = {load(removed): "does not exist any more", load(photos): "has changed since"}
    write_pictures(photos / "three" / "cat", 5, 9)
    needed = load(photos)
    episode = episode_from(photos, "week 1").location
    old = episode_from(photos, "week 2").location
    assert episode is not None and old is not None
    text = (old / "manifest.json").read_text()
    (old / "manifest.json").write_text(text.replace(f'"version": {VERSION}', '"version": 0'))
    stale |= {episode.name: "made for one call of observe", old.name: "written by another version"}
    shutil.rmtree(removed)
    assert entries() == {needed, *stale}
    assert main(["data", "--clean"]) == 0
    output = capsys.readouterr().out
    for name, reason in stale.items():
        assert any(name in line and reason in line for line in output.splitlines()), (name, output)
    assert entries() == {needed} and "4 entries" in output
    assert load(photos) == needed
    assert main(["data"]) == 2 and "name a benchmark" in capsys.readouterr().err


def test_a_received_config_does_not_get_a_folder_decoded(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports load the images of a run only where `is_at_hand` says so."""
    config = BenchmarkConfig(f"folder:{photos}")
    with monkeypatch.context() as patch:
        patch.setattr("osiris.data.dataset.decode_all", lambda *_: pytest.fail("images were decoded"))
        assert not is_at_hand(config) and not is_at_hand(BenchmarkConfig(f"arrays:{photos / 'private.txt'}"))
    load_benchmark(config)
    assert is_at_hand(config) and is_at_hand(BenchmarkConfig("tinyworld"))


def test_contact_sheets(photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "sheets"
    assert main(["data", f"folder:{photos}", "--show", "--out", str(out)]) == 0
    sheets = sorted(out.iterdir())
    assert [sheet.name.rsplit("-", 2)[1:] for sheet in sheets] == [["task", "01.png"], ["task", "02.png"]]
    first, second = (Image.open(sheet) for sheet in sheets)
    assert first.height > second.height, "two classes against one"
