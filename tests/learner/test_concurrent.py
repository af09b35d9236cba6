"""Readers beside a writer: each is stopped before each of its file operations while the other one runs to its end.

Nothing sleeps: the other one runs inside, at exactly that moment.
"""

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from osiris import cli, files
from osiris.errors import Stopped, UserError
from osiris.index import newest as index_newest
from osiris.learner import Learner
from osiris.runs.directory import RunDirectory
from osiris.runs.state import load_state
from osiris.training.run import Training
from pictures import write_pictures
from tiny_runs import asked_to_stop, assert_only_what_is_named, episode, last_state, newest, progress_of

MONTHS = ("2026-01", "2026-02", "2026-03")


def learner(path: Path) -> Learner:
    return Learner(path, "ft", "smoke", image_size=16, memory_size=8, epochs=1, batch_size=8)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("album") / "photos"
    for number, month in enumerate(MONTHS):
        write_pictures(root / month, 16, seed=number)
    return root


@pytest.fixture(scope="module")
def two_months(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("state") / "state"
    for month in MONTHS[:2]:
        learner(path).observe(photos / month)
    learner(path).index(photos)
    return path


@pytest.fixture
def state(two_months: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(two_months, tmp_path / "state"))


CHANGES = ((Path, "replace"), (Path, "unlink"), (Path, "mkdir"), (os, "rmdir"), (os, "unlink"), (os, "truncate"))
READS = ((os, "open"), (files, "safe_open"))


@contextmanager
def before_each(operations: tuple[tuple[Any, str], ...], act: Callable[[int, str], object]) -> Iterator[list[str]]:
    """`act` is called before each of these operations, with its number (from 1) and what it does."""
    index_newest.open_embedder.cache_clear()
    index_newest.read_compared.cache_clear()
    inside, done = [False], list[str]()
    with pytest.MonkeyPatch.context() as patch:
        for owner, name in operations:
            original = getattr(owner, name)

            def counted(*given: Any, function: Any = original, what: str = name, **named: Any) -> Any:
                if not inside[0]:
                    done.append(f"{what} {given[0]}")
                    inside[0] = True
                    try:
                        act(len(done), done[-1])
                    finally:
                        inside[0] = False
                return function(*given, **named)

            patch.setattr(owner, name, counted)
        yield done


def contents(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Every file of the run: which one it is, and what it holds. A search may bring the index up to date, under the
    lock of the index."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.parent != folder / "index")
    return {str(path): (path.stat().st_ino, path.read_bytes()) for path in files}


def see_all(path: Path, photos: Path) -> int:
    """What readers do; returns how many episodes there are."""
    status = learner(path).status()
    assert learner(path).embed(photos / MONTHS[0] / "0.png").shape[0] == 1
    assert search(path, photos)
    held = load_state(RunDirectory(path))
    assert held is not None and len(held.memory.images) == 8
    assert sum(status["memory"]) == 8 and learner(path).run.config["seed"] == 0
    return len(status["episodes"])


def observe(path: Path, photos: Path) -> None:
    learner(path).observe(photos / MONTHS[2], keep_tasks=1)


def undo(path: Path, _: Path) -> None:
    learner(path).undo()


def stopped(path: Path, photos: Path) -> None:
    with asked_to_stop(task=2, step=1), pytest.raises(Stopped):
        learner(path).observe(photos / MONTHS[2])


def index(path: Path, photos: Path) -> None:
    learner(path).index(photos / MONTHS[2], refresh=True)


def forget(path: Path, photos: Path) -> None:
    learner(path).forget([photos / MONTHS[1] / "0.png"])


@pytest.mark.parametrize("write", [observe, undo, stopped, index, forget])
def test_readers_at_every_change_of_a_writer(write: Callable[[Path, Path], None], photos: Path, state: Path) -> None:
    """A reader sees the state before or after, says nothing of damage, and changes nothing."""
    seen, whole = list[int](), Path(shutil.copytree(state, state.parent / "whole"))
    write(whole, photos)

    def look(number: int, what: str) -> None:
        if str(state) in what and not what.startswith("truncate"):
            before = contents(state)
            seen.append(see_all(state, photos))
            assert contents(state) == before, what

    with before_each(CHANGES, look) as operations:
        write(state, photos)
    assert len(seen) > 1 and sum(str(state) in what for what in operations) > 1
    assert seen == sorted(seen, reverse=write is undo) and set(seen) <= {1, 2, 3}
    assert last_state(state) == last_state(whole)
    assert_only_what_is_named(state)


def status(path: Path, photos: Path) -> object:
    return learner(path).status()


def embed(path: Path, photos: Path) -> object:
    return learner(path).embed(photos / MONTHS[0] / "0.png")


def search(path: Path, photos: Path) -> object:
    """The index is of the encoder after the second episode."""
    try:
        return learner(path).search(photos / MONTHS[0] / "0.png", count=2).hits
    except UserError as error:
        assert "which cannot be compared with those after episode" in str(error)
        return str(error)


def load(path: Path, photos: Path) -> object:
    return load_state(RunDirectory(path))


def save_again(path: Path, photos: Path) -> None:
    """Three saves of a run, after which none of the files is there that the first one named."""
    for number in range(3):
        month = f"next {number}"
        learner(path).observe(photos / MONTHS[number], name=month, keep_tasks=1)


@pytest.mark.parametrize("write", [undo, save_again])
@pytest.mark.parametrize("read", [status, embed, search, load])
def test_a_writer_at_every_read_of_a_reader(
    read: Callable[[Path, Path], object],
    write: Callable[[Path, Path], None],
    photos: Path,
    two_months: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What it had named before is gone when the reader opens it: it reads progress.json again."""

    def nothing(number: int, what: str) -> None:
        pass

    with before_each(READS, nothing) as reads:
        read(two_months, photos)
    moments = [number for number, what in enumerate(reads, 1) if str(two_months) in what]
    assert moments
    for moment in moments if write is undo else {moments[0], moments[len(moments) // 2], moments[-1]}:
        path = Path(shutil.copytree(two_months, tmp_path / str(moment)))

        def act(number: int, what: str, path: Path = path, moment: int = moment) -> None:
            if number == moment:
                write(path, photos)

        capsys.readouterr()
        with before_each(READS, act) as done:
            assert read(path, photos) is not None
        assert len(done) >= moment, "the writer came in between"
        assert "damaged" not in capsys.readouterr().err
        assert_only_what_is_named(path)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EIO, errno.ESTALE, errno.EACCES, errno.ENOMEM])
@pytest.mark.parametrize("command", ["status", "search", "embed"])
def test_an_error_at_any_read_is_one_sentence_and_changes_nothing(
    command: str,
    number: int,
    photos: Path,
    state: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    typed = {
        "status": ["status", str(state)],
        "search": ["search", str(state), str(photos / MONTHS[0] / "0.png")],
        "embed": ["embed", str(state), str(photos / MONTHS[0]), "--out", str(tmp_path / "f.parquet")],
    }[command]
    with before_each(READS, lambda *_: None) as reads:
        assert cli.main(typed) == 0
    before = contents(state)
    moments = [at for at, what in enumerate(reads, 1) if str(state) in what and what.startswith("open")]
    assert moments
    for moment in moments:

        def fail(at: int, what: str, moment: int = moment) -> None:
            if at == moment:
                if number == errno.ENOMEM:
                    raise MemoryError("there is none")
                raise OSError(number, os.strerror(number), what.partition(" ")[2])

        capsys.readouterr()
        with before_each(READS, fail):
            code = cli.main(typed)
        said = capsys.readouterr().err
        assert code in (1, 2) and "damaged" not in said and len(said.strip().splitlines()) == 1, (
            reads[moment - 1],
            said,
        )
        assert ("out of memory" if number == errno.ENOMEM else os.strerror(number)) in said
        assert contents(state) == before


def test_an_error_while_the_state_is_read_leaves_it_for_the_same_command(
    photos: Path, state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Too many open files are not damage: the episode that is finished stays finished."""
    place, kept = newest(state), last_state(state)

    def fail(_: int, what: str) -> None:
        if what == f"open {place}":
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(place))

    with before_each(READS, fail):
        assert cli.main(["observe", str(state), str(photos / MONTHS[2]), "--quiet"]) == 2
    assert f"{place}: Too many open files. What was saved is intact" in capsys.readouterr().err
    assert last_state(state) == kept
    assert cli.main(["observe", str(state), str(photos / MONTHS[2]), "--quiet"]) == 0
    assert len(learner(state).status()["episodes"]) == 3


def test_a_copy_by_hard_links_is_a_copy(photos: Path, state: Path, tmp_path: Path) -> None:
    """As `cp -al` and backups make it: what is learned in one of both changes nothing in the other."""
    backup = Path(shutil.copytree(state, tmp_path / "backup", copy_function=os.link))
    kept = {path: content for path, (_, content) in contents(backup).items()}
    learner(state).observe(photos / MONTHS[2])
    learner(state).index(photos)
    assert {path: content for path, (_, content) in contents(backup).items()} == kept
    assert (state / "log.jsonl").stat().st_nlink == (state / ".lock").stat().st_nlink == 1
    with RunDirectory(backup), pytest.raises(UserError, match="backup is in use by process"):
        learner(backup).observe(photos / MONTHS[2])
    learner(backup).observe(photos / MONTHS[2])
    assert last_state(backup) == last_state(state)


@pytest.mark.parametrize("name", ["metrics.json", "observations.json", "config.json", "progress.json", "log.jsonl"])
def test_a_pipe_is_not_waited_for(name: str, photos: Path, state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (state / name).unlink()
    os.mkfifo(state / name)
    code = cli.main(["status", str(state)])
    said = capsys.readouterr().err
    assert code == 0 or f"{state / name} is not a regular file" in said
    assert cli.main(["report", str(state), "--out", str(state.parent / "report")]) in (0, 2)
    cli.main(["observe", str(state), str(photos / MONTHS[2]), "--quiet"])


def test_a_piece_of_an_index_without_its_manifest_is_forgotten(photos: Path, state: Path, tmp_path: Path) -> None:
    """`index` was killed between its first part and its first manifest."""
    (state / "index" / "manifest.json").unlink()
    secret = photos / MONTHS[0] / "0.png"
    (part,) = (state / "index").glob("part-*.arrow")
    assert str(secret).encode() in part.read_bytes()
    learner(state).forget([secret])
    assert not list((state / "index").glob("part-*.arrow"))


def test_a_first_episode_of_which_nothing_was_saved_does_not_decide_the_settings(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "state"
    with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
        patch.setattr(Training, "advance", lambda *_: 1 / 0)
        learner(path).observe(photos / MONTHS[0])
    assert (path / "config.json").exists()
    Learner(path, "ft", "smoke", image_size=16, memory_size=8, epochs=1, batch_size=8, learning_rate=0.01).observe(
        photos / MONTHS[0]
    )
    assert progress_of(path).finished == 1 and learner(path).run.config["learning.learning_rate"] == 0.01


def test_weights_that_are_not_finite_or_of_another_precision_are_refused(
    photos: Path, state: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = episode(state, 2).weights
    tensors, metadata = files.load_tensors(path)
    name = next(name for name in tensors if name.startswith("encoder.") and tensors[name].is_floating_point())
    for value in (tensors[name].double(), tensors[name] * float("nan")):
        files.save_tensors(path, tensors | {name: value}, metadata)
        assert cli.main(["embed", str(state), str(photos / MONTHS[0]), "--out", str(tmp_path / "f.parquet")]) == 2
        assert f"{path}: {name.removeprefix('encoder.')} holds numbers that are not finite, or not float32" in (
            capsys.readouterr().err
        )
        assert not (tmp_path / "f.parquet").exists()


def test_a_number_that_is_not_finite_in_the_environment_is_one_sentence(
    photos: Path, state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (state / "environment.json").write_text('[{"command": "osiris", "cores": 1e999}]')
    assert cli.main(["report", str(state), "--out", str(state.parent / "report")]) == 2
    assert "environment.json cannot be read" in capsys.readouterr().err
    assert cli.main(["observe", str(state), str(photos / MONTHS[2]), "--quiet"]) == 0
    assert "environment.json is damaged" in " ".join(capsys.readouterr().err.split())
