"""A learner whose past is exact: order, undo, forget and join against sums over the same images."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from PIL import Image

import osiris
from osiris import cli
from osiris.data.tinyworld import render
from osiris.errors import UserError
from osiris.evaluation.encoder_files import load_checkpoint
from osiris.evaluation.reference import leave_one_out, read_reference
from osiris.evaluation.scores import ReferenceScores
from osiris.exact.moments import Moments
from osiris.exact.readout import fit
from osiris.files import load_tensors
from osiris.framework.summed import DRAWN, SummedReadout
from osiris.learner import Learner
from osiris.learner.observations import verdict
from osiris.models.joined import JoinedEncoder
from osiris.runs.directory import RunDirectory
from osiris.runs.records import Observation, Observations
from osiris.runs.state import load_state
from tiny_encoders import seeded

SIZE = 16
TRAINING = {"epochs": 1, "warmup_epochs": 0.1, "batch_size": 4, "memory_size": 4}
MONTHS = ("2026-01", "2026-02", "2026-03")


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three months of twelve photos."""
    root = tmp_path_factory.mktemp("photos")
    images, _ = render("test", 1)
    for number, image in enumerate(images[:36]):
        folder = root / MONTHS[number // 12]
        folder.mkdir(exist_ok=True)
        Image.fromarray(image.transpose(1, 2, 0)).resize((SIZE, SIZE)).save(folder / f"{number:02d}.png")
    return root


def new(path: Path, **options: Any) -> Learner:
    torch.manual_seed(0)
    return Learner(path, encoder=seeded(), image_size=SIZE, threads=1, **options)


def learned(path: Path, folders: list[Path], **options: Any) -> Learner:
    learner = new(path, **options)
    for folder in folders:
        learner.observe(folder)
    return learner


def sums_of(path: Path) -> Moments:
    state = load_state(RunDirectory(path))
    assert state is not None
    return Moments.from_tensors(state.engine["sums"]["total"])


def encoder_of(learner: Learner) -> JoinedEncoder:
    module = load_checkpoint(learner.run.checkpoint()).module
    assert isinstance(module, JoinedEncoder)
    return module


def same(one: Moments, other: Moments, tolerance: float = 1e-10) -> bool:
    pairs = ((one.total, other.total), (one.outer, other.outer))
    return one.count == other.count and all(
        float((a - b).abs().max()) <= tolerance * float(b.abs().max()) for a, b in pairs
    )


def pixels(folders: list[Path]) -> torch.Tensor:
    files = [file for folder in folders for file in sorted(folder.iterdir())]
    return torch.from_numpy(np.stack([np.asarray(Image.open(file)).transpose(2, 0, 1) for file in files]))


def test_the_default_for_a_pretrained_encoder_is_the_readout_of_all_images(photos: Path, tmp_path: Path) -> None:
    """Against moments and map computed here from the network's layers."""
    learner = learned(tmp_path / "state", [photos / month for month in MONTHS])
    assert learner.config.method.method == "readout"
    encoder, progress = encoder_of(learner), learner._progress
    assert progress is not None
    images, drawn = pixels([photos / month for month in MONTHS]), torch.from_numpy(render("train", DRAWN // 40)[0])
    summed = SummedReadout(encoder, "own:x", "joined", progress.mean, progress.std, SIZE)
    rows = summed.embed(images).double()
    assert same(sums_of(learner.folder), Moments(len(rows), rows.sum(0), rows.T @ rows))
    summed.begin(images)
    assert summed.drawings.count == len(drawn)
    expected = fit(Moments(len(rows), rows.sum(0), rows.T @ rows), summed.drawings, encoder.layers.sizes, rows.shape[1])
    assert torch.allclose(encoder.readout.projection, expected.projection, rtol=1e-4, atol=1e-5)
    features = torch.from_numpy(learner.embed(photos / MONTHS[0] / "00.png"))
    assert torch.allclose(features[0], (rows[0].float() - expected.centre) @ expected.projection, rtol=1e-3, atol=1e-4)


def test_the_order_of_the_episodes_does_not_matter(photos: Path, tmp_path: Path) -> None:
    forward = learned(tmp_path / "forward", [photos / month for month in MONTHS])
    backward = learned(tmp_path / "backward", [photos / month for month in reversed(MONTHS)])
    assert same(sums_of(forward.folder), sums_of(backward.folder))
    one, other = (encoder_of(learner).readout.projection for learner in (forward, backward))
    assert torch.allclose(one, other, rtol=1e-5, atol=1e-6)


def test_undo_leaves_the_same_bits(photos: Path, tmp_path: Path) -> None:
    learner = learned(tmp_path / "state", [photos / MONTHS[0]])
    before = load_state(RunDirectory(learner.folder))
    learner.observe(photos / MONTHS[1])
    assert sums_of(learner.folder).count == 24
    learner.undo()
    after = load_state(RunDirectory(learner.folder))
    assert before is not None and after is not None
    assert torch.equal(before.engine["sums"]["total"]["outer"], after.engine["sums"]["total"]["outer"])
    assert all(torch.equal(value, after.engine["model"][name]) for name, value in before.engine["model"].items())


def test_a_forgotten_image_is_in_nothing(photos: Path, tmp_path: Path) -> None:
    """The state equals one that never saw it."""
    partly = tmp_path / "partly" / MONTHS[0]
    partly.mkdir(parents=True)
    gone = photos / MONTHS[0] / "03.png"
    for file in (photos / MONTHS[0]).iterdir():
        if file != gone:
            (partly / file.name).write_bytes(file.read_bytes())
    learner = learned(tmp_path / "state", [photos / MONTHS[0], photos / MONTHS[1]])
    never = learned(tmp_path / "never", [partly, photos / MONTHS[1]])
    assert learner.forget([gone]) == 1
    assert learner.forget([gone]) == 0
    assert same(sums_of(learner.folder), sums_of(never.folder), 1e-6)
    one, other = (encoder_of(each).readout.projection for each in (learner, never))
    assert torch.allclose(one, other, rtol=1e-3, atol=1e-4)
    learner.undo()  # the state that it goes back to has forgotten it, too
    assert sums_of(learner.folder).count == 11
    assert same(sums_of(learner.folder), sums_of(learned(tmp_path / "first", [partly]).folder), 1e-6)
    assert learner.forget([photos / MONTHS[2] / "30.png"]) == 0
    with pytest.raises(UserError, match="remove the whole state"):
        learner.forget(sorted(partly.iterdir()))


def test_joined_states_are_one_that_saw_everything(photos: Path, tmp_path: Path) -> None:
    folders = [photos / month for month in MONTHS]
    learned(tmp_path / "a", folders[:1])
    learned(tmp_path / "b", folders[1:])
    osiris.register_encoder(seeded())
    assert cli.main(["join", str(tmp_path / "a"), str(tmp_path / "b"), "--out", str(tmp_path / "both")]) == 0
    whole = learned(tmp_path / "whole", folders)
    assert same(sums_of(tmp_path / "both"), sums_of(whole.folder))
    both = new(tmp_path / "both")
    assert [name for name, _ in both.status()["episodes"]] == list(MONTHS)
    assert torch.allclose(
        encoder_of(both).readout.projection, encoder_of(whole).readout.projection, rtol=1e-4, atol=1e-5
    )
    with pytest.raises(UserError, match="cannot be taken back"):
        both.undo()
    more = tmp_path / "more" / "2026-04"
    more.mkdir(parents=True)
    for file in folders[0].iterdir():
        Image.open(file).rotate(90).save(more / file.name)
    both.observe(more)  # it goes on learning
    assert sums_of(both.folder).count == 48


def refused(first: Callable[[Path], object], second: Callable[[Path], object], tmp_path: Path) -> str:
    first(tmp_path / "a")
    second(tmp_path / "b")
    with pytest.raises(UserError) as caught:
        osiris.join(tmp_path / "a", tmp_path / "b", tmp_path / "c")
    assert not (tmp_path / "c").exists()
    return str(caught.value)


def test_what_cannot_be_joined_is_refused(photos: Path, tmp_path: Path) -> None:
    folder, other = photos / MONTHS[0], photos / MONTHS[1]

    def state(folder: Path, **options: Any) -> Callable[[Path], object]:
        return lambda path: learned(path, [folder], **options)

    trained = state(other, method="ft", **TRAINING)
    text = "12 images were learned by both"
    assert text in refused(state(folder), state(folder), tmp_path / "1")
    assert "was trained (ft): two trained networks cannot be added" in refused(state(folder), trained, tmp_path / "2")
    smaller = state(other, readout_size=9)
    assert "encoder.readout_size is None there" in refused(state(folder), smaller, tmp_path / "3")
    assert "is not a state" in refused(state(folder), lambda path: path.mkdir(parents=True), tmp_path / "4")


def test_every_readout_is_made_from_the_same_sums(photos: Path, tmp_path: Path) -> None:
    """Of one state, changed from episode to episode; `start` gives what the network gives."""
    learner = learned(tmp_path / "state", [photos / MONTHS[0]])
    for month, kind in ((1, "start"), (2, "whitened")):
        learner = new(tmp_path / "state", readout=kind)
        learner.observe(photos / MONTHS[month])
        features, rows = learner.embed(photos / MONTHS[0]), layers_of(learner, photos / MONTHS[0])
        own = encoder_of(learner).layers.sizes[-1]
        if kind == "start":
            assert np.allclose(features[:, :own], rows[:, -own:], atol=1e-5) and not features[:, own:].any()
    never = learned(tmp_path / "never", [photos / month for month in MONTHS], readout="whitened")
    assert same(sums_of(learner.folder), sums_of(never.folder))
    assert torch.allclose(encoder_of(learner).readout.projection, encoder_of(never).readout.projection, atol=1e-6)
    later = new(tmp_path / "state")
    assert later.config.encoder.readout == "whitened", "without the option, the state keeps what it has"


def summed_of(learner: Learner) -> SummedReadout:
    progress = learner._progress
    assert progress is not None
    return SummedReadout(encoder_of(learner), "own:x", "joined", progress.mean, progress.std, SIZE)


def layers_of(learner: Learner, folder: Path) -> np.ndarray:
    """Before the readout."""
    return summed_of(learner).embed(pixels([folder])).numpy()


def test_labelled_images_compare_the_readouts(photos: Path, tmp_path: Path) -> None:
    labelled = tmp_path / "labelled"
    images, _ = render("train", 1)
    for number, image in enumerate(images):
        folder = labelled / f"class {number % 3}"
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image.transpose(1, 2, 0)).resize((SIZE, SIZE)).save(folder / f"{number:02d}.png")
    learner = new(tmp_path / "state", readout="start")
    learner.observe(photos / MONTHS[0], reference=labelled)
    learner.observe(photos / MONTHS[1])
    last = learner.measure().episodes[-1]
    assert last.reference is not None and last.readout == "start"
    kinds = {"joined", "whitened"} if share_of(learner) else {"joined"}
    assert set(last.others) == kinds
    reference = read_reference(labelled, SIZE)
    for kind, scores in last.others.items():
        there = learned(tmp_path / kind, [photos / MONTHS[0], photos / MONTHS[1]], readout=kind)
        expected = leave_one_out(torch.from_numpy(there.embed(reference.images)), reference.labels, reference.k)
        assert scores.hits == "".join("1" if hit else "0" for hit in expected.tolist())


def share_of(learner: Learner) -> float:
    summed = summed_of(learner)
    summed.begin(torch.empty(0))
    return summed.share(sums_of(learner.folder))


@pytest.mark.parametrize(("right", "advised"), [(20, True), (6, False)])
def test_a_significantly_better_readout_is_advised(right: int, advised: bool) -> None:
    def scores(hits: str) -> ReferenceScores:
        percent = 100 * hits.count("1") / len(hits)
        return ReferenceScores(
            digest="x", images=40, k=1, classes=["a", "b"], accuracy=percent, per_class=[], pixels=0, hits=hits
        )

    used, other = scores("10" * 20), scores("11" * right + "10" * (20 - right))
    if not advised:
        other = scores("11" * right + "00" * right + "10" * (20 - 2 * right))
    last = Observation(task=0, reference=used, readout="joined", others={"whitened": other})
    said = verdict(Observations(episodes=(last,)))
    assert ("--readout whitened would be better: 100.0 (+50.0" in said) == advised, said
    if advised:
        begin = Observations(episodes=(replace(last, others={}),), start=other)
        assert "--readout start would be better" in verdict(begin)


def test_options_of_training_are_refused(photos: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--epochs changes nothing in 'readout'"):
        new(tmp_path / "state", epochs=3).observe(photos / MONTHS[0])
    assert not (tmp_path / "state").exists()
    trained = learned(tmp_path / "trained", [photos / MONTHS[0]], method="ft", **TRAINING)
    assert trained.config.method.method == "ft"


def test_no_image_is_kept(photos: Path, tmp_path: Path) -> None:
    learner = learned(tmp_path / "state", [photos / MONTHS[0]])
    images = [image.numpy().tobytes() for image in pixels([photos / MONTHS[0]])]
    for file in learner.folder.rglob("*"):
        if file.is_file():
            content = file.read_bytes()
            assert not any(image in content for image in images), file
    assert learner.status()["memory_size"] == 0
    assert "memory.images" not in load_tensors(learner.run.checkpoint())[0]
