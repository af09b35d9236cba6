"""A state of `smt`: undo, forget, join and a refused episode against states that saw the same images; and kills."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

import osiris
from killed import Killed, killed_at
from osiris.errors import UserError
from osiris.evaluation.scores import Comparison
from osiris.files import load_tensors
from osiris.learner import Learner
from osiris.learner import observations as module
from pictures import write_pictures
from tiny_encoders import seeded
from tiny_runs import assert_only_what_is_named, episode, last_state, progress_of, read_newest

MONTHS = ("2026-01", "2026-02", "2026-03")
WORSE = Comparison(difference=-30.0, p=0.001, images=36)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("album") / "photos"
    for number, month in enumerate(MONTHS):
        write_pictures(root / month, 8, seed=number)
    return root


def learner(path: Path) -> Learner:
    return Learner(path, "smt", codes=128, image_size=16, threads=1, device="cpu")


def readout(path: Path) -> Learner:
    return Learner(path, encoder=seeded(), image_size=16, threads=1, device="cpu")


LEARNERS: dict[str, Callable[[Path], Learner]] = {"smt": learner, "readout": readout}


def learned(path: Path, *folders: Path) -> Path:
    for folder in folders:
        learner(path).observe(folder)
    return path


@pytest.fixture(scope="module")
def month(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """After the first one, which the dictionary comes from."""
    return learned(tmp_path_factory.mktemp("month") / "state", photos / MONTHS[0])


def sums_of(state: Path) -> dict[str, Tensor]:
    return read_newest(state).engine["sums"]["total"]


def encoder_of(state: Path) -> dict[str, Tensor]:
    tensors = load_tensors(episode(state, progress_of(state).finished).weights)[0]
    return {name: value for name, value in tensors.items() if name.startswith("encoder.")}


def assert_same(one: Path, other: Path) -> None:
    """The same sums and the same encoder, to the bit."""
    for first, second in ((sums_of(one), sums_of(other)), (encoder_of(one), encoder_of(other))):
        assert first.keys() == second.keys()
        assert [name for name, value in first.items() if not torch.equal(value, second[name])] == []


def test_the_order_of_later_episodes_does_not_matter(photos: Path, month: Path, tmp_path: Path) -> None:
    first, second = (Path(shutil.copytree(month, tmp_path / name)) for name in ("first", "second"))
    learned(first, photos / MONTHS[1], photos / MONTHS[2])
    learned(second, photos / MONTHS[2], photos / MONTHS[1])
    assert_same(first, second)


def test_undo_and_the_index(photos: Path, month: Path, tmp_path: Path) -> None:
    state = Path(shutil.copytree(month, tmp_path / "state"))
    before = last_state(state), learner(state).embed(photos / MONTHS[0])
    learned(state, photos / MONTHS[1])
    assert (learner(state).embed(photos / MONTHS[0]) != before[1]).any()
    learner(state).undo()
    assert last_state(state) == before[0] and (learner(state).embed(photos / MONTHS[0]) == before[1]).all()
    learner(state).index(photos)
    query = photos / MONTHS[1] / "3.png"
    assert str(query) in str(learner(state).search(query, count=2).hits[0])


def test_a_forgotten_image_is_in_nothing_but_the_dictionary(photos: Path, month: Path, tmp_path: Path) -> None:
    partly = tmp_path / "partly" / MONTHS[1]
    shutil.copytree(photos / MONTHS[1], partly)
    (partly / "3.png").unlink()
    state, never = (Path(shutil.copytree(month, tmp_path / name)) for name in ("state", "never"))
    learned(state, photos / MONTHS[1])
    learned(never, partly)
    assert learner(state).forget([photos / MONTHS[1] / "3.png"]) == 1
    assert learner(state).forget([photos / MONTHS[1] / "3.png"]) == 0
    assert_same(state, never)
    learner(state).undo()
    assert_same(state, month)


def test_two_copies_of_a_state_are_joined(photos: Path, month: Path, tmp_path: Path) -> None:
    """The images that both began with are taken out of one of them; its dictionary stays."""
    first, second = (Path(shutil.copytree(month, tmp_path / name)) for name in ("first", "second"))
    learned(first, photos / MONTHS[1])
    learned(second, photos / MONTHS[2])
    with pytest.raises(UserError, match="8 images were learned by both"):
        osiris.join(first, second, tmp_path / "both")
    assert learner(second).forget(sorted((photos / MONTHS[0]).iterdir())) == 8
    osiris.join(first, second, tmp_path / "both")
    assert_same(
        tmp_path / "both", learned(Path(shutil.copytree(month, tmp_path / "whole")), *map(photos.joinpath, MONTHS[1:]))
    )


def test_states_of_other_dictionaries_are_not_joined(photos: Path, month: Path, tmp_path: Path) -> None:
    other = learned(tmp_path / "other", photos / MONTHS[1])
    with pytest.raises(UserError, match="other networks or image sizes: their sums cannot be added"):
        osiris.join(month, other, tmp_path / "both")
    assert not (tmp_path / "both").exists()


def test_the_images_of_a_refused_episode_do_not_count(
    photos: Path, month: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = Path(shutil.copytree(month, tmp_path / "state"))
    for number in range(3):
        write_pictures(tmp_path / "labelled" / f"class {number}", 4, seed=10 + number)
    monkeypatch.setattr(module, "against", lambda before, after: WORSE)
    learner(state).observe(photos / MONTHS[1], reference=tmp_path / "labelled", only_if_better=True)
    assert progress_of(state).finished == 2 and read_newest(state).position.refused == [1]
    assert_same(state, month)
    assert len(read_newest(state).engine["learned"]) == 8


def observe(state: Path, photos: Path, method: str) -> None:
    LEARNERS[method](state).observe(photos / MONTHS[1])


def forget(state: Path, photos: Path, method: str) -> None:
    LEARNERS[method](state).forget([photos / MONTHS[1] / "3.png"])


@pytest.mark.parametrize("method", list(LEARNERS))
@pytest.mark.parametrize("change", [observe, forget])
def test_killed_before_any_change_of_a_file_the_same_call_ends_with_the_same_sums(
    change: Callable[[Path, Path, str], None], method: str, photos: Path, tmp_path: Path
) -> None:
    started = tmp_path / "started"
    LEARNERS[method](started).observe(photos / MONTHS[0])
    if change is forget:
        observe(started, photos, method)
    whole = Path(shutil.copytree(started, tmp_path / "whole"))
    with killed_at(0) as operations:
        change(whole, photos, method)
    assert sum(what.startswith("replace") for what in operations) > 3
    for number in range(1, len(operations) + 1):
        state = Path(shutil.copytree(started, tmp_path / str(number)))
        with killed_at(number), pytest.raises(Killed):
            change(state, photos, method)
        change(state, photos, method)
        assert_same(state, whole)
        assert_only_what_is_named(state)
        shutil.rmtree(state)
