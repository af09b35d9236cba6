"""Unlabelled images keep arriving: the same bits as one run over all of them, whatever happens in between."""

import gc
import json
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
from osiris.config import with_options
from osiris.errors import Stopped, UserError
from osiris.evaluation.scores import Comparison
from osiris.files import load_tensors
from osiris.learner import Learner
from osiris.learner import learner as learner_module
from osiris.learner import observations as observations_module
from osiris.presets import configure
from osiris.reporting import page
from osiris.reporting.benchmark_images import find_images
from osiris.reporting.figures import episodes as state_figures
from osiris.reporting.studies import studies
from osiris.reporting.writer import ReportWriter
from osiris.runs.directory import RunDirectory
from osiris.runs.progress import write_progress
from osiris.runs.run import load_runs
from osiris.runs.state import State, read_state
from osiris.training.run import Opening, train
from quick import quick
from tiny_runs import (
    asked_to_stop,
    contents,
    episode,
    last_state,
    newest,
    pictures,
    progress_of,
    read_newest,
)

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
    config = with_options(configure("", "smoke"), OPTIONS | {"benchmark": f"folder:{photos}", "method": method})
    train(Opening(config, tmp_path / "run", quiet=True))
    assert last_state(tmp_path / "state") == last_state(tmp_path / "run")
    for task in range(3):
        states = [load_tensors(episode(tmp_path / folder, task + 1).weights)[0] for folder in ("state", "run")]
        assert states[0].keys() == states[1].keys()
        assert all(torch.equal(value, states[1][key]) for key, value in states[0].items())


def test_mixing_pairs_every_image_while_the_memory_is_short(tmp_path: Path) -> None:
    """The memory holds 6 images, and a batch of the second episode has 20."""
    images = pictures(10, seed=3)[0]
    state = Learner(tmp_path / "state", "lump", "smoke", image_size=16, memory_size=64, epochs=1, batch_size=20)
    state.observe(images[:6], name="few").observe(images[6:46], name="many")
    assert state.status()["memory"] == [6, 40]


def test_a_run_of_osiris_train_learns_on(photos: Path, tmp_path: Path) -> None:
    (tmp_path / "first").mkdir()
    for week in WEEKS[:2]:
        (tmp_path / "first" / week).symlink_to(photos / week)
    config = with_options(configure("", "smoke"), OPTIONS | {"benchmark": f"folder:{tmp_path / 'first'}"})
    train(Opening(config, tmp_path / "run", quiet=True))
    assert cli.main(["observe", str(tmp_path / "run"), str(photos / WEEKS[2]), "--quiet"]) == 0
    metrics = (tmp_path / "run" / "metrics.json").read_bytes()
    (tmp_path / "run" / "metrics.json").unlink()  # as if killed before the metrics
    train(Opening(config, tmp_path / "run", quiet=True))
    assert (tmp_path / "run" / "metrics.json").read_bytes() == metrics, "of the evaluations"
    episode(tmp_path / "run", 3).evaluation.unlink()
    with pytest.raises(UserError, match="has more tasks since: week 3; continue with osiris observe"):
        train(Opening(config, tmp_path / "run", quiet=True))
    whole = with_options(config, {"benchmark": f"folder:{photos}"})
    train(Opening(whole, tmp_path / "whole", quiet=True))
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
    with pytest.raises(UserError, match=r"episode 3 \(week 3\) is not finished: give its images again"):
        learner(state).observe(photos / WEEKS[0], name="other")
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


