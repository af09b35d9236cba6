"""States: whole, newest first, never unpickled, refused if they are not what a run writes."""

import errno
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from safetensors import SafetensorError

from osiris.errors import UserError
from osiris.files import Missing, load_tensors, read_json, save_tensors, write_json
from osiris.runs import state as checkpoint
from osiris.runs.directory import RunDirectory
from osiris.runs.progress import FORMAT, KnownEpisode, Position, Progress, read_progress, write_progress
from osiris.runs.state import State, load_state, read_state, save_state
from osiris.runs.views import current_metrics


def engine(number: int) -> dict[str, Any]:
    """A small one, with two of three memory slots filled."""
    task = torch.tensor([0, 0, -1])
    memory = {"memory.images": torch.zeros(3, 3, 8, 8, dtype=torch.uint8), "memory.task": task}
    memory |= {"memory._extra_state": torch.tensor(2), "memory.source": torch.tensor([4, 1, -1])}
    model = {"weights": torch.full((40,), float(number)), "count": torch.tensor(number)} | memory
    return {"model": model, "optimiser": {"state": {0: torch.tensor(number / 3)}}, "scaler": {}}


WEEKS = [
    KnownEpisode(folder=f"0{task + 1}-week-{task + 1}", name=f"week {task + 1}", train=20, test=0, order="a")
    for task in range(3)
]


def save(folder: Path, number: int, position: Position | None = None, way_back: bool = False) -> Progress:
    directory = RunDirectory(folder)
    progress = read_progress(directory) or Progress(format=FORMAT, episodes=WEEKS, settings={"seed": 0})
    return save_state(directory, progress, engine(number), position or Position(step=number + 1), 10 * number, way_back)


def newest(folder: Path) -> Path:
    progress = read_progress(RunDirectory(folder))
    assert progress is not None
    return folder / "episodes" / progress.saved[0].file


def read(folder: Path) -> State:
    """The newest state, and no other."""
    progress = read_progress(RunDirectory(folder))
    assert progress is not None
    return State(read_state(RunDirectory(folder), progress.saved[0], progress), progress)


def same(one: State | None, number: int) -> bool:
    return one is not None and checkpoint.digest(one.engine) == checkpoint.digest(engine(number))


def test_a_state_comes_back_as_it_was(tmp_path: Path) -> None:
    save(tmp_path, 1)
    back = read(tmp_path)
    assert same(back, 1) and back.position == Position(step=2) and back.progress.saved[0].log == 10
    assert len(back.memory.images) == 2 and back.memory.size == 3 and back.progress.unfinished == WEEKS[0].content
    assert (back.progress.memory_size, back.progress.image_size, back.progress.saved[0].memory) == (3, 8, [2])


def crafted(change: Callable[[dict[str, Any]], object], folder: Path) -> None:
    """A state with the right checksum, with something that no run would write."""
    progress = save(folder, 1)
    record = torch.load(newest(folder), weights_only=True)
    change(record)
    torch.save(record, newest(folder))
    saved = replace(progress.saved[0], digest=checkpoint.digest(record.get("engine")))
    write_progress(RunDirectory(folder), replace(progress, saved=[saved]))


