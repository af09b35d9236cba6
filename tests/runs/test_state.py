"""States: whole, newest first, never unpickled, refused if they are not what a run writes."""

import errno
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError

from osiris.data.benchmark import TaskContent
from osiris.errors import UserError
from osiris.files import load_tensors, save_tensors
from osiris.runs import state as checkpoint
from osiris.runs.state import Position, State


def state(number: int) -> State:
    """A small one, with two of three memory slots filled."""
    task = torch.tensor([0, 0, -1])
    memory = {"memory.images": torch.zeros(3, 3, 8, 8, dtype=torch.uint8), "memory.task": task}
    memory |= {"memory._extra_state": torch.tensor(2), "memory.source": torch.tensor([4, 1, -1])}
    model = {"weights": torch.full((40,), float(number)), "count": torch.tensor(number)} | memory
    content = TaskContent(name="week", train=20, test=0, order="a")
    return State(
        engine={"model": model, "optimiser": {"state": {0: torch.tensor(number / 3)}}, "scaler": {}},
        position=Position(step=number),
        log=10 * number,
        settings={"seed": 0},
        episodes=[content],
        planned=1,
        mean=(0.5, 0.5, 0.5),
        std=(0.25, 0.25, 0.25),
        architecture={},
    )


def same(one: State | None, other: State) -> bool:
    return one is not None and checkpoint.digest(vars(one)) == checkpoint.digest(vars(other))


def test_a_state_comes_back_as_it_was(tmp_path: Path) -> None:
    checkpoint.save_state(tmp_path, state(1))
    back = checkpoint.read_state(tmp_path / "latest.pt")
    assert back.position == Position(step=1) and back.episodes == state(1).episodes and back.mean == (0.5, 0.5, 0.5)
    assert len(back.memory.images) == 2 and back.memory.size == 3 and back.unfinished == state(1).episodes[0]


def crafted(change: Callable[[dict[str, Any]], object], path: Path) -> None:
    """A state of the right format and checksum, with something that no run would write."""
    checkpoint.save_state(path.parent, state(1))
    record = torch.load(path, weights_only=True)
    change(record["state"])
    torch.save(
        {"format": checkpoint.FORMAT, "digest": checkpoint.digest(record["state"]), "state": record["state"]}, path
    )


@pytest.mark.parametrize(
    "change",
    [
        lambda state: state.clear(),
        lambda state: state.pop("position"),
        lambda state: state.pop("episodes"),
        lambda state: state["engine"].clear(),
        lambda state: state["engine"].update(model=[]),
        lambda state: state["engine"]["model"].pop("memory.task"),
        lambda state: state["engine"]["model"].update(weights="none"),
        lambda state: state["engine"]["model"].update({"memory.images": torch.zeros(3, 4)}),
        lambda state: state["engine"]["model"].update({"memory.images": torch.zeros(3, 3, 8, 8)}),
        lambda state: state["engine"]["model"].update({"memory.source": torch.zeros(2)}),
        lambda state: state["engine"]["model"].update({"memory._extra_state": torch.tensor(-1)}),
        lambda state: state["engine"]["model"].update({"memory._extra_state": torch.tensor([1, 2])}),
        lambda state: state["engine"]["model"].update({"memory.task": torch.tensor([0, 9, -1])}),
        lambda state: state["engine"]["model"].update({"memory.task": torch.tensor([0.0, 0.0, -1.0])}),
        lambda state: state["position"].update(task=10**12),
        lambda state: state["position"].update(step=-1),
        lambda state: state["position"].update(stage="elsewhere"),
        lambda state: state.update(log=-5),
        lambda state: state.update(planned=0),
        lambda state: state.update(mean=[0.5]),
        lambda state: state.update(mean=(0.5, float("nan"), 0.5)),
        lambda state: state.update(std=(0.2, 0.0, 0.2)),
        lambda state: state.update(std=(0.2, 0.2, float("inf"))),
        lambda state: state.update(std=(0.2, float("nan"), 0.2)),
        lambda state: state.update(episodes=[{"name": 3}]),
        lambda state: state.update(settings=7),
    ],
)
def test_a_state_that_no_run_would_write_is_refused_in_one_line(
    change: Callable[[dict[str, Any]], object], tmp_path: Path
) -> None:
    crafted(change, tmp_path / "latest.pt")
    with pytest.raises(UserError, match=r"latest\.pt is not the state of a run") as told:
        checkpoint.read_state(tmp_path / "latest.pt")
    assert "\n" not in str(told.value)


def test_tensors_of_which_the_file_has_nothing_are_refused_before_they_take_memory(tmp_path: Path) -> None:
    inner: list[Any] = []
    inner.append(inner)
    claims = [torch.zeros(1).expand(2**28), torch.eye(3).to_sparse(), torch.empty(4, device="meta"), inner]
    for claim in claims:
        checkpoint.save_state(tmp_path, state(1))
        record = torch.load(tmp_path / "latest.pt", weights_only=True)
        record["state"]["engine"]["more"] = claim
        torch.save(record, tmp_path / "latest.pt")
        with pytest.raises(UserError, match=r"latest\.pt is not the state of a run") as told:
            checkpoint.read_state(tmp_path / "latest.pt")
        assert "\n" not in str(told.value)


def test_a_state_is_on_the_disk_before_the_old_one_moves(recorded: list[tuple[str, str]], tmp_path: Path) -> None:
    checkpoint.save_state(tmp_path, state(1))
    recorded.clear()
    checkpoint.save_state(tmp_path, state(2))
    temporary = recorded[0][1]
    assert temporary.startswith(".latest.pt.")
    assert recorded[:2] == [("fsync", temporary), ("replace", "latest.pt")]
    assert recorded[-2:] == [("fsync", temporary), ("replace", temporary)]


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
        torch.save({"format": written, "digest": "", "state": {}}, path)
        with pytest.raises(UserError, match=text):
            checkpoint.read_state(path)


def test_tensors_come_back_with_their_description(tmp_path: Path) -> None:
    path = tmp_path / "task-01.safetensors"
    save_tensors(path, {"encoder.a": torch.arange(6.0).view(2, 3).T}, {"task": 0, "encoder": {"width": 4}})
    tensors, metadata = load_tensors(path)
    assert torch.equal(tensors["encoder.a"], torch.arange(6.0).view(2, 3).T)
    assert metadata == {"task": 0, "encoder": {"width": 4}}
    truncate(path)
    with pytest.raises(UserError, match="damaged"):
        load_tensors(path)
    with pytest.raises(UserError, match="does not exist"):
        load_tensors(tmp_path / "absent")
