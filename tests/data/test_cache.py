"""The cache: entries are written once and completely, damage is detected, and a run works without a usable cache."""

import errno
import multiprocessing
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from osiris.data import cache, dataset
from osiris.data.benchmark import Benchmark
from osiris.data.config import BenchmarkConfig
from osiris.data.load import load_benchmark
from osiris.data.source import Source
from osiris.errors import UserError
from osiris.files import cache_directory
from pictures import write_pictures


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for seed, name in enumerate(("cat", "dog")):
        write_pictures(tmp_path / "photos" / "a" / name, 5, seed)
    return tmp_path / "photos"


def load(folder: Path) -> Benchmark:
    return load_benchmark(BenchmarkConfig(f"folder:{folder}"))


def pixels(benchmark: Benchmark) -> torch.Tensor:
    return benchmark.train.images.take(torch.arange(len(benchmark.train)))


def entries(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir() if not path.name.endswith(".lock"))


def forbid_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataset, "decode_all", lambda *_: pytest.fail("decoded again"))


def test_decoded_once_then_memory_mapped(photos: Path, cache_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = load(photos)
    forbid_decoding(monkeypatch)
    again = load(photos)
    assert again.location == first.location and entries(cache_directory) == [first.location.name]  # type: ignore[union-attr]
    assert torch.equal(pixels(first), pixels(again)) and first.checksum == again.checksum
    assert first.contents == again.contents
    assert isinstance(again.train.images.source.array, np.memmap)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("file", "damage", "message"),
    [
        ("images.bin", lambda content: content[:-1], "bytes instead of"),
        ("images.bin", lambda content: bytes(255 - byte for byte in content), "has changed"),
        ("rows.npz", lambda content: content[:-300] + b"\x01" + content[-299:], "labels in rows.npz have changed"),
        ("manifest.json", lambda content: b"{}", "damaged"),
        ("manifest.json", lambda content: b"", "damaged"),
        ("manifest.json", lambda content: content.replace(b"notices", b"notibes"), "damaged"),
        ("manifest.json", lambda content: content.replace(b"origin", b"nrigin"), "damaged"),
    ],
)
def test_damage_is_found_when_an_entry_is_opened(
    photos: Path, capsys: pytest.CaptureFixture[str], file: str, damage, message: str
) -> None:
    before = load(photos)
    assert before.location is not None
    path, whole = before.location / file, pixels(before)
    path.write_bytes(damage(path.read_bytes()))
    after = load(photos)
    assert message in " ".join(capsys.readouterr().err.split())
    assert after.checksum == before.checksum and after.contents == before.contents
    assert torch.equal(pixels(after), whole)


def test_another_version_is_decoded_again_silently(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    location = load(photos).location
    assert location is not None
    text = (location / "manifest.json").read_text()
    (location / "manifest.json").write_text(text.replace(f'"version": {cache.VERSION}', '"version": 0'))
    assert cache.open_entry(location.name) is None and capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("owner", "function", "error", "message"),
    [
        (cache.os, "fsync", OSError(errno.ENOSPC, "No space left"), "the disk of the cache {} is full"),
        (Path, "mkdir", PermissionError(errno.EACCES, "Permission denied"), "{} cannot be written (Permission denied)"),
        (Path, "mkdir", FileExistsError(errno.EEXIST, "File exists"), "{} cannot be written (File exists)"),
    ],
)
def test_without_a_usable_cache_images_are_in_memory(
    photos: Path,
    cache_directory: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    owner: Any,
    function: str,
    error: OSError,
    message: str,
) -> None:
    def fail(*_args: object, **_options: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(owner, function, fail)
        in_memory = load(photos)
    printed = capsys.readouterr().err.replace("\n", "")
    assert message.format(cache_directory) in printed and "is decoded into memory" in printed
    assert in_memory.location is None and (not cache_directory.exists() or entries(cache_directory) == [])
    assert in_memory.checksum == load(photos).checksum and torch.equal(pixels(in_memory), pixels(load(photos)))


def test_what_was_written_is_read_back(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add = cache.Writer.add

    def spoiled(writer: cache.Writer, row: int, pixels: np.ndarray) -> None:
        add(writer, row, pixels)
        writer.checks[-1] ^= 1

    monkeypatch.setattr(cache.Writer, "add", spoiled)
    with pytest.raises(UserError, match="reads back differently"):
        load(photos)


def test_leftovers_of_a_killed_process_are_removed(photos: Path, cache_directory: Path) -> None:
    location = load(photos).location
    assert location is not None
    location.rename(cache_directory / f".building-{location.name}-abc")
    load(photos)
    assert entries(cache_directory) == [location.name]


def test_one_process_decodes_while_the_others_wait(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    log, real = tmp_path / "log", dataset.decode_all

    def slow(*given):
        with log.open("a") as file:
            file.write("decoding\n")
        time.sleep(1)
        return real(*given)

    monkeypatch.setattr(dataset, "decode_all", slow)
    processes = [multiprocessing.get_context("fork").Process(target=load, args=(photos,)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0, 0] and log.read_text() == "decoding\n"
    assert "another process is caching photos; waiting" in capfd.readouterr().err


def test_keys_are_safe_directory_names() -> None:
    def key(name: str, content: str = "f") -> str:
        return cache.entry_key(Source(name, lambda: pytest.fail("read"), (content,)), BenchmarkConfig())

    for name in ("../../etc/passwd", "a/b", "", ".", "Räume und Züge", "x" * 500, "\udc80"):
        one = key(name)
        assert "/" not in one and ".." not in one and len(one) < 100 and not one.startswith((".", "-"))
    assert key("a", "1") != key("a", "2") and key("a", "\udc80") == key("a", "\udc80")


@pytest.mark.parametrize(
    ("given", "standard", "expected"),
    [
        ("/c", "/x", "/c"),
        ("", "/x", "/x/osiris"),
        (None, "/x", "/x/osiris"),
        (None, "relative", "~/.cache/osiris"),
        ("", "", "~/.cache/osiris"),
        ("~/mine", None, "~/mine"),
    ],
)
def test_where_the_cache_is(
    monkeypatch: pytest.MonkeyPatch, given: str | None, standard: str | None, expected: str
) -> None:
    for variable, value in (("OSIRIS_CACHE", given), ("XDG_CACHE_HOME", standard)):
        monkeypatch.delenv(variable, raising=False)
        if value is not None:
            monkeypatch.setenv(variable, value)
    assert cache_directory() == Path(expected).expanduser()
