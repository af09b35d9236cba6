"""Episodes that were a mistake: noticed, refused, or taken back to the bits before them."""

import math
import re
import shlex
import shutil
from dataclasses import replace as replace_position
from pathlib import Path

import pytest
import torch
from msgspec.structs import replace
from PIL import Image

from killed import Killed, killed_at
from osiris import cli
from osiris.errors import Stopped, UserError
from osiris.evaluation.scores import write_record
from osiris.framework.representations import Representations
from osiris.framework.terms import Contrast, StepContext
from osiris.learner import Learner
from osiris.learner import learner as module
from osiris.training.log import Log
from osiris.training.run import Training
from pictures import write_pictures
from tiny_runs import (
    arguments,
    asked_to_stop,
    assert_only_what_is_named,
    episode,
    last_state,
    newest,
    progress_of,
    read_newest,
    write_arrays,
)

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
    return path


@pytest.fixture
def state(two_months: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(two_months, tmp_path / "state"))


def files(state: Path) -> dict[str, bytes]:
    """Everything that later calls read, except the states, which are compared as such, and their names."""
    others = (".lock", "environment.json", "log.jsonl", "progress.json")
    paths = [path for path in state.rglob("*") if path.is_file() and path.suffix != ".pt" and path.name not in others]
    return {str(path.relative_to(state)): path.read_bytes() for path in paths}


