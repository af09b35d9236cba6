"""Unlabelled images keep arriving: the same bits as one run over all of them, whatever happens in between."""

import gc
import os
import random
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow.parquet
import pytest
import torch
from msgspec.structs import replace
from PIL import Image

import fork_server
from osiris import cli
from osiris.errors import Stopped, UserError
from osiris.evaluation.runs import load_runs
from osiris.files import load_tensors
from osiris.learner import Learner
from osiris.report import page
from osiris.report.benchmark_images import find_images
from osiris.report.figures import unlabelled as state_figures
from osiris.report.studies import studies
from osiris.report.writer import ReportWriter
from osiris.training import checkpoint, loop
from osiris.training.config import with_options
from osiris.training.presets import preset
from quick import quick
from tiny_runs import asked_to_stop, last_state, pictures

OPTIONS: dict[str, Any] = {"image_size": 16, "memory_size": 12, "epochs": 2, "batch_size": 8}
WEEKS = ("week 1", "week 2", "week 3")


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three folders; the second has fewer images than a batch."""
    root = tmp_path_factory.mktemp("photos")
    images, _, tasks = pictures(10, seed=3)
    for task, week in enumerate(WEEKS):
        (root / week).mkdir()
        for number, image in enumerate(images[tasks == task][: 6 if task == 1 else 20]):
            Image.fromarray(image.transpose(1, 2, 0)).save(root / week / f"{number:02d}.png")
    return root


def learner(path: Path, method: str | None = None) -> Learner:
    return Learner(path, method, "smoke", **OPTIONS)


@pytest.fixture(scope="module")
def observed(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("state") / "state"
    for week in WEEKS:
        learner(path).observe(photos / week)
    return path


@pytest.mark.parametrize("method", quick({"osiris-d"}, ["osiris-d", "der"]))
def test_episodes_one_by_one_give_the_bits_of_one_run(method: str, photos: Path, tmp_path: Path) -> None:
    for week in WEEKS:
        learner(tmp_path / "state", method).observe(photos / week)
    config = with_options(preset("smoke", "folder:"), OPTIONS | {"benchmark": f"folder:{photos}", "method": method})
    loop.train(config, tmp_path / "run", quiet=True)
    assert last_state(tmp_path / "state") == last_state(tmp_path / "run")
    for task in range(3):
        name = f"checkpoints/task-{task + 1:02d}.safetensors"
        states = [load_tensors(tmp_path / folder / name)[0] for folder in ("state", "run")]
        assert states[0].keys() == states[1].keys()
        assert all(torch.equal(value, states[1][key]) for key, value in states[0].items())


def test_a_run_of_osiris_train_learns_on(photos: Path, tmp_path: Path) -> None:
    (tmp_path / "first").mkdir()
    for week in WEEKS[:2]:
        (tmp_path / "first" / week).symlink_to(photos / week)
    config = with_options(preset("smoke", "folder:"), OPTIONS | {"benchmark": f"folder:{tmp_path / 'first'}"})
    loop.train(config, tmp_path / "run", quiet=True)
    assert cli.main(["train", "--resume", str(tmp_path / "run"), "--add-task", str(photos / WEEKS[2]), "--quiet"]) == 0
    resumed = checkpoint.load_state(tmp_path / "run" / "checkpoints")
    assert resumed is not None
    checkpoint.save_state(tmp_path / "run" / "checkpoints", resumed | {"files": {}})  # as if killed before the metrics
    with pytest.raises(UserError, match="has more tasks since: week 3; continue with osiris observe"):
        loop.train(config, tmp_path / "run", quiet=True)
    whole = with_options(config, {"benchmark": f"folder:{photos}"})
    loop.train(whole, tmp_path / "whole", quiet=True)
    assert last_state(tmp_path / "run") == last_state(tmp_path / "whole")


def test_an_interrupted_episode_is_continued_by_the_same_call(
    photos: Path, observed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = tmp_path / "state"
    for week in WEEKS[:2]:
        learner(state).observe(photos / week)
    with asked_to_stop(task=2, step=1), pytest.raises(Stopped):
        learner(state).observe(photos / WEEKS[2])
    assert learner(state).status()["unfinished"] == WEEKS[2]
    with pytest.raises(UserError, match=r"task 3 \(week 3\) is not finished: give its images again"):
        learner(state).observe(photos / WEEKS[0])
    assert cli.main(["train", "--resume", str(state)]) == 2
    assert f"osiris observe {state} FOLDER, where FOLDER holds the images of week 3" in capsys.readouterr().err
    learner(state).observe(photos / WEEKS[2])
    assert last_state(state) == last_state(observed)
    learner(state).observe(photos / WEEKS[2])
    assert "week 3 is already learned" in capsys.readouterr().err.replace("\n", " ")
    assert last_state(state) == last_state(observed), "a command that is given again after its end changes nothing"


@pytest.mark.parametrize("moments", quick({2}, [2, 20]))
def test_kills_lose_no_episode(moments: int, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGKILL at random moments of the second episode, until the command has ended; then the same command again."""
    monkeypatch.setenv("OSIRIS_CACHE", str(tmp_path / "cache"))
    first, output, counted = tmp_path / "first", tmp_path / "output", tmp_path / "counted"
    learner(first).observe(photos / WEEKS[0])

    def observe(state: Path, job: str, **arguments: Any) -> int | None:
        typed = ["observe", str(state), str(photos / WEEKS[1]), "--quiet"]
        return fork_server.run(job, output, arguments=typed, **arguments)

    shutil.copytree(first, tmp_path / "whole")
    assert observe(tmp_path / "whole", "doomed", death=None, counted=str(counted)) == 0
    cache = Path(os.environ["OSIRIS_CACHE"])
    for death in random.Random(moments).sample(range(1, int(counted.read_text()) + 1), moments):
        state = tmp_path / f"killed-{death}"
        shutil.copytree(first, state)
        shutil.rmtree(cache)  # so that the images are decoded as in the run whose moments were counted
        assert observe(state, "doomed", death=death) == -signal.SIGKILL
        assert learner(state).status()["episodes"][0] == (WEEKS[0], 20) and learner(state).embed(photos).shape[0] == 46
        assert observe(state, "command") == 0, output.read_text()
        assert last_state(state) == last_state(tmp_path / "whole"), death
        assert learner(state).status()["observations"] == learner(tmp_path / "whole").status()["observations"]


