from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from osiris.data import cache
from osiris.errors import UserError


def build_numbers(directory: Path) -> dict:
    writer = cache.ArrayWriter(directory / "train-images.npy")
    for value in range(5):
        writer.append(np.full((3, 4, 4), value, dtype=np.uint8))
    writer.close()
    return {"dataset": "numbers"}


def leftovers(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir() if not path.name.endswith(".lock"))


def test_built_once_then_memory_mapped(cache_directory: Path) -> None:
    first = cache.open_or_build("numbers-1", "numbers", build_numbers)
    again = cache.open_or_build("numbers-1", "numbers", lambda directory: pytest.fail("built twice"))
    images = again.array("train", "images")
    assert isinstance(images, np.memmap) and images.shape == (5, 3, 4, 4)
    assert images[:, 0, 0, 0].tolist() == [0, 1, 2, 3, 4]
    assert again.array("train", "labels") is None
    assert again.manifest == first.manifest and first.bytes_on_disk() == 5 * 48 + 128
    assert leftovers(cache_directory) == ["numbers-1"]
    again.verify()


def test_verify_finds_a_changed_byte_and_a_short_file_is_built_again() -> None:
    entry = cache.open_or_build("numbers-1", "numbers", build_numbers)
    path = entry.directory / "train-images.npy"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + b"\x99")
    with pytest.raises(UserError, match="damaged"):
        entry.verify()
    path.write_bytes(whole[:-1])
    assert cache.open_entry("numbers-1") is None
    cache.open_or_build("numbers-1", "numbers", build_numbers).verify()


@pytest.mark.parametrize("manifest", ["", "{}", "[]", '{"version": 0, "files": {}}'])
def test_an_unreadable_manifest_counts_as_no_entry(manifest: str) -> None:
    entry = cache.open_or_build("numbers-1", "numbers", build_numbers)
    (entry.directory / "manifest.json").write_text(manifest)
    assert cache.open_entry("numbers-1") is None


def test_disk_full_leaves_nothing_behind(cache_directory: Path) -> None:
    def fill(directory: Path) -> dict:
        build_numbers(directory)
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(UserError, match=r"the disk is full: numbers .*OSIRIS_CACHE"):
        cache.open_or_build("numbers-1", "numbers", fill)
    assert leftovers(cache_directory) == []
    cache.open_or_build("numbers-1", "numbers", build_numbers)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no device that is always full")
def test_the_writer_meets_a_full_disk_with_an_error_not_a_signal() -> None:
    writer = cache.ArrayWriter(Path("/dev/full"))
    with pytest.raises(OSError, match="No space left"):
        for _ in range(100):
            writer.append(np.zeros((3, 64, 64), dtype=np.uint8))


def test_a_read_only_cache_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_args: object, **_options: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(UserError, match="Point OSIRIS_CACHE to a directory you may write to"):
        cache.open_or_build("numbers-1", "numbers", build_numbers)


def test_leftovers_of_a_killed_process_are_removed(cache_directory: Path) -> None:
    stale = cache_directory / ".building-numbers-1-abc"
    stale.mkdir(parents=True)
    (stale / "train-images.npy").write_bytes(b"half")
    cache.open_or_build("numbers-1", "numbers", build_numbers)
    assert leftovers(cache_directory) == ["numbers-1"]


def test_two_threads_build_once() -> None:
    built: list[int] = []

    def slow(directory: Path) -> dict:
        built.append(1)
        time.sleep(0.2)
        return build_numbers(directory)

    threads = [threading.Thread(target=cache.open_or_build, args=("numbers-1", "numbers", slow)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert built == [1] and cache.open_entry("numbers-1") is not None


PROCESS = """
import sys, time
from pathlib import Path
from osiris.data import cache
import numpy as np

def build(directory):
    log = Path(sys.argv[1])
    with log.open("a") as file:
        file.write("building\\n")
    time.sleep(1.0)
    writer = cache.ArrayWriter(directory / "train-images.npy")
    writer.append(np.zeros((3, 4, 4), dtype=np.uint8))
    writer.close()
    return {}

print(cache.open_or_build("shared-1", "shared", build).directory)
"""


def test_two_processes_one_works_the_other_waits(tmp_path: Path) -> None:
    log = tmp_path / "log"
    command = [sys.executable, "-c", PROCESS, str(log)]
    first = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(os.environ))
    deadline = time.monotonic() + 30
    while not log.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    second = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    output, errors = first.communicate(timeout=60)
    assert first.returncode == 0, errors
    assert output == second.stdout != ""
    assert log.read_text() == "building\n"
    assert "another process is caching shared; waiting" in second.stderr


def test_keys_are_safe_directory_names() -> None:
    for name in ("../../etc/passwd", "a/b", "", ".", "Räume und Züge", "x" * 500):
        key = cache.entry_key(name, "f")
        assert "/" not in key and ".." not in key and len(key) < 100 and not key.startswith((".", "-"))
    assert cache.entry_key("a", "1") != cache.entry_key("a", "2")
