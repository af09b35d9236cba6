"""Search in an index against a loop over all rows, and maps between versions."""

from pathlib import Path

import numpy as np
import pytest
import torch

from osiris.errors import UserError
from osiris.evaluation.compatibility import PENALTIES, apply_map, fit_map, recall_at
from osiris.evaluation.knn import neighbours_of
from osiris.files import load_tensors, save_tensors
from osiris.index import gallery as gallery_module
from osiris.index import maps
from osiris.index.gallery import Gallery
from osiris.index.maps import add_map, expected_recall, fit_and_hold_out, keep_needed_maps, recall_of_sample
from osiris.index.newest import View
from osiris.index.records import Version
from osiris.index.store import Index

OLD, NEW = Version(episode=1, digest="1" * 32), Version(episode=2, digest="2" * 32)
SIZE = 8


def unit(values: np.ndarray) -> np.ndarray:
    return (values / np.linalg.norm(values, axis=1, keepdims=True)).astype(np.float32)


def made(folder: Path, counts: dict[Version, int], random: np.random.Generator) -> dict[str, np.ndarray]:
    """An index; returns the vectors by path."""
    given: dict[str, np.ndarray] = {}
    index = Index(folder)
    for version, count in counts.items():
        names = [f"/{version.episode}/{'even' if n % 2 == 0 else 'odd'}/{n}" for n in range(count)]
        rows = unit(random.normal(size=(count, SIZE)))
        with index:
            index.append(version, names, np.zeros((count, 2), np.int64), rows)
        given |= zip(names, rows)
    return given


def naive(query: np.ndarray, bank: dict[str, np.ndarray], count: int) -> list[tuple[str, float]]:
    cosines = []
    for path, row in bank.items():
        length = float(np.sqrt(sum(float(x) ** 2 for x in row)))
        cosines.append((path, sum(float(a) * float(b) for a, b in zip(query, row)) / length))
    return sorted(cosines, key=lambda one: -one[1])[:count]