@pytest.mark.parametrize("moments", quick({"some"}, ["some", "all"]))
def test_killed_where_a_file_moves(moments: str, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGKILL before and after a file moves into its place; the same command again ends with the same files."""
    monkeypatch.setenv("OSIRIS_CACHE", str(tmp_path / "cache"))
    first, whole, output, counted = (tmp_path / name for name in ("first", "whole", "output", "counted"))
    learner(first).observe(photos / WEEKS[0])

    def observe(state: Path, job: str, **arguments: Any) -> int | None:
        return fork_server.run(job, output, arguments=["observe", str(state), str(photos / WEEKS[1])], **arguments)

    shutil.copytree(first, whole)
    shutil.copytree(tmp_path / "cache", tmp_path / "first cache")
    assert observe(whole, "doomed", death=None, counted=str(counted), moves=True) == 0
    last = int(counted.read_text())
    sampled = {random.Random(1).randrange(1, last - 5), last - 5, last - 1}  # before metrics.json, observations.json
    for death in range(1, last + 1) if moments == "all" else sorted(sampled):
        state = tmp_path / f"killed-{death}"
        shutil.copytree(first, state)
        shutil.rmtree(tmp_path / "cache")
        shutil.copytree(tmp_path / "first cache", tmp_path / "cache")
        assert observe(state, "doomed", death=death, moves=True) == -signal.SIGKILL
        for name in ("metrics.json", "observations.json") if death == last - 5 else ():
            assert (state / name).read_bytes() == (first / name).read_bytes(), "killed before these are replaced"
        assert observe(state, "command") == 0, output.read_text()
        assert contents(state) == contents(whole), death
        assert (state / "observations.json").read_bytes() == (whole / "observations.json").read_bytes(), death


def test_forgotten_images_are_in_no_file_of_the_state(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where a damaged state and the rest of a killed save lie beside it. A slot becomes a copy of another."""
    state, secret = tmp_path / "state", tmp_path / "secret.png"
    for week in WEEKS[:2]:
        learner(state, "der").observe(photos / week)
    before = read_newest(state).engine["model"]
    pixels = before["memory.images"][3].clone()
    Image.fromarray(pixels.numpy().transpose(1, 2, 0)).save(secret)
    left = [newest(state).with_name(name) for name in ("state-000099.pt", ".state-000099.pt.abc.tmp")]
    for path in left:
        shutil.copy(newest(state), path)

    def holding() -> set[str]:
        files = [path for path in state.rglob("*") if path.is_file()]
        return {path.name for path in files if pixels.numpy().tobytes() in path.read_bytes()}

    assert {newest(state).name, *(path.name for path in left)} <= holding()
    states = len(progress_of(state).states)
    cache = Path(os.environ["OSIRIS_CACHE"])
    cached = set(cache.rglob("*"))
    assert cli.main(["forget", str(state), str(secret)]) == 0
    assert holding() == set() and set(cache.rglob("*")) == cached
    assert f"may remain in the cache, {os.environ['OSIRIS_CACHE']}" in capsys.readouterr().err
    progress = progress_of(state)
    assert len(progress.states) == states and progress.back is not None, "the last episode can still be taken back"
    for saved in progress.saved:
        after = read_state(RunDirectory(state), saved, progress)["model"]
        fields = [field for field in after if field.startswith("memory.") and after[field].ndim > 0]
        assert {"memory.images", "memory.source", "memory.task"} < set(fields) and len(fields) > 4
        found = {slot for slot in range(12) if torch.equal(before["memory.images"][slot], pixels)}
        assert found
        for slot in range(12):
            same = [one for one in range(12) if all(torch.equal(after[key][slot], before[key][one]) for key in fields)]
            assert same and not found.intersection(same) and (slot in found or slot in same)


def test_a_folder_that_a_received_state_names_is_not_opened(
    photos: Path, observed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    state, private, named = tmp_path / "state", tmp_path / "private", tmp_path / "named"
    for folder in (private, named):
        for label in ("a", "b"):
            shutil.copytree(photos / WEEKS[1], folder / label)
    opened = list[Path]()
    read = observations_module.read_reference
    monkeypatch.setattr(observations_module, "read_reference", lambda *given: opened.append(given[0]) or read(*given))
    shutil.copytree(observed, state)

    def name(folder: Path) -> None:
        write_progress(RunDirectory(state), replace(progress_of(state), reference=str(folder)))

    name(private)
    learner(state).measure()
    learner(state).observe(photos / WEEKS[2])
    assert opened == [] and "name them again with --reference" in capsys.readouterr().err
    with pytest.raises(UserError, match="--only-if-better needs labelled images"):
        learner(state).observe(photos / WEEKS[1], name="again", only_if_better=True)
    assert opened == [] and all(one.reference is None for one in learner(state).status()["observations"].episodes)
    learner(state).measure(named)
    learner(state).measure()
    assert opened == [named, named], "what was named on this machine is measured again"
    name(private)
    learner(state).measure()
    assert opened == [named, named], "but nothing else"


NOTHING = '{"digest": "a", "images": 0, "k": 1, "classes": [], "accuracy": 1e9, "per_class": [], "pixels": 0}'


@pytest.mark.parametrize(
    "damage",
    [
        *["", "[]", "3", '{"episodes": 3}', '{"episodes": [{"task": "x"}]}', "cut"],
        f'{{"episodes": [{{"task": 0, "reference": {NOTHING}}}]}}',
    ],
)
def test_damaged_observations_are_started_again(
    damage: str, photos: Path, observed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = tmp_path / "state"
    shutil.copytree(observed, state)
    for path in (episode(state, 2).observation, state / "observations.json"):
        path.write_text(path.read_text()[:50] if damage == "cut" else damage)
    assert cli.main(["status", str(state)]) == 0
    assert "observation.json" in (error := capsys.readouterr().err) and "It is measured again" in error
    assert cli.main(["observe", str(state), str(photos / WEEKS[2]), "--quiet"]) == 0
    measured = learner(state).status()["observations"].episodes
    assert [one.task for one in measured] == [0, 1, 2] and measured[2].drift is not None
    assert measured[2] == learner(observed).status()["observations"].episodes[2], "the memory is the same"


def test_damaged_metrics_of_a_state_come_back_with_the_last_episode(
    photos: Path, observed: Path, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    shutil.copytree(observed, state)
    record = json.loads((state / "metrics.json").read_text())
    for text in (json.dumps(record | {"evaluations": []}), json.dumps(record | {"task_names": []}), "{"):
        (state / "metrics.json").write_text(text)
        assert learner(state).metrics == learner(observed).metrics, "made again from the files of the episodes"
        assert (state / "metrics.json").read_text() == text, "but not written by a reader"
    learner(state).observe(photos / WEEKS[2])
    assert contents(state) == contents(observed)


def test_an_episode_begun_without_a_guard_is_finished_without_it(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, labelled = tmp_path / "state", tmp_path / "labelled"
    for label in ("a", "b"):
        shutil.copytree(photos / WEEKS[2], labelled / label)
    learner(state).observe(photos / WEEKS[0])
    with asked_to_stop(task=1, step=1), pytest.raises(Stopped):
        learner(state).observe(photos / WEEKS[1])
    monkeypatch.setenv("OSIRIS_CACHE", "/dev/null/nowhere")  # the reference is not remembered, and that is all
    with pytest.raises(UserError, match="begun without --only-if-better"):
        learner(state).observe(photos / WEEKS[1], reference=labelled, only_if_better=True)
    learner(state).observe(photos / WEEKS[1], reference=labelled)
    assert [one.kept for one in learner(state).status()["observations"].episodes] == [True, True]


def test_a_refused_episode_is_known_after_a_kill(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed after the encoder was put back, before that was written to observations.json."""
    state, labelled = tmp_path / "state", tmp_path / "labelled"
    for label in ("a", "b"):
        shutil.copytree(photos / WEEKS[2], labelled / label)
    learner(state).observe(photos / WEEKS[0])
    monkeypatch.setattr(observations_module, "against", lambda *_: Comparison(difference=-9.0, p=0.001, images=12))
    with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
        patch.setattr(learner_module, "measure", lambda *_: 1 / 0)
        learner(state).observe(photos / WEEKS[1], reference=labelled, only_if_better=True)
    learner(state).observe(photos / WEEKS[1], reference=labelled, only_if_better=True)
    assert [one.kept for one in learner(state).status()["observations"].episodes] == [True, False]
    weights = [load_tensors(episode(state, task).weights)[0] for task in (1, 2)]
    assert all(torch.equal(weights[0][key], weights[1][key]) for key in weights[0] if key.startswith("encoder."))


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

    held = read_newest(state)
    stored = held.memory.images[0].numpy().transpose(1, 2, 0)
    Image.fromarray(stored).save(tmp_path / "secret.png")
    assert cli.main(["forget", str(state), str(tmp_path / "secret.png")]) == 0
    for saved in progress_of(state).states:
        held = State(read_state(RunDirectory(state), saved, progress_of(state)), progress_of(state)).memory.images
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
    assert [path.parent.name[:2] for path in sorted(state.glob("episodes/*/weights.safetensors"))] == [
        f"{number:02d}" for number in (episodes - 1, episodes)
    ], "of the last episode, and of the one that `osiris undo` goes back to"
    assert sizes[-1] - sizes[1] < 6000 * (episodes - 2), sizes
    assert tensors[-1] == tensors[1], "the networks of earlier episodes are freed"
    if episodes > 10:
        assert memory[-1] - memory[9] < 20e6, memory


def test_arguments_that_contradict_the_state_are_refused(photos: Path, observed: Path) -> None:
    with pytest.raises(UserError, match=r"method\.method is 'osiris-d' there and 'ft' here"):
        learner(observed, "ft").observe(photos / WEEKS[0])
    with pytest.raises(UserError, match=r"preset is 'smoke' there and 'paper' here\. Leave out what differs"):
        Learner(observed, preset="paper").observe(photos / WEEKS[0])
    with pytest.raises(UserError, match="have 16 x 16 pixels, and new ones are scaled to that: leave out --image-size"):
        Learner(observed, image_size=32).observe(photos / WEEKS[0])
    with pytest.raises(UserError, match="give the directory of a state or run"):
        Learner(photos / "nothing").embed(photos / WEEKS[0])


@pytest.mark.parametrize("options", [{}, {"objective": "barlow"}, {"method": "osiris-d"}], ids=str)
def test_one_image_is_no_episode(options: dict[str, Any], photos: Path, tmp_path: Path) -> None:
    state = Learner(**{"path": tmp_path, "method": "ft", "preset": "smoke", **OPTIONS, **options})
    with pytest.raises(UserError, match=r"too few images \(1\)"):
        state.observe([photos / WEEKS[0] / "00.png"])


def test_search_finds_the_image_itself_first(
    photos: Path, observed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hits = learner(observed).search(photos / WEEKS[2] / "07.png", photos, count=5).hits
    assert hits[0].path == photos / WEEKS[2] / "07.png" and hits[0].similarity == pytest.approx(1, abs=1e-5)
    similarities = [hit.similarity for hit in hits]
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


@pytest.mark.usefixtures("signals_arrive")
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
    assert cli.main(["measure", str(state), "--reference", str(labelled)]) == 0
    with monkeypatch.context() as patch, pytest.raises(Stopped):  # between training and measuring
        patch.setattr(learner_module, "measure", lambda *_: signal.raise_signal(signal.SIGTERM))
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
    for make in (state_figures.reference_accuracy, state_figures.memory_movement, state_figures.memory_neighbours):
        assert make(study) is not None, make
    items = page.observations(ReportWriter(tmp_path / "report"), study, find_images(study))
    assert len([item for item in items if item is not None]) == 4