def test_status_embed_and_forget_on_the_command_line(
    photos: Path, observed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state, extra = tmp_path / "state", tmp_path / "extra"
    shutil.copytree(observed, state)
    assert cli.main(["status", str(state)]) == 0
    printed = capsys.readouterr().out
    assert all(week in printed for week in WEEKS) and "46" in printed and "12" in printed

    shutil.copytree(photos / WEEKS[1], extra / "deep")
    (extra / "broken.png").write_bytes(b"no image")
    (extra / "notes.txt").write_text("no image")
    assert cli.main(["embed", str(state), str(extra), "--out", str(tmp_path / "f.parquet")]) == 0
    table = pyarrow.parquet.read_table(tmp_path / "f.parquet").to_pydict()
    assert [Path(path).name for path in table["path"]] == [f"{number:02d}.png" for number in range(6)]
    features = learner(state).embed(photos / WEEKS[1])
    np.testing.assert_array_equal(np.array(table["vector"], dtype=np.float32), features)
    np.testing.assert_allclose(learner(state).embed(photos / WEEKS[1] / "03.png")[0], features[3], rtol=1e-4, atol=1e-5)

    memory = checkpoint.load_state(state / "checkpoints")["engine"]["model"]  # pyright: ignore
    stored = memory["memory.images"][0].numpy().transpose(1, 2, 0)
    Image.fromarray(stored).save(tmp_path / "secret.png")
    assert cli.main(["observe", str(state), "--forget", str(tmp_path / "secret.png")]) == 0
    for name in ("latest.pt", "previous.pt"):
        held = checkpoint.read_state(state / "checkpoints" / name)["engine"]["model"]["memory.images"]
        assert not any(np.array_equal(image.numpy().transpose(1, 2, 0), stored) for image in held)
    assert cli.main(["observe", str(state)]) == 2


@pytest.mark.parametrize("episodes", quick({4}, [4, 50]))
def test_neither_state_nor_memory_grows_with_the_episodes(episodes: int, photos: Path, tmp_path: Path) -> None:
    """Apart from the records of each episode (metrics, log, environment, observations): measured, 5.2 kB."""
    sizes, memory, tensors, state = [], [], [], tmp_path / "state"
    for number in range(episodes):
        learner(state, "ft").observe(photos / WEEKS[0], name=f"day {number}", keep_tasks=1)
        sizes.append(learner(state).status()["bytes"])
        memory.append(psutil.Process().memory_info().rss)
        gc.collect()
        tensors.append(sum(type(one) is torch.nn.Parameter for one in gc.get_objects()))
    assert len(list((state / "checkpoints").glob("task-*"))) == len(list(state.glob("evaluation/*.safetensors"))) == 1
    assert sizes[-1] - sizes[1] < 6000 * (episodes - 2), sizes
    assert tensors[-1] == tensors[1], "the networks of earlier episodes are freed"
    if episodes > 10:
        assert memory[-1] - memory[9] < 20e6, memory


def test_arguments_that_contradict_the_state_are_refused(photos: Path, observed: Path) -> None:
    with pytest.raises(UserError, match=r"method\.method is 'osiris-d' there and 'ft' here"):
        learner(observed, "ft").observe(photos / WEEKS[0])
    with pytest.raises(UserError, match="give the directory of a state or run"):
        Learner(photos / "nothing").embed(photos / WEEKS[0])


def test_search_finds_the_image_itself_first(
    photos: Path, observed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hits, _ = learner(observed).search(photos, photos / WEEKS[2] / "07.png", count=5)
    assert hits[0][0] == photos / WEEKS[2] / "07.png" and hits[0][1] == pytest.approx(1, abs=1e-5)
    similarities = [similarity for _, similarity in hits]
    assert len(hits) == 5 and similarities == sorted(similarities, reverse=True)

    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "broken.png").write_bytes(b"not an image")
    typed = ["search", str(observed), str(photos), str(photos / WEEKS[0] / "00.png"), "--out", str(tmp_path / "s.png")]
    assert cli.main([*typed, "--count", "8"]) == 0
    assert "00.png" in capsys.readouterr().out
    with Image.open(tmp_path / "s.png") as sheet:
        assert sheet.width > 6 * 96 and sheet.height > 3 * 96
    assert cli.main(["search", str(observed), str(tmp_path / "bad"), str(photos / WEEKS[0] / "00.png")]) == 2
    assert "broken.png was left out" in capsys.readouterr().err.replace("\n", " ")


def test_labelled_images_and_movement_are_measured_after_every_episode(
    photos: Path, observed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, labelled = tmp_path / "state", tmp_path / "labelled"
    for number, image in enumerate(pictures(6, seed=5)[0]):
        (labelled / f"class {number // 6}").mkdir(parents=True, exist_ok=True)
        Image.fromarray(image.transpose(1, 2, 0)).save(labelled / f"class {number // 6}" / f"{number}.png")
    shutil.copytree(observed, state)
    before = learner(state).measure()
    assert [one.task for one in before.episodes] == [0, 1, 2] and before.episodes[0].drift is None
    assert all((one.drift or 0) > 0 and 0 <= (one.same_neighbours or 0) <= 100 for one in before.episodes[1:])
    assert cli.main(["observe", str(state), "--reference", str(labelled)]) == 0
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):  # killed between training and measuring
        patch.setattr(Learner, "measure", lambda *_: signal.raise_signal(signal.SIGINT))
        learner(state).observe(photos / WEEKS[1], name="again")
    learner(state).observe(photos / WEEKS[1], name="again", keep_tasks=2)
    after = learner(state).status()["observations"].episodes
    assert len(after) == 4 and after[:3] == tuple(
        replace(a, reference=b.reference) for a, b in zip(before.episodes, after)
    )
    assert after[3].drift is not None and {one.reference.images for one in after if one.reference} == {36}
    assert all(one.reference is not None for one in after)

    (study,), damaged = studies(load_runs([state]))
    assert not damaged, "the last episode is smaller than the first"
    for make in (state_figures.reference, state_figures.movement, state_figures.memory_neighbours):
        assert make(study) is not None, make
    items = page.observations(ReportWriter(tmp_path / "report"), study, find_images(study))
    assert len([item for item in items if item is not None]) == 4