@pytest.fixture
def random() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.mark.parametrize("block", [3, 1 << 14])
def test_search_is_that_of_a_loop(
    block: int, tmp_path: Path, random: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over several parts, with rows that are gone, and in vectors of an earlier version that are mapped."""
    monkeypatch.setattr(gallery_module, "BLOCK", block)
    monkeypatch.setattr(gallery_module, "QUERIES", 2)
    bank = made(tmp_path / "index", {OLD: 40, NEW: 25}, random)
    weight = np.eye(SIZE) + 0.3 * random.normal(size=(SIZE, SIZE))
    pairs = unit(random.normal(size=(200, SIZE)))
    index = Index(tmp_path / "index")
    with index:
        add_map(index, OLD, NEW, pairs, unit(pairs @ weight))
        index.parts[0].gone[3] = index.parts[1].gone[4] = True
        keep_needed_maps(index, NEW)
        index.commit()
    del bank["/1/odd/3"], bank["/2/even/4"]
    index = Index(tmp_path / "index")
    fitted = fit_and_hold_out(torch.from_numpy(pairs), torch.from_numpy(unit(pairs @ weight)))[0].numpy()
    bank |= {path: row @ fitted for path, row in bank.items() if path.startswith("/1/")}
    gallery = Gallery(index, NEW)
    queries = unit(random.normal(size=(5, SIZE)))
    values, rows = gallery.search(queries, 7)
    assert len(gallery) == 63
    for query, value, row in zip(queries, values, rows):
        expected = naive(query, bank, 7)
        assert [gallery.path(one) for one in row.tolist()] == [path for path, _ in expected]
        np.testing.assert_allclose(value, [cosine for _, cosine in expected], atol=1e-5)
    some = Gallery(index, NEW, ["/1/even", "/2/odd/7"])
    inside = {path: row for path, row in bank.items() if path.startswith("/1/even/") or path == "/2/odd/7"}
    expected = naive(queries[0], inside, 50)
    assert [some.path(row) for row in some.search(queries[:1], 50)[1][0].tolist()] == [path for path, _ in expected]


def test_equal_cosines_come_in_the_order_of_the_rows(tmp_path: Path) -> None:
    index, row = Index(tmp_path / "index"), np.eye(1, SIZE, dtype=np.float32)
    with index:
        index.append(NEW, [f"/{n}" for n in range(30)], np.zeros((30, 2), np.int64), row.repeat(30, axis=0))
    assert Gallery(index, NEW).search(row, 5)[1].tolist() == [[0, 1, 2, 3, 4]]


@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_a_vector_that_is_no_number_is_refused(number: float, tmp_path: Path, random: np.random.Generator) -> None:
    index, rows = Index(tmp_path / "index"), unit(random.normal(size=(5, SIZE)))
    rows[2, 3] = number
    with index:
        index.append(NEW, [f"/{n}" for n in range(5)], np.zeros((5, 2), np.int64), rows)
    with pytest.raises(UserError, match=r"part-000001.arrow is damaged .*not finite.* Remove the folder"):
        Gallery(index, NEW).search(rows[:1], 4)


def test_a_flipped_bit_is_refused(tmp_path: Path, random: np.random.Generator) -> None:
    """Also when the rows would be written again, with a digest of their own."""
    made(tmp_path / "index", {NEW: 5}, random)
    path = tmp_path / "index" / "part-000001.arrow"
    content, row = bytearray(path.read_bytes()), Index(tmp_path / "index").parts[0].rows.vectors[3].tobytes()
    content[content.index(row) + 1] ^= 4
    path.write_bytes(content)
    index = Index(tmp_path / "index")
    with pytest.raises(UserError, match="its content has changed"):
        Gallery(index, NEW).search(unit(random.normal(size=(1, SIZE))), 4)
    more = np.eye(9, SIZE, dtype=np.float32)
    with index, pytest.raises(UserError, match="its content has changed"):
        index.append(NEW, [f"/more/{n}" for n in range(9)], np.zeros((9, 2), np.int64), more)


def test_search_through_a_readout_is_that_of_a_loop(
    tmp_path: Path, random: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cosine is taken after the map, of vectors that are not normalised before it."""
    monkeypatch.setattr(gallery_module, "BLOCK", 7)
    kept = (5 + random.normal(size=(30, SIZE))).astype(np.float16)
    centre, projection = 5 + random.normal(size=SIZE), random.normal(size=(SIZE, 3))
    view = View(centre.astype(np.float32), projection.astype(np.float32), "a")
    index, names = Index(tmp_path / "index"), [f"/{n}" for n in range(30)]
    with index:
        for part in (slice(0, 11), slice(11, 13), slice(13, 30)):
            index.append(NEW, names[part], np.zeros((len(names[part]), 2), np.int64), kept[part])
    index = Index(index.folder)
    assert {part.rows.vectors.dtype for part in index.parts} == {np.dtype(np.float16)}
    mapped = ((kept.astype(np.float64) - view.centre) @ view.projection).astype(np.float32)
    query = unit(random.normal(size=(1, 3)))
    gallery = Gallery(index, NEW, view=view)
    values, rows = gallery.search(query, 9)
    expected = naive(query[0], {name: mapped[names.index(name)] for name in names}, 9)
    assert [gallery.path(row) for row in rows[0].tolist()] == [path for path, _ in expected]
    np.testing.assert_allclose(values[0], [cosine for _, cosine in expected], atol=1e-5)
    order = [names.index(gallery.path(row)) for row in range(30)]
    np.testing.assert_allclose(gallery.vectors(np.arange(30)), unit(mapped[order]), atol=1e-5)


def test_versions_are_never_mixed(tmp_path: Path, random: np.random.Generator) -> None:
    made(tmp_path / "index", {OLD: 30, NEW: 10}, random)
    index = Index(tmp_path / "index")
    with pytest.raises(UserError, match=r"30 vectors .* after episode 1, which cannot be compared .* episode 2"):
        Gallery(index, NEW)
    with pytest.raises(UserError, match=r"10 vectors .* after episode 2"):
        Gallery(index, OLD)
    with index:
        pairs = unit(random.normal(size=(100, SIZE)))
        add_map(index, OLD, NEW, pairs, pairs)
        keep_needed_maps(index, NEW)
        index.commit()
    assert len(Gallery(Index(index.folder), NEW)) == 40
    file = next(index.folder.glob("map-*"))
    tensors = load_tensors(file)[0]
    save_tensors(file, {"map": tensors["map"]})  # without the lengths of the part
    with pytest.raises(UserError, match="is not a map of this index"):
        Gallery(Index(index.folder), NEW)
    save_tensors(file, tensors)
    with pytest.raises(UserError):
        Gallery(Index(index.folder), OLD)  # the map leads the other way
    with index:
        index.parts[0].gone[:] = True
        index.maps = []
        index.commit()
    assert len(Gallery(Index(index.folder), NEW)) == 10, "files that are gone are not searched"


def test_forgetting_keeps_the_map(tmp_path: Path, random: np.random.Generator) -> None:
    made(tmp_path / "index", {OLD: 30, NEW: 10}, random)
    index, pairs = Index(tmp_path / "index"), unit(random.normal(size=(100, SIZE)))
    with index:
        add_map(index, OLD, NEW, pairs, unit(pairs + 0.1))
        index.commit()
    query = pairs[:1]
    before = Gallery(Index(index.folder), NEW)
    values, rows = before.search(query, 40)
    with index:
        index.forget(["/1/odd/5"])
        keep_needed_maps(index, NEW)
        index.commit()
    after = Gallery(Index(index.folder), NEW)
    values_after, rows_after = after.search(query, 40)
    found = [(before.path(row), value) for row, value in zip(rows[0].tolist(), values[0])]
    expected = [one for one in found if one[0] != "/1/odd/5"]
    assert [after.path(row) for row in rows_after[0].tolist()] == [path for path, _ in expected]
    np.testing.assert_allclose(values_after[0], [value for _, value in expected], atol=1e-6)


def test_pairs_are_those_of_a_loop(
    tmp_path: Path, random: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gallery_module, "BLOCK", 7)
    monkeypatch.setattr(gallery_module, "QUERIES", 4)
    bank = made(tmp_path / "index", {NEW: 60}, random)
    gallery = Gallery(Index(tmp_path / "index"), NEW)
    rows = np.delete(gallery.shown, [10, 41])
    names, vectors = [*bank], np.stack([*bank.values()])
    expected = {(names[a], names[b]) for a in rows for b in rows if a < b and float(vectors[a] @ vectors[b]) >= 0.6}
    found = zip(*(side.tolist() for side in gallery.pairs(rows, 0.6)))
    assert {(gallery.path(a), gallery.path(b)) for a, b in found} == expected and len(expected) > 10
    place, sample = np.arange(len(rows)) % 3, np.array([40, 3, 20])
    best = [
        max(float(vectors[rows[a]] @ vectors[rows[b]]) for b in range(len(rows)) if place[a] != place[b])
        for a in sorted(sample)
    ]
    np.testing.assert_allclose(gallery.nearest_elsewhere(rows, place, sample), best, atol=1e-5)


@pytest.mark.parametrize("count", [5, 30])
def test_the_penalty_is_the_best_of_a_loop_that_leaves_one_out(count: int) -> None:
    """With fewer pairs than dimensions, and with more."""
    random = np.random.default_rng(1)
    old = unit(random.normal(size=(count, SIZE))).astype(np.float64)
    new = unit(old + 0.3 * random.normal(size=(count, SIZE))).astype(np.float64)

    def solved(x: np.ndarray, y: np.ndarray, penalty: float) -> np.ndarray:
        return np.eye(SIZE) + np.linalg.solve(x.T @ x + penalty * np.eye(SIZE), x.T @ (y - x))

    errors = {}
    for penalty in PENALTIES:
        errors[penalty] = 0.0
        for left in range(count):
            rest = np.arange(count) != left
            weight = solved(old[rest], new[rest], penalty)
            errors[penalty] += float(((new[left] - old[left] @ weight) ** 2).sum())
    best = min(errors, key=lambda penalty: errors[penalty])
    found = fit_map(torch.from_numpy(old), torch.from_numpy(new)).numpy()
    np.testing.assert_allclose(found, solved(old, new, best), atol=1e-5)


def test_recall_is_measured_on_images_that_the_map_has_not_seen(
    random: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rotation is learned, a space that has nothing to do with the old one is not."""
    fitted, tested = list[torch.Tensor](), list[torch.Tensor]()
    monkeypatch.setattr(maps, "fit_map", lambda old, new: (fitted.append(old), fit_map(old, new))[1])
    monkeypatch.setattr(maps, "apply_map", lambda old, weight: (tested.append(old), apply_map(old, weight))[1])
    old = torch.from_numpy(unit(random.normal(size=(400, 32))))
    turn = torch.linalg.qr(torch.from_numpy(random.normal(size=(32, 32))))[0].float()
    recall, gallery = recall_of_sample(*fit_and_hold_out(old, old @ turn)[1:])
    assert recall > 0.95 and gallery == 79
    rows = {tuple(row) for row in fitted[0].tolist()}, {tuple(row) for row in tested[0].tolist()}
    assert [len(one) for one in rows] == [320, 80] and not rows[0] & rows[1]
    recall, _ = recall_of_sample(*fit_and_hold_out(old, torch.from_numpy(unit(random.normal(size=(400, 32)))))[1:])
    assert recall < 0.3


@pytest.mark.parametrize("noise", [0.05, 0.1])
def test_expected_recall_is_that_of_the_whole_gallery(random: np.random.Generator, noise: float) -> None:
    """The true one needs the new vectors of all images; among the images of the test alone it is much higher."""
    old = torch.from_numpy(unit(random.normal(size=(3400, 12))))
    new = torch.from_numpy(unit(old.numpy() + noise * random.normal(size=(3400, 12))))
    weight, missed, queries = fit_and_hold_out(old[:400], new[:400])
    mapped = old[400:] @ weight
    lengths = mapped.norm(dim=1)
    blocks = [
        (old[400:][part].numpy(), lengths[part].numpy()) for part in (slice(0, 7), slice(7, 1000), slice(1000, None))
    ]
    recall, gallery = expected_recall(weight, missed, queries, blocks)
    true = recall_at(10, neighbours_of(mapped, queries, 10)[1], neighbours_of(new[400:], queries, 10)[1])
    assert gallery == 3000 and abs(recall - true) < 0.05 < recall_of_sample(missed, queries)[0] - true
    assert expected_recall(weight, missed, queries, blocks[:1])[1] == 7
    assert expected_recall(weight, torch.zeros_like(missed), queries, blocks)[0] == 1


def test_a_part_whose_files_are_all_gone_is_in_no_answer(tmp_path: Path, random: np.random.Generator) -> None:
    """Through a readout, nothing is known about the lengths of its vectors."""
    view = View(np.zeros(SIZE, np.float32), random.normal(size=(SIZE, 3)).astype(np.float32), "a")
    index, kept = Index(tmp_path / "index"), random.normal(size=(30, SIZE)).astype(np.float16)
    with index:
        for part in (range(20), range(20, 25), range(25, 30)):
            index.append(NEW, [f"/{n}" for n in part], np.zeros((len(part), 2), np.int64), kept[[*part]])
        index.parts[1].gone[:] = True
        index.commit()
    gallery = Gallery(Index(index.folder), NEW, view=view)
    rows = gallery.shown
    assert 0 < len(rows) < 30
    mapped = kept[[int(gallery.path(row)[1:]) for row in rows.tolist()]].astype(np.float32) @ view.projection
    np.testing.assert_allclose(gallery.vectors(rows), unit(mapped), atol=1e-5)
    assert gallery.vectors(rows[:0]).shape == (0, 3)
