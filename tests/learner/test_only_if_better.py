"""`observe --only-if-better`: labelled images decide whether an episode is kept; and what is said about an episode."""

import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from osiris import cli
from osiris.errors import Stopped, UserError
from osiris.evaluation.scores import Comparison, ReferenceScores, read_record
from osiris.evaluation.statistics import wilson
from osiris.files import load_tensors
from osiris.learner import Learner
from osiris.learner import learner as learner_module
from osiris.learner import observations as module
from osiris.learner.observations import against, verdict
from osiris.runs.records import Observation, Observations
from osiris.training.run import Training
from tiny_encoders import seeded
from tiny_runs import asked_to_stop, episode, pictures, read_newest

OPTIONS: dict[str, Any] = {
    **{"image_size": 16, "memory_size": 12, "epochs": 2, "batch_size": 8, "learning_rate": 1e-2, "threads": 1},
    **{"projector_hidden": 16, "projector_output": 8, "device": "cpu"},
}
WORSE = Comparison(difference=-30.0, p=0.001, images=36)
BETTER = Comparison(difference=30.0, p=0.001, images=36)
UNCLEAR = Comparison(difference=-3.0, p=0.4, images=36)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("photos")
    for folder, seed in (("one", 3), ("two", 4), ("three", 5)):
        (root / folder).mkdir()
        for number, image in enumerate(pictures(2, seed)[0]):
            Image.fromarray(image.transpose(1, 2, 0)).save(root / folder / f"{number:02d}.png")
    for number, image in enumerate(pictures(6, seed=6)[0]):
        (root / "labelled" / f"class {number // 6}").mkdir(parents=True, exist_ok=True)
        Image.fromarray(image.transpose(1, 2, 0)).save(root / "labelled" / f"class {number // 6}" / f"{number}.png")
    return root


def learner(path: Path, **options: Any) -> Learner:
    return Learner(path, "osiris-d", "smoke", encoder=seeded(), **OPTIONS, **options)


def encoder(path: Path, task: int) -> dict[str, torch.Tensor]:
    tensors = load_tensors(episode(path, task).weights)[0]
    return {key: value for key, value in tensors.items() if key.startswith("encoder.")}


def judge(monkeypatch: pytest.MonkeyPatch, change: Comparison) -> None:
    monkeypatch.setattr(module, "against", lambda before, after: change)


