"""Checkpoints: whole, newest first, never unpickled."""

import errno
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError

from osiris.errors import UserError
from osiris.files import load_tensors
from osiris.training import checkpoint


def state(number: int) -> dict[str, Any]:
    nested = {"weights": torch.full((40,), float(number)), "list": [torch.tensor(number), number / 3]}
    return {"engine": nested, "position": {"task": number, "stage": "train"}, "log": 10 * number}


def same(one: dict[str, Any] | None, other: dict[str, Any]) -> bool:
    return one is not None and checkpoint.digest(one) == checkpoint.digest(other)


def test_the_last_two_are_kept(tmp_path: Path) -> None:
    assert checkpoint.load_state(tmp_path) is None
    for number in range(3):
        checkpoint.save_state(tmp_path, state(number))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["latest.pt", "previous.pt"]
    assert same(checkpoint.read_state(tmp_path / "latest.pt"), state(2))
    assert same(checkpoint.read_state(tmp_path / "previous.pt"), state(1))


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def flip(path: Path) -> None:
    """A bit of a weight: the file opens as before, only the checksum knows."""
    content = bytearray(path.read_bytes())
    place = bytes(content).index(torch.full((40,), 1.0).numpy().tobytes())
    content[place + 5] ^= 1
    path.write_bytes(bytes(content))


def replace(path: Path) -> None:
    torch.save({"another": "file"}, path)


@pytest.mark.parametrize("damage", [truncate, empty, flip, replace])
def test_a_damaged_newest_one_falls_back_with_a_notice(
    damage: Callable[[Path], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint.save_state(tmp_path, state(0))
    checkpoint.save_state(tmp_path, state(1))
    damage(tmp_path / "latest.pt")
    assert same(checkpoint.load_state(tmp_path), state(0))
    assert "latest.pt" in capsys.readouterr().err.replace("\n", "")
    checkpoint.save_state(tmp_path, state(2))
    assert same(checkpoint.read_state(tmp_path / "previous.pt"), state(0)), "the damaged one did not push it out"
    for name in ("latest.pt", "previous.pt"):
        (tmp_path / name).write_bytes((tmp_path / "damaged.pt").read_bytes())
    with pytest.raises(UserError, match="No checkpoint in"):
        checkpoint.load_state(tmp_path)


def test_the_previous_one_serves_where_the_newest_is_missing(tmp_path: Path) -> None:
    """The instant between the two renames of a save."""
    checkpoint.save_state(tmp_path, state(0))
    (tmp_path / "latest.pt").rename(tmp_path / "previous.pt")
    assert same(checkpoint.load_state(tmp_path), state(0))


class Payload:
    """What an attacker would put into a pickle."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str, ...]]:
        return os.mkdir, (str(self.trace),)


@pytest.mark.parametrize("plain", [True, False], ids=["pickle", "torch.save"])
def test_a_pickle_with_a_payload_is_refused(plain: bool, tmp_path: Path) -> None:
    trace, path = tmp_path / "executed", tmp_path / "latest.pt"
    record = {"format": checkpoint.FORMAT, "digest": "", "state": Payload(trace)}
    if plain:
        path.write_bytes(pickle.dumps(record, protocol=2))
    else:
        torch.save(record, path)
    with pytest.raises(UserError, match="damaged or not an osiris checkpoint"):
        checkpoint.read_state(path)
    assert not trace.exists()


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
        RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 576 vs 534"),
        SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"),
    ],
    ids=["system", "torch", "safetensors"],
)
def test_a_full_disk_is_named_however_a_library_says_it(error: Exception, tmp_path: Path) -> None:
    """As measured on a tiny tmpfs."""
    checkpoint.save_state(tmp_path, state(0))
    message = "the disk is full.*The last checkpoint is intact"
    with pytest.raises(checkpoint.CannotWrite, match=message), checkpoint.writing(tmp_path):
        raise error


def test_a_failing_disk_is_one_line_with_its_path_and_other_errors_stay_what_they_are(tmp_path: Path) -> None:
    for number in (errno.EROFS, errno.EIO, errno.ENOENT):
        with pytest.raises(checkpoint.CannotWrite) as told, checkpoint.writing(tmp_path):
            raise OSError(number, os.strerror(number), "/cache/baselines")
        assert str(told.value).startswith(f"/cache/baselines: {os.strerror(number)}. Nothing was saved: ")
    for error in (RuntimeError("something else"), BrokenPipeError(errno.EPIPE, "no"), ConnectionError("hub")):
        with pytest.raises(type(error)), checkpoint.writing(tmp_path):
            raise error


def test_formats(tmp_path: Path) -> None:
    """A newer or unknown format is refused."""
    path = tmp_path / "latest.pt"
    texts = {checkpoint.FORMAT + 1: "newer version of osiris", 1: "before its first release", "2": "not an osiris"}
    for written, text in texts.items():
        torch.save({"format": written, "digest": checkpoint.digest(state(0)), "state": state(0)}, path)
        with pytest.raises(UserError, match=text):
            checkpoint.read_state(path)


def test_tensors_come_back_with_their_description(tmp_path: Path) -> None:
    path = tmp_path / "task-01.safetensors"
    checkpoint.save_tensors(path, {"encoder.a": torch.arange(6.0).view(2, 3).T}, {"task": 0, "encoder": {"width": 4}})
    tensors, metadata = load_tensors(path)
    assert torch.equal(tensors["encoder.a"], torch.arange(6.0).view(2, 3).T)
    assert metadata == {"task": 0, "encoder": {"width": 4}}
    truncate(path)
    with pytest.raises(UserError, match="damaged"):
        load_tensors(path)
    with pytest.raises(UserError, match="does not exist"):
        load_tensors(tmp_path / "absent")