@pytest.mark.parametrize(
    "change",
    [
        lambda state: state.clear(),
        lambda state: state.update(engine=3),
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
    ],
)
def test_a_state_that_no_run_would_write_is_refused_in_one_line(
    change: Callable[[dict[str, Any]], object], tmp_path: Path
) -> None:
    crafted(change, tmp_path)
    with pytest.raises(UserError, match=r"state-000001\.pt is not (the state of a run|a state of osiris)") as told:
        read(tmp_path)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    "change",
    [
        lambda known: known.clear(),
        lambda known: known.pop("episodes"),
        lambda known: known["saved"][0].pop("position"),
        lambda known: known["saved"][0]["position"].update(task=10**12),
        lambda known: known["saved"][0]["position"].update(task=3, step=1),
        lambda known: known["saved"][0]["position"].update(step=-1),
        lambda known: known["saved"][0]["position"].update(stage="elsewhere"),
        lambda known: known["saved"][0].update(log=-5),
        lambda known: known["saved"][0].update(file="../../precious.pt"),
        lambda known: known["saved"][0].update(file="09-other/state-000001.pt"),
        lambda known: known["saved"][0].update(digest="x"),
        lambda known: known["saved"][0].update(memory=[99]),
        lambda known: known["saved"][0].update(memory=[0] * 9),
        lambda known: known.update(planned=0),
        lambda known: known.update(mean=[0.5]),
        lambda known: known.update(std=(0.2, 0.0, 0.2)),
        lambda known: known.update(episodes=[{"name": 3}]),
        lambda known: known["episodes"][0].update(folder="../.."),
        lambda known: known["episodes"][0].update(folder="01-.."),
        lambda known: known["episodes"][0].update(folder="00-start"),
        lambda known: known["episodes"][1].update(folder=known["episodes"][0]["folder"]),
        lambda known: known.update(settings=7),
    ],
)
def test_progress_that_no_run_would_write_is_refused_in_one_line(
    change: Callable[[dict[str, Any]], object], tmp_path: Path
) -> None:
    save(tmp_path, 1)
    path = tmp_path / "progress.json"
    known = read_json(path)
    change(known)
    write_json(path, known)
    with pytest.raises(UserError, match=r"progress\.json") as told:
        load_state(RunDirectory(tmp_path))
    assert "\n" not in str(told.value)


def test_tensors_of_which_the_file_has_nothing_are_refused_before_they_take_memory(tmp_path: Path) -> None:
    inner: list[Any] = []
    inner.append(inner)
    claims = [torch.zeros(1).expand(2**28), torch.eye(3).to_sparse(), torch.empty(4, device="meta"), inner]
    for claim in claims:
        save(tmp_path, 1)
        record = torch.load(newest(tmp_path), weights_only=True)
        record["engine"]["more"] = claim
        torch.save(record, newest(tmp_path))
        with pytest.raises(UserError, match=r"state-00000\d\.pt is not the state of a run") as told:
            read(tmp_path)
        assert "\n" not in str(told.value)