@pytest.mark.parametrize("options", [{}, {"merge": 1.0}, {"merge": 1.0, "statistics": "batch", "freeze": 0.0}], ids=str)
def test_a_refused_episode_keeps_the_old_encoder_bit_for_bit(
    options: dict[str, Any], photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, labelled = tmp_path / "state", photos / "labelled"
    judge(monkeypatch, UNCLEAR)
    learner(state, **options).observe(photos / "one", reference=labelled, only_if_better=True)
    first = encoder(state, 1)
    assert any(not torch.equal(value, first[name]) for name, value in encoder(state, 0).items()), "accepted"
    judge(monkeypatch, WORSE)
    learner(state, **options).observe(photos / "two", only_if_better=True)  # the reference of the call before
    assert all(torch.equal(value, first[name]) for name, value in encoder(state, 2).items())
    held = read_newest(state)
    assert held is not None and (held.memory.task == 1).any(), "the memory has taken the images all the same"
    assert held.position.refused == [1]
    assert "stayed what it was" in learner(state).verdict()
    judge(monkeypatch, BETTER)
    learner(state, **options).observe(photos / "three", only_if_better=True)
    assert any(not torch.equal(value, first[name]) for name, value in encoder(state, 3).items())
    assert [one.kept for one in read_record(state / "observations.json", Observations).episodes] == [True, False, True]
    assert "stayed what it was" not in learner(state).verdict()


def test_what_was_refused_is_known_after_a_kill(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the end of the episode and the measurement."""
    judge(monkeypatch, WORSE)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(learner_module, "measure", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt()))
        learner(tmp_path / "state").observe(photos / "one", reference=photos / "labelled", only_if_better=True)
    learner(tmp_path / "state").observe(photos / "one")
    assert [one.kept for one in learner(tmp_path / "state").status()["observations"].episodes] == [False]


@pytest.mark.usefixtures("signals_arrive")
def test_an_episode_that_was_interrupted(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"reference": photos / "labelled", "only_if_better": True}
    judge(monkeypatch, WORSE)
    with asked_to_stop(0, 1), pytest.raises(Stopped):
        learner(tmp_path / "state", merge=1.0).observe(photos / "one", **given)
    learner(tmp_path / "state", merge=1.0).observe(photos / "one", **given)
    before = encoder(tmp_path / "state", 0)
    assert all(torch.equal(value, before[name]) for name, value in encoder(tmp_path / "state", 1).items())
    with asked_to_stop(0, 1), pytest.raises(Stopped):
        learner(tmp_path / "other", merge=1.0).observe(photos / "one")
    with pytest.raises(UserError, match="begun without --only-if-better"):
        learner(tmp_path / "other", merge=1.0).observe(photos / "one", **given)
    learner(tmp_path / "other", merge=1.0).observe(photos / "one")


@pytest.mark.parametrize("merge", [0.5, 1.0])
def test_an_episode_that_was_killed_in_its_evaluation(
    merge: float, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The judgement is made: the same command finishes the episode; another one, begun without, is still refused."""
    given = {"reference": photos / "labelled", "only_if_better": True}
    judge(monkeypatch, WORSE)

    def killed(name: str, **given: Any) -> None:
        with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
            patch.setattr(Training, "_evaluate", lambda *_: 1 / 0)
            learner(tmp_path / name, merge=merge).observe(photos / "one", **given)
        state = read_newest(tmp_path / name)
        assert state is not None and state.position.stage == "evaluate"

    killed("state", **given)
    learner(tmp_path / "state", merge=merge).observe(photos / "one", **given)
    assert [one.kept for one in learner(tmp_path / "state").status()["observations"].episodes] == [False]
    state = read_newest(tmp_path / "state")
    assert state is not None and "before" not in state.engine, "it is needed no more"
    killed("other")
    with pytest.raises(UserError, match="begun without --only-if-better"):
        learner(tmp_path / "other", merge=merge).observe(photos / "one", **given)


def test_labelled_images_are_needed(photos: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--only-if-better needs labelled images"):
        learner(tmp_path / "state").observe(photos / "one", only_if_better=True)
    assert not (tmp_path / "state").exists()


def test_the_command_line_says_what_happened(photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With real judgements: the encoder's weights before and after, on the labelled images."""
    state = tmp_path / "state"
    learner(state).observe(photos / "one")
    assert cli.main(["status", str(state)]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "from start" in printed and "is not known: give labelled images with --reference" in printed
    learner(state).observe(photos / "two", reference=photos / "labelled", only_if_better=True)
    said = learner(state).verdict()
    assert "36 images" in said and "chance 16.7" in said and "the start" in said
    observed = read_record(state / "observations.json", Observations)
    scores, start = observed.episodes[-1].reference, observed.start
    assert scores is not None and start is not None and len(scores.hits) == 36
    assert scores.accuracy == pytest.approx(100 * scores.hits.count("1") / 36)
    assert all((one.from_start or 0) > 0 for one in observed.episodes)
    others = Path(shutil.copytree(photos / "labelled", tmp_path / "others"))
    shutil.copy(others / "class 0" / "0.png", others / "class 1" / "0.png")
    learner(state).measure(others, new_reference=True)
    observed = read_record(state / "observations.json", Observations)
    scores, other = observed.episodes[-1].reference, observed.start
    assert scores is not None and other is not None and other.digest == scores.digest != start.digest


def scores(hits: str, digest: str = "a") -> ReferenceScores:
    accuracy = 100 * hits.count("1") / len(hits)
    given = {"digest": digest, "images": len(hits), "k": 1, "classes": ["a", "b"], "per_class": [0.0, 0.0]}
    return ReferenceScores(**given, accuracy=accuracy, pixels=40.0, hits=hits)


def told(last: str, before: str | None = None, start: str | None = None, **more: Any) -> str:
    episodes = [] if before is None else [Observation(task=0, reference=scores(before))]
    episodes.append(Observation(task=1, reference=scores(last), **more))
    return verdict(Observations(episodes=tuple(episodes), start=None if start is None else scores(start)))


def test_verdicts() -> None:
    bad, good = "0" * 20, "1" * 10 + "0" * 10
    assert verdict(Observations()) == "nothing is measured yet."
    assert "Better than the start." in told(good, start=bad) and "WORSE" not in told(good, start=bad)
    assert "WORSE than the episode before." in told(bad, before=good)
    both = told(bad, before=good, start=bad)
    assert "WORSE than the episode before." in both and "No significant change from the start." in both
    assert "No significant change from the start or the episode before." in told(good, before=good, start=good)
    assert "stayed what it was" in told(good, before=good, kept=False)
    assert "Better" not in told(good) and "WORSE" not in told(good), "there is nothing to compare with"
    assert "start 50.0 (+0.0, p = 1.000)" in told(good, start=good)
    unknown = Observations(episodes=(Observation(task=0, drift=0.1, same_neighbours=80.0, from_start=0.25),))
    assert "0.250 from the start and 0.100 from before this episode" in verdict(unknown)
    assert "is not known" in verdict(unknown) and "80%" in verdict(unknown)
    assert against(scores(good), scores(good, "b")) is None, "other images do not compare"


@pytest.mark.parametrize(("hits", "count"), [(0, 5), (5, 5), (7, 20), (90, 100)])
def test_the_interval_holds_the_shares_that_do_not_contradict_what_was_seen(hits: int, count: int) -> None:
    """Wilson: the shares p for which the seen one is within 1.96 standard deviations of p."""
    low, high = wilson(hits / count, count)
    shares = np.linspace(0, 1, 100_001)
    plausible = shares[np.abs(hits / count - shares) <= 1.96 * np.sqrt(shares * (1 - shares) / count) + 1e-12]
    assert math.isclose(low, plausible[0], abs_tol=2e-5) and math.isclose(high, plausible[-1], abs_tol=2e-5)
