"""Episodes that were a mistake: noticed, refused, or taken back to the bits before them."""

import re
import shlex
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from PIL import Image

from osiris import cli
from osiris.errors import Stopped, UserError
from osiris.learner import Learner, before
from osiris.learner import learner as module
from osiris.runs.state import LATEST, load_state
from osiris.training.log import Log
from osiris.training.run import Training
from pictures import write_pictures
from tiny_runs import arguments, asked_to_stop, last_state, write_arrays

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
    """Everything that later calls read, except the checkpoints, which are compared as states."""
    others = (".lock", "environment.json", "log.jsonl", "latest.pt", "previous.pt", "taken-back")
    paths = [path for path in state.rglob("*") if path.is_file() and "before" not in path.parts]
    return {str(path.relative_to(state)): path.read_bytes() for path in paths if path.name not in others}


def test_an_unfinished_episode_is_discarded(
    photos: Path, two_months: Path, state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with asked_to_stop(task=2, step=1), pytest.raises(Stopped):
        learner(state).observe(photos / MONTHS[2])
    assert cli.main(["observe", str(state), "--undo"]) == 2
    assert "2026-03 is not finished; --discard takes it back" in capsys.readouterr().err
    assert cli.main(["observe", str(state), "--discard"]) == 0
    assert "2026-03 was taken back" in capsys.readouterr().out
    assert last_state(state) == last_state(two_months) and files(state) == files(two_months)
    assert cli.main(["observe", str(state), "--discard"]) == 2
    assert "no unfinished episode" in capsys.readouterr().err
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
    assert cli.main([*measure, "--compatibility", "--out", str(state / "evaluation")]) == 0
    learner(state).undo()
    names = {path.name for path in state.glob("evaluation*/**/*.*")}
    assert "task-02-features.safetensors" in names
    assert not [name for name in names if name.startswith(("task-03", "metrics", "compatibility"))]


def test_a_kill_while_going_back_loses_nothing(
    photos: Path, two_months: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner(state).observe(photos / MONTHS[2])
    move = Path.replace

    def killed_at_the_checkpoint(path: Path, target: Path) -> Path:
        if path.name == LATEST:
            raise KeyboardInterrupt
        return move(path, target)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Path, "replace", killed_at_the_checkpoint)
        learner(state).undo()
    assert learner(state).embed(photos / MONTHS[0]).shape[0] == 16
    learner(state).undo()
    assert last_state(state) == last_state(two_months) and files(state) == files(two_months)


def killed_in(function: str) -> SimpleNamespace:
    """shutil, with a function in which the process ends."""
    ends = {function: lambda *_: (_ for _ in ()).throw(KeyboardInterrupt())}
    return SimpleNamespace(**vars(shutil) | ends)


@pytest.mark.parametrize("option", ["--undo", "--discard"])
def test_a_kill_before_the_copy_is_removed_takes_nothing_else_back(
    option: str, photos: Path, state: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(before, "shutil", killed_in("rmtree"))
        learner(state).undo()
    kept = last_state(state)
    assert (state / "checkpoints" / "before").exists()
    assert cli.main(["observe", str(state), option]) == 0
    assert "the episode after 2026-01 was taken back" in capsys.readouterr().out
    assert last_state(state) == kept and not (state / "checkpoints" / "before").exists()


@pytest.mark.parametrize("function", ["rmtree", "copyfile"])
def test_a_kill_while_the_copy_is_made_leaves_a_whole_one_or_none(
    function: str, photos: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it would look like an episode that is taken back already."""
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(before, "shutil", killed_in(function))
        learner(state).observe(photos / MONTHS[2])
    assert not (state / "checkpoints" / "before").exists()
    learner(state).observe(photos / MONTHS[2])
    assert not list((state / "checkpoints").glob(".*.tmp")) and learner(state).undo() == MONTHS[2]


def test_before_the_first_episode_there_was_nothing(photos: Path, tmp_path: Path) -> None:
    with asked_to_stop(task=0, step=1), pytest.raises(Stopped):
        learner(tmp_path / "state").observe(photos / MONTHS[0])
    assert learner(tmp_path / "state").discard() == MONTHS[0] and not (tmp_path / "state").exists()


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
        assert interrupted(MONTHS[0]).endswith(f"To go back instead: osiris observe {state} --discard")
    assert cli.main(["observe", str(state), "--discard"]) == 0 and not state.exists()
    assert "the first episode was taken back" in capsys.readouterr().out
    learner(state).observe(photos / MONTHS[0])
    with monkeypatch.context() as patch:  # nothing of the second episode is saved: there is nothing to take back
        patch.setattr(Log, "open", stop)
        assert interrupted(MONTHS[1]) == "stopped. Give the same command again."
    with monkeypatch.context() as patch:  # after its end
        patch.setattr(module, "measure", stop)
        assert interrupted(MONTHS[1]).endswith(f"To go back instead: osiris observe {state} --undo")
    assert cli.main(["observe", str(state), "--undo"]) == 0
    assert "2026-02 was taken back" in capsys.readouterr().out


def test_a_state_without_its_checkpoint_is_refused(photos: Path, two_months: Path, state: Path) -> None:
    for file in (state / "checkpoints").glob("*.pt"):
        file.unlink()
    refused = pytest.raises(UserError, match=r"its checkpoint is gone: put .*latest\.pt back, or start a new state")
    for call in (lambda: learner(state).observe(photos / MONTHS[2]), learner(state).undo, learner(state).discard):
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


def test_a_forgotten_image_is_not_in_the_state_before(photos: Path, state: Path, tmp_path: Path) -> None:
    learner(state).observe(photos / MONTHS[2])
    held = load_state(state / "checkpoints")
    assert held is not None and (state / "checkpoints" / "before" / "latest.pt").exists()
    Image.fromarray(held.memory.images[0].numpy().transpose(1, 2, 0)).save(tmp_path / "secret.png")
    assert learner(state).forget([tmp_path / "secret.png"]) == 1
    assert not (state / "checkpoints" / "before").exists()


def test_images_that_were_learned_are_noticed(
    photos: Path, two_months: Path, state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    learner(state).observe(photos / MONTHS[0])
    assert "2026-01 is already learned: nothing to do" in capsys.readouterr().err.replace("\n", " ")
    assert last_state(state) == last_state(two_months)
    learner(state).observe(photos / MONTHS[0], name="again")
    assert "were learned before, as 2026-01" in capsys.readouterr().err.replace("\n", " ")
    assert len(learner(state).status()["episodes"]) == 3


def test_an_unfinished_episode_is_never_told_as_learned(
    photos: Path, state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also if the folder that is given instead was learned before. The commands can be pasted into a shell."""
    state = state.rename(state.parent / "my state #1")
    back = f"osiris observe {shlex.quote(str(state))} --discard"
    with asked_to_stop(task=2, step=1), pytest.raises(Stopped, match=re.escape(f"To go back instead: {back}")):
        learner(state).observe(photos / MONTHS[2])
    assert cli.main(["observe", str(state), str(photos / MONTHS[0]), "--quiet"]) == 2
    shown = capsys.readouterr()
    assert "2026-03 is not finished" in shown.err and back in shown.err and "after" not in shown.out
    assert cli.main(["status", str(state)]) == 0
    shown = capsys.readouterr()
    said = " ".join(shown.err.split())
    assert f"Continue with: {back.removesuffix('--discard')}FOLDER, or take it back with: {back}" in said
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
        (["{state}", "--discard", "--undo"], "give --discard or --undo alone"),
        (["{state}", "--forget", "{few}/0.png", "--undo"], "give --discard or --undo alone"),
        (["{state}", "--reference", "{few}", "--discard"], "give --discard or --undo alone"),
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
    assert "2026-01: 16 images of 20 x 20 pixels (the median of this folder; --image-size changes it), 2 steps:" in said
    assert said.index("about 1 s on") < said.index("after task 1")
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
    assert cli.main(["observe", str(tmp_path / "run"), "--discard"]) == 2
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