def test_a_state_is_on_the_disk_before_progress_names_it(
    recorded: list[tuple[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, 1)
    save(tmp_path, 2)
    recorded.clear()
    unlink = Path.unlink
    monkeypatch.setattr(
        Path, "unlink", lambda path, **named: recorded.append(("unlink", path.name)) or unlink(path, **named)
    )
    save(tmp_path, 3)
    kinds = [(what, name.lstrip(".").split(".")[0]) for what, name in recorded if what != "unlink" or "tmp" not in name]
    assert kinds == [
        *[("fsync", "state-000003"), ("replace", "state-000003")],
        *[("fsync", "progress"), ("replace", "progress"), ("unlink", "state-000001")],
    ]


def test_which_states_are_kept(tmp_path: Path) -> None:
    """The newest and the one before it, and for observe the end of the episode before, until that is used."""
    assert load_state(RunDirectory(tmp_path)) is None
    places = [
        *[Position(0, step=1), Position(0, "evaluate", 4), Position(1), Position(1, step=1), Position(1, step=2)],
        *[Position(1, "evaluate", 4), Position(2), Position(2, step=1)],
    ]
    for way_back, kept in (
        (True, [[1], [2, 1], [3, 2], [4, 3], [5, 4, 3], [6, 5, 3], [7, 6, 3], [8, 7]]),
        (False, [[1], [2, 1], [3, 2], [4, 3], [5, 4], [6, 5], [7, 6], [8, 7]]),
    ):
        folder = tmp_path / str(way_back)
        for number, (position, numbers) in enumerate(zip(places, kept)):
            progress = save(folder, number, position, way_back)
            assert [int(one.file[-9:-3]) for one in progress.states] == numbers
            files = sorted(int(path.stem[-6:]) for path in folder.rglob("*.pt"))
            assert files == sorted(numbers), "and no other file is there"
            back = progress.back and progress.back.position
            assert back == (Position(position.episode) if way_back and position.episode else None)
            assert same(read(folder), number)


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


def another(path: Path) -> None:
    torch.save({"another": "file"}, path)


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize("damage", [truncate, empty, flip, another, pipe, Path.unlink])
def test_a_damaged_newest_one_falls_back_with_a_notice(
    damage: Callable[[Path], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save(tmp_path, 0)
    save(tmp_path, 1)
    damaged, older = newest(tmp_path), tmp_path / "episodes" / "01-week-1" / "state-000001.pt"
    damage(damaged)
    before = sorted(tmp_path.rglob("*"))
    state = load_state(RunDirectory(tmp_path))
    assert same(state, 0) and state is not None and state.position.step == 1
    told = " ".join(capsys.readouterr().err.split())
    assert str(damaged) in told and f"from the state saved before it: {older} (week 1, at step 1)" in told
    assert sorted(tmp_path.rglob("*")) == before, "who reads changes nothing"
    save_state(RunDirectory(tmp_path), state.progress, engine(2), Position(step=3), 0, False)
    assert same(read(tmp_path), 2) and older.exists(), "the damaged one did not push it out"
    assert not damaged.exists()


def test_what_is_whole_is_named_where_nothing_can_be_continued(tmp_path: Path) -> None:
    save(tmp_path, 0, Position(1), way_back=True)
    for number in (1, 2):
        save(tmp_path, number, Position(1, step=number), way_back=True)
    progress = read_progress(RunDirectory(tmp_path))
    assert progress is not None and len(progress.states) == 3
    for saved in progress.saved:
        truncate(tmp_path / "episodes" / saved.file)
    whole = r"The state at the end of week 1 is whole, .*state-000001\.pt: osiris undo .* goes back to it"
    with pytest.raises(UserError, match=whole):
        load_state(RunDirectory(tmp_path))
    truncate(tmp_path / "episodes" / "01-week-1" / "state-000001.pt")
    with pytest.raises(UserError, match=r"No state in .* can be read: put the file back from a copy"):
        load_state(RunDirectory(tmp_path))


ERRORS = [
    *(OSError(number, os.strerror(number)) for number in (errno.EMFILE, errno.EIO, errno.ESTALE, errno.EACCES)),
    MemoryError(),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: getattr(error, "strerror", None) or "memory")
@pytest.mark.parametrize("place", ["open", "load"])
def test_an_error_of_the_system_is_not_damage(
    place: str, error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, 0)
    save(tmp_path, 1)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    open_file = os.open

    def fail(path: Any, *given: Any, **named: Any) -> int:
        if str(path).endswith(".pt"):
            raise error
        return open_file(path, *given, **named)

    with monkeypatch.context() as patch, pytest.raises(type(error)):
        if place == "open":
            patch.setattr(os, "open", fail)
        else:
            patch.setattr(torch, "load", lambda *_, **__: (_ for _ in ()).throw(error))
        load_state(RunDirectory(tmp_path))
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert same(load_state(RunDirectory(tmp_path)), 1)


class Payload:
    """What an attacker would put into a pickle."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str, ...]]:
        return os.mkdir, (str(self.trace),)


@pytest.mark.parametrize("plain", [True, False], ids=["pickle", "torch.save"])
def test_a_pickle_with_a_payload_is_refused(plain: bool, tmp_path: Path) -> None:
    save(tmp_path, 1)
    trace, path = tmp_path / "executed", newest(tmp_path)
    record = {"engine": Payload(trace)}
    if plain:
        path.write_bytes(pickle.dumps(record, protocol=2))
    else:
        torch.save(record, path)
    with pytest.raises(UserError, match="damaged or not a state of osiris"):
        read(tmp_path)
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
    save(tmp_path, 0)
    message = "the disk is full.*What was saved is intact"
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
    progress = save(tmp_path, 1)
    for written, text in {FORMAT + 1: "newer version of osiris", 1: "before its first release"}.items():
        write_progress(RunDirectory(tmp_path), replace(progress, format=written))
        with pytest.raises(UserError, match=text):
            load_state(RunDirectory(tmp_path))


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


def test_a_run_without_metrics_and_progress_says_so(tmp_path: Path) -> None:
    with pytest.raises(Missing, match="does not exist"):
        current_metrics(RunDirectory(tmp_path), None)