def test_an_unfinished_episode_is_discarded(
    photos: Path, two_months: Path, state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with asked_to_stop(task=2, step=1), pytest.raises(Stopped):
        learner(state).observe(photos / MONTHS[2])
    assert cli.main(["undo", str(state)]) == 0
    assert "2026-03 was taken back" in capsys.readouterr().out
    assert last_state(state) == last_state(two_months) and files(state) == files(two_months)
    assert cli.main(["undo", str(state)]) == 2
    assert "2026-02 cannot be taken back" in capsys.readouterr().err
    learner(state).observe(photos / MONTHS[2])
    assert len(learner(state).status()["episodes"]) == 3


@pytest.mark.parametrize(("keep", "interrupted"), [(None, False), (None, True), (1, False)])
def test_the_last_episode_is_undone_once(
    keep: int | None, interrupted: bool, photos: Path, two_months: Path, state: Path
) -> None:
    if interrupted:
        with asked_to_stop(task=2, step=1), pytest.raises(Stopped):
            learner(state).observe(photos / MONTHS[2])
    learner(state).observe(photos / MONTHS[2], keep_tasks=keep)
    learner(state).undo()
    assert last_state(state) == last_state(two_months)
    assert learner(state).metrics == learner(two_months).metrics
    assert (learner(state).embed(photos / MONTHS[0]) == learner(two_months).embed(photos / MONTHS[0])).all()
    if keep is None:
        assert files(state) == files(two_months)
    with pytest.raises(UserError, match="2026-02 cannot be taken back"):
        learner(state).undo()


def test_a_repeated_undo_does_not_remove_the_first_episode(photos: Path, state: Path) -> None:
    assert learner(state).undo() == MONTHS[1]
    kept = last_state(state)
    with pytest.raises(UserError, match="2026-01 cannot be taken back"):
        learner(state).undo()
    assert last_state(state) == kept
    learner(state).observe(photos / MONTHS[1])
    assert learner(state).undo() == MONTHS[1], "another episode can be taken back again"


def test_what_was_measured_of_an_undone_episode_goes_with_it(photos: Path, state: Path, tmp_path: Path) -> None:
    measure = ["evaluate", str(state), "--benchmark", write_arrays(tmp_path / "tiny.npz"), "--k", "3"]
    learner(state).observe(photos / MONTHS[2])
    assert cli.main([*measure, "--keep-features"]) == 0
    (state / "compatibility.json").write_text("{}")
    learner(state).undo()
    names = {path.name for path in (*state.glob("evaluations/**/*.*"), *state.glob("*.json"))} - {"metrics.json"}
    assert "task-02-features.safetensors" in names
    assert not [name for name in names if name.startswith(("task-03", "metrics", "compatibility"))]


@pytest.mark.parametrize("finished", [True, False], ids=["undo", "discard"])
def test_killed_at_every_change_of_a_file_while_going_back(
    finished: bool, photos: Path, two_months: Path, state: Path, tmp_path: Path
) -> None:
    """The state is that before or after; the same call completes it, and so does learning from the next episode."""
    if finished:
        learner(state).observe(photos / MONTHS[2])
    else:
        with asked_to_stop(task=2, step=1), pytest.raises(Stopped):
            learner(state).observe(photos / MONTHS[2])

    with killed_at(0) as operations:
        learner(Path(shutil.copytree(state, tmp_path / "whole"))).undo()
    progress = next(number for number, what in enumerate(operations, 1) if what.startswith("replace .progress"))
    assert len(operations) > progress + 3
    for number in range(1, len(operations) + 1):
        copy = Path(shutil.copytree(state, tmp_path / str(number)))
        with killed_at(number), pytest.raises(Killed):
            learner(copy).undo()
        there = learner(copy).status()
        gone = number > progress
        assert [name for name, _ in there["episodes"]] == list(MONTHS[: 2 if gone else 3])
        assert learner(copy).metrics == learner(two_months if gone or not finished else state).metrics
        assert learner(copy).embed(photos / MONTHS[0]).shape[0] == 16
        other = Path(shutil.copytree(copy, tmp_path / f"{number} other"))
        if not gone or any(folder.name.startswith("03") for folder in (copy / "episodes").iterdir()):
            assert learner(copy).undo() in (MONTHS[2], "the episode after 2026-02")
            assert last_state(copy) == last_state(two_months) and files(copy) == files(two_months)
            assert_only_what_is_named(copy)
        if gone:
            learner(other).observe(photos / MONTHS[1], name="next")
            assert [name for name, _ in learner(other).status()["episodes"]] == [*MONTHS[:2], "next"]
            assert_only_what_is_named(other)


def test_a_repeated_undo_after_a_kill_takes_nothing_else_back(
    photos: Path, state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with killed_at(0) as operations:
        learner(Path(shutil.copytree(state, state.parent / "whole"))).undo()
    progress = next(number for number, what in enumerate(operations, 1) if what.startswith("replace .progress"))
    with killed_at(progress + 1), pytest.raises(Killed):
        learner(state).undo()
    kept = last_state(state)
    assert cli.main(["undo", str(state)]) == 0
    assert "the episode after 2026-01 was taken back" in capsys.readouterr().out
    assert last_state(state) == kept
    assert cli.main(["undo", str(state)]) == 2
    assert last_state(state) == kept


def test_the_way_back_stays_until_something_of_the_next_episode_is_saved(
    photos: Path, two_months: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner(state).observe(photos / MONTHS[2])
    with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
        patch.setattr(Training, "advance", lambda *_: 1 / 0)
        learner(state).observe(photos / MONTHS[0], name="next")
    assert learner(state).undo() == MONTHS[2]
    assert last_state(state) == last_state(two_months) and files(state) == files(two_months)


def test_the_advice_after_a_loss_that_is_not_finite_works(
    photos: Path, state: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """At the first step of an episode: nothing of it is saved, the one before can still be taken back, and
    --skip-bad-steps continues. Of a new state, another learning rate takes the place of the first."""

    def observed(path: Path, *more: str) -> tuple[int, str]:
        given = ["--method", "ft", "--preset", "smoke", "--image-size", "16", "--memory-size", "8", "--epochs", "1"]
        code = cli.main(["observe", str(path), str(photos / MONTHS[2]), *given, "--batch-size", "8", "--quiet", *more])
        return code, " ".join(capsys.readouterr().err.split())

    def spoiled(self: Contrast, rep: Representations, context: StepContext) -> torch.Tensor:
        value = loss(self, rep, context)
        return value * (math.nan if context.step == 0 else 1)

    loss, new, kept = Contrast.loss, state.parent / "new", last_state(state)
    monkeypatch.setattr(Contrast, "loss", spoiled)
    code, said = observed(state)
    assert code == 1 and "Continue with --skip-bad-steps N" in said
    assert "Nothing of this episode was saved, so the state is that before it." in said and last_state(state) == kept
    other = Path(shutil.copytree(state, state.parent / "other"))
    assert learner(other).undo() == MONTHS[1]
    assert observed(state, "--skip-bad-steps", "5")[0] == 0 and learner(state).undo() == MONTHS[2]
    code, said = observed(new)
    assert code == 1 and "start a new run with a lower --learning-rate" in said and "To leave this episode" not in said
    assert observed(new, "--learning-rate", "0.001", "--skip-bad-steps", "5")[0] == 0


def test_a_damaged_way_back_is_named_with_what_is_whole(
    photos: Path, state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    progress = progress_of(state)
    assert progress.back is not None
    damaged, kept = state / "episodes" / progress.back.file, files(state)
    damaged.write_bytes(b"x")
    assert cli.main(["undo", str(state)]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert str(damaged) in said and "So 2026-02 cannot be taken back" in said
    assert f"The newest state, {newest(state)}, is whole: osiris observe goes on from it" in said
    assert files(state) == kept
    learner(state).observe(photos / MONTHS[2])


def test_a_state_whose_newest_files_are_damaged_says_how_to_go_back(
    photos: Path, two_months: Path, state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    learner(state).observe(photos / MONTHS[2])
    for saved in progress_of(state).saved:
        (state / "episodes" / saved.file).write_bytes(b"x")
    assert cli.main(["observe", str(state), str(photos / MONTHS[0]), "--name", "next"]) == 2
    assert f"osiris undo {state} goes back to it" in " ".join(capsys.readouterr().err.split())
    assert learner(state).status()["unfinished"] is None, "status needs no state"
    learner(state).undo()
    assert last_state(state) == last_state(two_months)


def test_what_a_method_learned_of_an_episode_goes_with_it_and_not_with_old_weights(photos: Path, state: Path) -> None:
    episode(state, 1).moments.write_bytes(b"sums")
    learner(state).observe(photos / MONTHS[2], keep_tasks=1)
    episode(state, 3).moments.write_bytes(b"sums")
    assert not episode(state, 1).weights.exists() and episode(state, 1).moments.exists()
    gone = episode(state, 3).path
    learner(state).undo()
    assert not gone.exists() and episode(state, 1).moments.exists()


def test_before_the_first_episode_there_was_nothing(photos: Path, tmp_path: Path) -> None:
    with asked_to_stop(task=0, step=1), pytest.raises(Stopped):
        learner(tmp_path / "state").observe(photos / MONTHS[0])
    assert learner(tmp_path / "state").undo() == MONTHS[0] and not (tmp_path / "state").exists()


def test_the_config_goes_last_when_a_first_episode_is_taken_back(photos: Path, tmp_path: Path) -> None:
    """Without it, what is left would be a folder of somebody else."""
    state = tmp_path / "state"
    learner(state).observe(photos / MONTHS[0])
    with killed_at(0) as operations:
        learner(state).undo()
    removed = [what for what in operations if what.endswith((".json", ".jsonl")) and what.startswith("unlink")]
    assert list(dict.fromkeys(removed))[-2:] == ["unlink progress.json", "unlink config.json"]


def test_the_directory_can_be_used_again_after_its_first_episode_was_undone(photos: Path, tmp_path: Path) -> None:
    state = tmp_path / "state"
    learner(state).observe(photos / MONTHS[0])
    for name in ("evaluations/x", "tensorboard", "wandb"):
        (state / name).mkdir(parents=True)
    (state / "baselines.json").write_text("{}")
    (state / "notes.txt").write_text("mine")
    learner(state).undo()
    assert [path.name for path in state.iterdir()] == ["notes.txt"]
    (state / "notes.txt").unlink()
    learner(state).observe(photos / MONTHS[1])


def stop(*_: object) -> None:
    raise Stopped("stopped.")


def test_the_advice_after_an_interruption_is_what_goes_back(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(month: str) -> str:
        with pytest.raises(Stopped) as stopped:
            learner(state).observe(photos / month)
        return str(stopped.value)

    state = tmp_path / "state"
    with monkeypatch.context() as patch:  # before the first checkpoint
        patch.setattr(Log, "open", stop)
        assert interrupted(MONTHS[0]).endswith(f"To go back instead: osiris undo {state}")
    assert cli.main(["undo", str(state)]) == 0 and not state.exists()
    assert "the first episode was taken back" in capsys.readouterr().out
    learner(state).observe(photos / MONTHS[0])
    with monkeypatch.context() as patch:  # nothing of the second episode is saved: there is nothing to take back
        patch.setattr(Log, "open", stop)
        assert interrupted(MONTHS[1]) == "stopped. Give the same command again."
    with monkeypatch.context() as patch:  # after its end
        patch.setattr(module, "measure", stop)
        assert interrupted(MONTHS[1]).endswith(f"To go back instead: osiris undo {state}")
    assert cli.main(["undo", str(state)]) == 0
    assert "2026-02 was taken back" in capsys.readouterr().out


def test_a_state_without_its_checkpoint_is_refused(photos: Path, two_months: Path, state: Path) -> None:
    for file in state.rglob("*.pt"):
        file.unlink()
    refused = pytest.raises(UserError, match=r"its checkpoint is gone: put .*state-\d+\.pt back, or start a new state")
    for call in (lambda: learner(state).observe(photos / MONTHS[2]), learner(state).undo):
        with refused:
            call()
    (state / "metrics.json").unlink()  # the weights are there
    with refused:
        learner(state).observe(photos / MONTHS[2])
    shutil.copy(two_months / "metrics.json", state)
    assert files(state) == files(two_months) and len(learner(state).embed(photos / MONTHS[0])) == 16


def test_a_new_state_that_is_refused_leaves_nothing_behind(
    photos: Path, state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, image in enumerate(sorted((photos / "2026-01").rglob("*.png"))):
        (tmp_path / "labelled" / f"kind {number % 2}").mkdir(parents=True, exist_ok=True)
        shutil.copy(image, tmp_path / "labelled" / f"kind {number % 2}")
    new = tmp_path / "new"
    typed = ["observe", str(new), str(photos / "2026-01"), "--preset", "smoke", "--epochs", "1"]
    for more, message in (
        (["--reference", str(tmp_path / "labelled")], "16 of the 16 images of 2026-01 are labelled images"),
        (["--only-if-better"], "--only-if-better needs labelled images"),
    ):
        assert cli.main([*typed, *more]) == 2
        said = " ".join(capsys.readouterr().err.split())
        assert message in said and "a new state" not in said and "mean nothing" not in said and not new.exists()
    before = files(state)
    with monkeypatch.context() as patch:  # refused after its start
        patch.setattr(Training, "advance", lambda *_: (_ for _ in ()).throw(UserError("no room")))
        for path, month in ((new, MONTHS[0]), (state, MONTHS[2])):
            with pytest.raises(UserError, match="no room"):
                learner(path).observe(photos / month)
    assert not new.exists() and files(state) == before


def test_a_forgotten_image_is_in_no_state(photos: Path, state: Path, tmp_path: Path) -> None:
    learner(state).observe(photos / MONTHS[2])
    held = read_newest(state)
    Image.fromarray(held.memory.images[0].numpy().transpose(1, 2, 0)).save(tmp_path / "secret.png")
    pixels = held.memory.images[0].numpy().tobytes()
    holding = [path for path in state.rglob("*.pt") if pixels in path.read_bytes()]
    assert len(holding) > 1 and learner(state).forget([tmp_path / "secret.png"]) == 1
    assert not [path for path in state.rglob("*") if path.is_file() and pixels in path.read_bytes()]
    assert learner(state).undo() == MONTHS[2], "the state before is whole, without the image"
    assert not torch.tensor([image.numpy().tobytes() == pixels for image in read_newest(state).memory.images]).any()


def test_images_that_were_learned_are_noticed(
    photos: Path, two_months: Path, state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    learner(state).observe(photos / MONTHS[0])
    assert "2026-01 is already learned: nothing to do" in capsys.readouterr().err.replace("\n", " ")
    assert last_state(state) == last_state(two_months)
    learner(state).observe(photos / MONTHS[0], name="again")
    assert "were learned before, as 2026-01" in capsys.readouterr().err.replace("\n", " ")
    assert len(learner(state).status()["episodes"]) == 3


def test_a_folder_that_was_renamed_is_refused_unless_it_gets_a_name(
    photos: Path, state: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing changes: the real month can still be taken back."""
    renamed, before = shutil.copytree(photos / MONTHS[1], tmp_path / "my trip"), files(state)
    assert cli.main(["observe", str(state), str(renamed), "--quiet"]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "the images of my trip were learned before, as 2026-02" in said and "--name 'my trip'" in said
    assert files(state) == before
    assert cli.main(["observe", str(state), str(renamed), "--quiet", "--name", "my trip"]) == 0
    assert [name for name, _ in learner(state).status()["episodes"]] == [*MONTHS[:2], "my trip"]
    assert learner(state).undo() == "my trip"


def test_observe_speaks_of_images_and_time(
    photos: Path, state: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every month has an estimate; names of methods, losses and ranks need --verbose, and are in the log."""
    month = shutil.copytree(photos / MONTHS[2], tmp_path / MONTHS[2])
    (month / "broken.png").write_bytes(b"no image")
    assert cli.main(["observe", str(state), str(month)]) == 0
    said = " ".join(capsys.readouterr().err.split())
    assert "2026-03: 16 images: about 1 s on cpu" in said and "1 image(s) could not be decoded" in said
    assert "broken.png" in said
    for word in ("seed", "task", "rank", "loss", "epoch", "steps"):
        assert word not in said, word
    learner(state).undo()
    assert cli.main(["observe", str(state), str(month), "--verbose"]) == 0
    said = " ".join(capsys.readouterr().err.split())
    assert "seed 0: after task 3/3" in said and "steps: about" in said


def test_an_unfinished_episode_is_never_told_as_learned(
    photos: Path, state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also if the folder that is given instead was learned before. The commands can be pasted into a shell."""
    state = state.rename(state.parent / "my state #1")
    back = f"osiris undo {shlex.quote(str(state))}"
    with asked_to_stop(task=2, step=1), pytest.raises(Stopped, match=re.escape(f"To go back instead: {back}")):
        learner(state).observe(photos / MONTHS[2])
    assert cli.main(["observe", str(state), str(photos / MONTHS[0]), "--quiet"]) == 2
    shown = capsys.readouterr()
    assert "2026-03 is not finished" in shown.err and back in shown.err and "after" not in shown.out
    assert cli.main(["status", str(state)]) == 0
    shown = capsys.readouterr()
    said = " ".join(shown.err.split())
    assert f"Continue with: {back.replace('undo', 'observe')} FOLDER, or take it back with: {back}" in said
    assert "after 2026-02: " in shown.out and "after 2026-03" not in shown.out


def test_each_month_is_learned_in_order_also_after_an_interruption(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "state"
    learner(path).observe(photos / MONTHS[0])
    assert cli.main(["observe", str(path), str(photos), "--quiet"]) == 2
    assert "has 3 folders that look like episodes (2026-01, 2026-02, 2026-03)" in capsys.readouterr().err
    with asked_to_stop(task=1, step=1):
        assert cli.main(["observe", str(path), str(photos), "--each", "--quiet"]) == 75
    assert cli.main(["observe", str(path), str(photos), "--each", "--quiet"]) == 0
    assert [name for name, _ in learner(path).status()["episodes"]] == list(MONTHS)
    assert "after 2026-03: whether the features got better is not known" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{new}", "{photos}/2026-13"], "2026-13 does not exist; give a folder of images"),
        (["{new}", "{photos}/2026-01/0.png"], "0.png is a file; give a folder with four or more images"),
        (["{photos}/2026-01", "{new}"], "2026-01 has images in it, but the state needs a directory of its own"),
        (["{photos}/2026-01", "{state}"], "is a state or run, not a folder of images. Use: osiris observe STATE"),
        (["{new}", "{few}"], "few has too few images (3): learning needs at least 4"),
        (["{new}", "{photos}/2026-01", "--reference", "{few}"], "needs at least two subfolders of images"),
        (["{state}"], "FOLDER is missing"),
        (["{new}", "{loose}", "--each"], "has images that are in none of its folders (cover.png): move them into one"),
        (["{new}", "{empty}", "--each"], "empty has no images"),
    ],
)
def test_a_wrong_folder_is_named_and_nothing_is_left_behind(
    arguments: list[str],
    message: str,
    photos: Path,
    two_months: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_pictures(tmp_path / "few", 3, seed=9)
    shutil.copytree(photos, tmp_path / "loose")
    shutil.copy(photos / "2026-01" / "0.png", tmp_path / "loose" / "cover.png")
    (tmp_path / "empty").mkdir()
    places = {name: tmp_path / name for name in ("new", "few", "loose", "empty")}
    typed = [part.format(**places, photos=photos, state=two_months) for part in arguments]
    assert cli.main(["observe", *typed]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "new").exists() and not list(photos.rglob(".lock"))


def test_other_labelled_images_are_refused_before_learning(photos: Path, state: Path, tmp_path: Path) -> None:
    for seed, name in enumerate(("cat", "dog")):
        write_pictures(tmp_path / "labelled" / name, 4, seed=20 + seed)
    others = tmp_path / "others"
    for seed in range(3):
        write_pictures(others / f"kind {seed}", 16, seed=40 + seed)
    learner(state).measure(tmp_path / "labelled")
    accuracy = learner(state).status()["observations"]
    with pytest.raises(UserError, match=r"was measured with 8 labelled images of 2 classes .*has 48 of 3"):
        learner(state).observe(photos / MONTHS[2], reference=others)
    assert len(learner(state).status()["episodes"]) == 2 and learner(state).status()["observations"] == accuracy
    learner(state).observe(photos / MONTHS[2], reference=others, new_reference=True)
    measured = [one.reference for one in learner(state).status()["observations"].episodes]
    assert [one.images for one in measured if one is not None] == [48, 48, 48]


def test_other_labelled_images_of_the_same_number_are_noticed(photos: Path, state: Path, tmp_path: Path) -> None:
    for place, seed in (("labelled", 20), ("others", 50)):
        for number, name in enumerate(("cat", "dog")):
            write_pictures(tmp_path / place / name, 4, seed=seed + number)
    first = learner(state).measure(tmp_path / "labelled").episodes[0].reference
    with pytest.raises(UserError, match=r"was measured with 8 labelled images of 2 classes .*has 8 of 2"):
        learner(state).measure(tmp_path / "others")
    other = learner(state).measure(tmp_path / "others", new_reference=True).episodes[0].reference
    assert first is not None and other is not None and first.digest != other.digest


def test_a_way_back_of_another_episode_is_not_taken(photos: Path, state: Path) -> None:
    """As in a progress.json that somebody has put together."""
    learner(state).observe(photos / MONTHS[2])
    progress = progress_of(state)
    assert progress.back is not None
    first = replace(progress.back, position=replace_position(progress.back.position, task=1))
    write_record(state / "progress.json", replace(progress, back=first))
    kept = files(state)
    with pytest.raises(UserError, match=r"2026-03 cannot be taken back\. Only the last episode"):
        learner(state).undo()
    assert files(state) == kept


def test_evaluate_prints_the_accuracy_on_labelled_images(
    two_months: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed, name in enumerate(("cat", "dog")):
        write_pictures(tmp_path / "labelled" / name, 6, seed=30 + seed)
    assert cli.main(["evaluate", str(two_months)]) == 2
    assert "give labelled images with --reference FOLDER" in capsys.readouterr().err
    assert cli.main(["evaluate", str(two_months), "--reference", str(tmp_path / "labelled")]) == 0
    printed = capsys.readouterr().out
    scores = learner(Path(shutil.copytree(two_months, tmp_path / "copy"))).measure(tmp_path / "labelled").episodes
    for one, name in zip(scores, MONTHS):
        assert one.reference is not None
        low, high = one.reference.interval
        row = next(line for line in printed.splitlines() if name in line and "change" not in line)
        assert f"{one.reference.accuracy:.1f}" in row and f"{low:.1f} to {high:.1f}" in row
        assert low < one.reference.accuracy < high or one.reference.accuracy in (0, 100)


def test_the_first_episode_is_announced_and_judged(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed, name in enumerate(("cat", "dog")):
        write_pictures(tmp_path / "labelled" / name, 6, seed=40 + seed)
    typed = ["--preset", "smoke", "--epochs", "1", "--reference", str(tmp_path / "labelled")]
    assert cli.main(["observe", str(tmp_path / "state"), str(photos / MONTHS[0]), *typed]) == 0
    shown = capsys.readouterr()
    said = " ".join(shown.err.split())
    assert "2026-01: 16 images of 20 x 20 pixels (the median of this folder; --image-size changes it): about" in said
    assert "about 1 s on" in said and "loss" not in said and "rank" not in said and "seed" not in said
    scores = learner(tmp_path / "state").status()["observations"].episodes[0].reference
    assert scores is not None
    low, high = scores.interval
    text = f"{scores.accuracy:.1f}% correct (95% interval {low:.1f} to {high:.1f}, 12 images)"
    assert (
        f"after 2026-01: labelled images: {text}" in shown.out
        and f"chance 50.0, pixels {scores.pixels:.1f}." in shown.out
    )
    assert ("Not significantly above" in shown.out) == (low <= max(50, scores.pixels))


def test_status_says_how_to_continue(photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    typed = [
        "--method",
        "ft",
        "--preset",
        "smoke",
        "--image-size",
        "16",
        "--epochs",
        "1",
        "--out",
        str(tmp_path / "run"),
    ]
    with asked_to_stop(task=1, step=1):
        assert cli.main(["train", "--benchmark", f"folder:{photos}", *typed, "--quiet"]) == 75
    shown = " ".join(capsys.readouterr().err.split())
    assert shown.count("its numbers mean nothing") == 1 and "collapsed" not in shown
    assert cli.main(["status", str(tmp_path / "run")]) == 0
    shown = capsys.readouterr()
    assert "2026-02 (task 2 of 3) is not finished. Continue with: osiris train --resume" in shown.err
    assert "2026-01" in shown.out and "2026-02" in shown.out and "2026-03" not in shown.out, "not begun"
    assert cli.main(["undo", str(tmp_path / "run")]) == 2
    assert "2026-02 cannot be taken back" in capsys.readouterr().err


def test_compare_says_that_smoke_numbers_mean_nothing(
    arrays: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(arguments(arrays, tmp_path / "run")) == 0
    capsys.readouterr()
    assert cli.main(["compare", str(tmp_path / "run")]) == 0
    assert "its numbers mean nothing" in " ".join(capsys.readouterr().err.split())


def test_labelled_images_are_not_learned_from_silently(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    labelled = tmp_path / "labelled"
    for number, image in enumerate(sorted((photos / "2026-01").rglob("*.png"))[:8]):
        (labelled / f"kind {number % 2}").mkdir(parents=True, exist_ok=True)
        shutil.copy(image, labelled / f"kind {number % 2}")
    with pytest.raises(UserError, match="is the folder of --reference"):
        learner(tmp_path / "state").observe(labelled, name="x", reference=labelled)
    assert not (tmp_path / "state").exists()
    learner(tmp_path / "state").observe(photos / "2026-01", reference=labelled)
    said = " ".join(capsys.readouterr().err.split())
    assert "8 of the 16 images of 2026-01 are labelled images of --reference: they are learned from too" in said
    before = (tmp_path / "state" / "metrics.json").read_bytes()
    with pytest.raises(UserError, match="8 of the 8 images of copy are labelled images"):
        learner(tmp_path / "state").observe(shutil.copytree(labelled, tmp_path / "copy"), name="copy")
    assert (tmp_path / "state" / "metrics.json").read_bytes() == before
    learner(tmp_path / "state").observe(photos / "2026-02")
    assert "labelled images of --reference" not in capsys.readouterr().err
